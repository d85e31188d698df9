package feed

// Sequence numbers: which message is the next, which is double, which are missing, and whether it is still the same
// publisher that speaks.
//
//	the next        apply
//	seen before     drop, if it is the same message (by its checksum); else the publisher has started anew
//	beyond the next ask for what is missing; what cannot be had makes the rest worthless: clear, and go on partial
//
// A replay begins with the last message applied. If the publisher sends another one under its number, or knows none, it
// is not the publisher that we knew: it has restarted, even if its numbers have passed ours by now.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/sightline-router/sightline/internal/guard"
)

// order is where a feed stands in its stream. Only the feed's goroutine uses it.
type order struct {
	settled   bool   // next means something
	next      uint64 // the sequence number to come
	epoch     uint64
	heard     time.Time // the last message of that epoch
	recent    [512]seen // by seq
	partial   bool
	recurrent bool // event.Batch
	// owed: a replay failed, and what it would have brought is missing still.
	owed bool
	sure uint64        // while owed: the next message when the publisher was last known to be the one we follow
	wait time.Duration // until a failed replay is tried again
	not  time.Time     // no replay before
}

type seen struct{ number, sum uint64 } // number is seq + 1: 0 is an empty place

// A failed replay is tried again after about firstRetry, then after ever twice as long, up to lastRetry.
const (
	firstRetry = 500 * time.Millisecond
	lastRetry  = time.Minute
)

var errOtherLife = errors.New("the publisher has restarted")

func (o *order) at(seq uint64) *seen { return &o.recent[seq%uint64(len(o.recent))] }

// same tells whether m is known to be of the life of the message that was applied under its number: by its epoch, or,
// where there are none, by being that message.
func (o *order) same(m Message) bool {
	if m.Epoch != 0 {
		return m.Epoch == o.epoch
	}
	s := o.at(m.Seq)
	return s.number == m.Seq+1 && s.sum == xxh3.Hash(m.Payload)
}

// message takes one live message.
func (f *Feed) message(ctx context.Context, m Message) {
	if !f.ofEpoch(m) {
		f.note(func(s *Stats) { s.Stale++ })
		return
	}
	switch {
	case f.settled && m.Seq == f.next:
	case f.settled && m.Seq < f.next:
		// Another message, or one of too long ago: the publisher is asked whether it is still the one that we knew.
		if f.same(m) || f.catchUp(ctx) && m.Seq < f.next {
			f.note(func(s *Stats) { s.Duplicates++ })
			return
		}
		if m.Seq < f.next {
			f.restart(m.Epoch)
		}
	default:
		if f.settled {
			f.note(func(s *Stats) { s.Gaps++ })
		}
		f.catchUp(ctx)
	}
	if f.settled && m.Seq < f.next { // the replay has brought it
		return
	}
	if f.apply(m) == nil {
		return
	}
	f.catchUp(ctx) // cut on the way? The publisher still has it whole
	if f.next <= m.Seq {
		f.skip(m)
	}
}

// ofEpoch tells whether m is of the publisher life that we follow, and changes over to a newer one: to an older one only
// if the newest has been silent for long (two publishers for one worker, and the newer has gone).
func (f *Feed) ofEpoch(m Message) bool {
	if m.Epoch != f.epoch {
		if m.Epoch < f.epoch && time.Since(f.heard) < epochTime {
			return false
		}
		if f.settled && f.next > 0 { // else there was nothing yet to begin anew
			f.restart(m.Epoch)
		}
		f.epoch = m.Epoch
	}
	f.heard = time.Now()
	return true
}

// lost is called when the queue has dropped messages and nothing came after them that would show the gap.
func (f *Feed) lost(ctx context.Context) {
	if !f.catchUp(ctx) {
		f.forget()
	}
}

// restart begins another life of the publisher.
func (f *Feed) restart(epoch uint64) {
	f.note(func(s *Stats) { s.Restarts++ })
	f.forget()
	f.settled, f.next, f.epoch, f.recent = false, 0, epoch, [512]seen{}
}

// forget clears what cannot be trusted any more.
func (f *Feed) forget() {
	f.o.Sink.Clear()
	f.offload.clear()
	f.partial = true
	f.done()
}

// resync replaces what is known by what the publisher tells from its start. What it no longer has of that makes the rank
// partial.
func (f *Feed) resync(ctx context.Context) {
	if !f.settled || f.next == 0 {
		return // nothing is known
	}
	f.partial, f.owed, f.wait, f.not = true, true, 0, time.Time{}
	f.done()
	if !f.catchUp(ctx) && f.wait == 0 { // nobody to ask, or it would be tried again
		f.owed = false
		f.forget()
	}
}

// catchUp asks the publisher for everything from the last message applied on, and finds out whether it is the one that
// we knew. It reports whether an answer came.
func (f *Feed) catchUp(ctx context.Context) bool {
	if time.Now().Before(f.not) {
		return false
	}
	for range 2 { // a second time after a restart, from the start
		err := f.replay(ctx)
		if errors.Is(err, errOtherLife) {
			f.restart(f.epoch)
			continue
		}
		if errors.Is(err, errors.ErrUnsupported) {
			return false
		}
		if err != nil {
			if !f.owed {
				f.sure = f.next
			}
			f.owed, f.wait = true, min(max(2*f.wait, firstRetry), lastRetry)
			f.not = time.Now().Add(spread(f.wait))
			f.note(func(s *Stats) { s.ReplayErrors++; s.LastError = err.Error() })
			return false
		}
		f.owed, f.wait = false, 0
		return true
	}
	return false
}

func (f *Feed) replay(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, replayTime)
	defer cancel()
	from, check := uint64(0), f.settled && f.next > 0
	again := check && f.owed && f.partial // from the start: what is held is a part, and what follows it does not help
	if check && !again {
		from = f.next - 1
		if f.owed && f.sure > 0 && f.sure < f.next { // what came since may be another life's, at our number by chance
			from = f.sure - 1
		}
	}
	answered, stale, ours := false, false, false
	each := func(m Message) error {
		if m.Epoch < f.epoch {
			stale = true
			return nil
		}
		if m.Epoch > f.epoch {
			f.epoch = m.Epoch
			if f.settled && f.next > 0 {
				return errOtherLife
			}
		}
		f.heard = time.Now()
		if !answered {
			answered = true
			f.note(func(s *Stats) { s.Replays++ })
			if again {
				f.forget()
				f.settled, f.next = false, 0
			} else if check && m.Seq == from && !f.same(m) {
				return errOtherLife
			}
		}
		if f.settled && m.Seq < f.next {
			return nil
		}
		if f.apply(m) != nil {
			f.skip(m)
		}
		return nil
	}
	err := guard.Call(func() error {
		return f.o.Source.Replay(ctx, from, func(m Message) error {
			ours = true
			err := each(m)
			ours = false
			return err
		})
	})
	if f.panicked(err) && ours { // not the source's: the index is everybody's, and may be left locked
		panic(err)
	}
	switch {
	case err != nil || answered:
		return err
	case stale:
		return fmt.Errorf("only an older publisher answers")
	case check && f.epoch == 0:
		return errOtherLife // it knows nothing of the number that we have seen
	case check:
		return fmt.Errorf("nothing is known of message %d", from)
	}
	if !f.settled { // nothing was published yet: we know everything
		f.settled, f.partial = true, false
		f.done()
	}
	return nil
}

// skip gives up on a message that cannot be read.
func (f *Feed) skip(m Message) {
	f.forget()
	f.settled, f.next = true, m.Seq+1
}
