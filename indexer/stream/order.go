package stream

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
	started   bool   // next means something
	next      uint64 // the sequence number to come
	epoch     uint64
	lastHeard time.Time        // the last message of that epoch
	applied   [512]fingerprint // by seq
	partial   bool
	recurrent bool // event.Batch
	// owed: a replay failed, and what it would have brought is missing still.
	replayOwed bool
	confirmed  uint64        // while owed: the next message when the publisher was last known to be the one we follow
	backoff    time.Duration // until a failed replay is tried again
	notBefore  time.Time     // no replay before
}

type fingerprint struct{ number, sum uint64 } // number is seq + 1: 0 is an empty place

// A failed replay is tried again after about firstRetry, then after ever twice as long, up to lastRetry.
const (
	firstRetry = 500 * time.Millisecond
	lastRetry  = time.Minute
)

var errRestarted = errors.New("the publisher has restarted")

func (o *order) appliedAt(seq uint64) *fingerprint { return &o.applied[seq%uint64(len(o.applied))] }

// sameIncarnation tells whether m is known to be of the life of the message that was applied under its number: by its epoch, or,
// where there are none, by being that message.
func (o *order) sameIncarnation(m Message) bool {
	if m.Epoch != 0 {
		return m.Epoch == o.epoch
	}
	s := o.appliedAt(m.Seq)
	return s.number == m.Seq+1 && s.sum == xxh3.Hash(m.Payload)
}

// takeMessage takes one live message.
func (f *Feed) takeMessage(ctx context.Context, m Message) {
	if !f.acceptEpoch(m) {
		f.update(func(s *Stats) { s.Stale++ })
		return
	}
	switch {
	case f.started && m.Seq == f.next:
	case f.started && m.Seq < f.next:
		// Another message, or one of too long ago: the publisher is asked whether it is still the one that we knew.
		if f.sameIncarnation(m) || f.catchUp(ctx) && m.Seq < f.next {
			f.update(func(s *Stats) { s.Duplicates++ })
			return
		}
		if m.Seq < f.next {
			f.restart(m.Epoch)
		}
	default:
		if f.started {
			f.update(func(s *Stats) { s.Gaps++ })
		}
		f.catchUp(ctx)
	}
	if f.started && m.Seq < f.next { // the replay has brought it
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

// acceptEpoch tells whether m is of the publisher life that we follow, and changes over to a newer one: to an older one only
// if the newest has been silent for long (two publishers for one worker, and the newer has gone).
func (f *Feed) acceptEpoch(m Message) bool {
	if m.Epoch != f.epoch {
		if m.Epoch < f.epoch && time.Since(f.lastHeard) < epochTime {
			return false
		}
		if f.started && f.next > 0 { // else there was nothing yet to begin anew
			f.restart(m.Epoch)
		}
		f.epoch = m.Epoch
	}
	f.lastHeard = time.Now()
	return true
}

// afterDrop is called when the queue has dropped messages and nothing came after them that would show the gap.
func (f *Feed) afterDrop(ctx context.Context) {
	if !f.catchUp(ctx) {
		f.clearAll()
	}
}

// restart begins another life of the publisher.
func (f *Feed) restart(epoch uint64) {
	f.update(func(s *Stats) { s.Restarts++ })
	f.clearAll()
	f.started, f.next, f.epoch, f.applied = false, 0, epoch, [512]fingerprint{}
}

// clearAll clears what cannot be trusted any more.
func (f *Feed) clearAll() {
	f.o.Sink.Clear()
	f.offload.clear()
	f.partial = true
	f.reportBounds()
}

// resync replaces what is known by what the publisher tells from its start. What it no longer has of that makes the rank
// partial.
func (f *Feed) resync(ctx context.Context) {
	if !f.started || f.next == 0 {
		return // nothing is known
	}
	f.partial, f.replayOwed, f.backoff, f.notBefore = true, true, 0, time.Time{}
	f.reportBounds()
	if !f.catchUp(ctx) && f.backoff == 0 { // nobody to ask, or it would be tried again
		f.replayOwed = false
		f.clearAll()
	}
}

// catchUp asks the publisher for everything from the last message applied on, and finds out whether it is the one that
// we knew. It reports whether an answer came.
func (f *Feed) catchUp(ctx context.Context) bool {
	if time.Now().Before(f.notBefore) {
		return false
	}
	for range 2 { // a second time after a restart, from the start
		err := f.replay(ctx)
		if errors.Is(err, errRestarted) {
			f.restart(f.epoch)
			continue
		}
		if errors.Is(err, errors.ErrUnsupported) {
			return false
		}
		if err != nil {
			if !f.replayOwed {
				f.confirmed = f.next
			}
			f.replayOwed, f.backoff = true, min(max(2*f.backoff, firstRetry), lastRetry)
			f.notBefore = time.Now().Add(jitter(f.backoff))
			f.update(func(s *Stats) { s.ReplayErrors++; s.LastError = err.Error() })
			return false
		}
		f.replayOwed, f.backoff = false, 0
		return true
	}
	return false
}

func (f *Feed) replay(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, replayTime)
	defer cancel()
	from, check := uint64(0), f.started && f.next > 0
	again := check && f.replayOwed && f.partial // from the start: what is held is a part, and what follows it does not help
	if check && !again {
		from = f.next - 1
		if f.replayOwed && f.confirmed > 0 && f.confirmed < f.next { // what came since may be another life's, at our number by chance
			from = f.confirmed - 1
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
			if f.started && f.next > 0 {
				return errRestarted
			}
		}
		f.lastHeard = time.Now()
		if !answered {
			answered = true
			f.update(func(s *Stats) { s.Replays++ })
			if again {
				f.clearAll()
				f.started, f.next = false, 0
			} else if check && m.Seq == from && !f.sameIncarnation(m) {
				return errRestarted
			}
		}
		if f.started && m.Seq < f.next {
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
		return errRestarted // it knows nothing of the number that we have seen
	case check:
		return fmt.Errorf("nothing is known of message %d", from)
	}
	if !f.started { // nothing was published yet: we know everything
		f.started, f.partial = true, false
		f.reportBounds()
	}
	return nil
}

// skip gives up on a message that cannot be read.
func (f *Feed) skip(m Message) {
	f.clearAll()
	f.started, f.next = true, m.Seq+1
}
