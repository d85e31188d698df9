package stream

// Sequence numbers: which message is the next, which is a duplicate, which are missing, and whether the publisher is still the
// same incarnation.
//
//	the next        apply it
//	seen before     drop it if it is the same message, by its checksum; else the publisher has restarted
//	beyond the next replay what is missing; if that fails, what is held is in doubt (doubt.go): go on partial
//
// A replay begins with the last message applied. A publisher that sends another message under that number, or none, has
// restarted, even if its numbers have passed ours by now.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/internal/guard"
)

// order is a feed's position in its stream. Only applyQueue's goroutine uses it.
type order struct {
	started          bool   // a message was applied, or nothing was published yet: next is valid
	next             uint64 // the next sequence number
	first            uint64 // everything from here to next was applied
	epoch            uint64
	lastHeard        time.Time        // time of the last message of that epoch
	applied          [512]fingerprint // the last messages applied, by seq modulo 512
	partial          bool
	publisherPartial bool      // the publisher's last message says that it is partial itself
	upperBound       bool      // kvevent.Batch.UpperBound of any batch so far
	restarted        time.Time // when the last new incarnation began
	// replayOwed: a replay failed, and what it would have brought is still missing.
	replayOwed     bool
	confirmed      uint64        // while replayOwed: next when the publisher was last known to be the same incarnation
	backoff        time.Duration // average wait until a failed replay is retried
	notBefore      time.Time     // no replay before this time
	resyncBackoff  time.Duration // average wait until a replay after the last unexpected unknown parent
	contentSuspect bool          // until a replay is answered: the sink's content is wrong
	replaying      bool
}

// fingerprint identifies a message that was applied. number is seq + 1, so that 0 marks an empty entry.
type fingerprint struct{ number, sum uint64 }

// A failed replay is retried after firstRetry on average, then after twice as long each time, up to lastRetry.
const (
	firstRetry = 500 * time.Millisecond
	lastRetry  = time.Minute
)

var errRestarted = errors.New("the publisher has restarted")

// appliedAt returns the entry for a sequence number; it may be that of a message 512 earlier or later.
func (o *order) appliedAt(seq uint64) *fingerprint { return &o.applied[seq%uint64(len(o.applied))] }

func (o *order) isPartial() bool { return o.partial || o.publisherPartial }

// sameIncarnation reports whether m is known to come from the publisher incarnation whose message was applied under that number:
// by its epoch or, without epochs, because it is that very message.
func (o *order) sameIncarnation(m Message) bool {
	if m.Epoch != 0 {
		return m.Epoch == o.epoch
	}
	s := o.appliedAt(m.Seq)
	return s.number == m.Seq+1 && s.sum == m.checksum()
}

// takeMessage applies one live message, and catches up first if it is not the next one.
func (f *Feed) takeMessage(ctx context.Context, m Message) {
	if !f.acceptEpoch(m) {
		f.update(func(s *Stats) { s.Stale++ })
		return
	}
	switch {
	case f.started && m.Seq == f.next:
	case f.started && m.Seq < f.next:
		known := f.sameIncarnation(m)
		if !known { // another message, or one applied too long ago to compare: the replay shows, and moves next if it has begun anew
			known = f.catchUp(ctx)
		}
		if known && m.Seq < f.next {
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
	if f.started && m.Seq < f.next { // the replay brought it
		return
	}
	if f.apply(m) == nil {
		return
	}
	f.catchUp(ctx) // it cannot be read; if it was truncated on the way, the publisher still has it whole
	if f.next <= m.Seq {
		f.skip(m)
	}
}

// acceptEpoch reports whether m is of the publisher incarnation that is followed, and switches to a newer one. It returns to an
// older one only if the newer was silent for epochTime: of two publishers for one worker, the newer has ended.
func (c *content) acceptEpoch(m Message) bool {
	if m.Epoch != c.epoch {
		if m.Epoch < c.epoch && time.Since(c.lastHeard) < epochTime {
			return false
		}
		if c.started && c.next > 0 { // before the first message there is nothing to clear
			c.restart(m.Epoch)
		}
		c.epoch = m.Epoch
	}
	c.lastHeard = time.Now()
	return true
}

// restart begins a new incarnation of the publisher, about which nothing is known.
func (c *content) restart(epoch uint64) {
	c.update(func(s *Stats) { s.Restarts++ })
	c.restarted = time.Now()
	c.upperBound = false
	if x, slot := c.o.Sink.Held(); x != nil {
		x.ForgetGroups(slot)
	}
	c.clearAll()
	if d, ok := c.o.Decoder.(Restarter); ok {
		d.Restart()
	}
	c.started, c.next, c.first, c.epoch, c.applied = false, 0, 0, epoch, [512]fingerprint{}
}

// replaceIncarnation is called when the engine's process is not the one that ran at the given time. A replay shows whether the
// publisher is the same: by the message under our last number. Without epochs, that may be of the process before even if a gap has
// revealed the restart: messages waited behind the gap.
func (f *Feed) replaceIncarnation(ctx context.Context, was time.Time) {
	if !f.started || f.next == 0 || f.epoch != 0 && f.restarted.After(was) {
		return
	}
	if !f.catchUp(ctx) && !f.restarted.After(was) {
		f.restart(f.epoch)
	}
}

// clearAll empties the sink, because its content may be wrong. The rank is partial until the publisher's state is known.
func (c *content) clearAll() {
	c.forget()
	c.clear()
	c.partial = true
	c.reportBounds()
}

func (c *content) clear() {
	c.notifyEvent(&kvevent.Event{Kind: kvevent.Cleared})
	c.publisherPartial = false
	c.o.Sink.Clear()
	c.orphans.clear()
	c.stems.clear(c.reserve)
	c.endDoubt()
}

// markIncomplete is called when an event names a parent that is not held. If the rank was considered complete, this shows that it is not,
// although no message is known to be missing: the publisher is asked for everything, with growing delays, and the rank is partial
// until it has answered.
func (c *content) markIncomplete() {
	if c.isPartial() {
		return
	}
	c.partial = true
	if c.replaying { // there is nothing more to ask for
		return
	}
	c.resyncBackoff = min(max(2*c.resyncBackoff, firstRetry), lastRetry)
	c.replayOwed, c.confirmed, c.notBefore = true, c.next, time.Now().Add(jitter(c.resyncBackoff))
}

// resync replaces the sink's content by a replay from 0. If the publisher no longer has everything, the rank is partial.
func (f *Feed) resync(ctx context.Context) {
	if !f.started || f.next == 0 {
		return // nothing was applied yet
	}
	f.partial, f.contentSuspect, f.replayOwed, f.backoff, f.notBefore = true, true, true, 0, time.Time{}
	f.reportBounds()
	answered := f.catchUp(ctx)
	if !answered && f.backoff == 0 { // unsupported: nothing can replay, now or later
		f.contentSuspect = false
		if f.doubt.since.IsZero() {
			f.clearAll()
		}
		answered = true
	}
	if answered && !f.doubt.since.IsZero() { // an agent's answer may include what it doubts
		f.dropAllDoubtful()
		f.reportBounds()
	}
}

// catchUp asks the publisher for everything from the last applied message on, which also shows whether it is still the same
// incarnation. It reports whether an answer came.
func (f *Feed) catchUp(ctx context.Context) bool {
	if time.Now().Before(f.notBefore) {
		return false
	}
	for range 2 { // after a restart once more, from 0
		err := f.replay(ctx, f.o.Source.Replay)
		if errors.Is(err, errRestarted) {
			f.restart(f.epoch)
			continue
		}
		if errors.Is(err, errors.ErrUnsupported) {
			f.replayOwed = false
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

// replay runs one replay and applies what it brings. errRestarted: another incarnation answered.
func (f *Feed) replay(ctx context.Context, of func(ctx context.Context, from uint64, each func(Message) error) error) error {
	if f.o.ReplaySlots != nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case f.o.ReplaySlots <- struct{}{}:
			defer func() { <-f.o.ReplaySlots }()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, replayTime)
	defer cancel()
	r := replay{Feed: f, known: f.started && f.next > 0}
	r.fromZero = r.known && f.replayOwed && f.partial
	if r.known && !r.fromZero {
		r.from = f.next - 1
		if f.replayOwed && f.confirmed > 0 && f.confirmed < f.next {
			r.from = f.confirmed - 1 // later messages may be of another incarnation, whose numbers fit ours by chance
		}
	}
	inApply := false
	f.replaying = true
	defer func() { f.replaying = false }()
	err := guard.Call(func() error {
		return of(ctx, r.from, func(m Message) error {
			inApply = true
			err := r.take(m)
			inApply = false
			return err
		})
	})
	if f.panicked(err) && inApply { // in our own code, not the source's: the index may be left locked, so do not recover
		panic(err)
	}
	switch {
	case err == nil && r.kept && !r.reached:
		return errRestarted
	case err != nil || r.answered:
		return err
	case r.olderAnswered:
		return errors.New("only an earlier publisher of this worker answers")
	case r.known && f.epoch == 0:
		return errRestarted // it has not reached a number that was applied
	case r.known:
		return fmt.Errorf("message %d is unknown", r.from)
	}
	if !f.started { // nothing was published yet: nothing is missing
		f.started, f.partial = true, false
		f.reportBounds()
	}
	return nil
}

// replay is one replay under way.
type replay struct {
	*Feed
	from          uint64 // the first message asked for
	known         bool   // a message was applied before
	fromZero      bool   // the rank is incomplete: replay from 0, since a suffix cannot restore missing blocks
	answered      bool
	kept, reached bool // kept: it brings less than is known, so the sink keeps its content; reached: it has the last message applied
	olderAnswered bool
}

// take applies one message of a replay.
func (r *replay) take(m Message) error {
	if m.Epoch < r.epoch {
		r.olderAnswered = true
		return nil
	}
	if m.Epoch > r.epoch {
		r.epoch = m.Epoch
		if r.started && r.next > 0 {
			return errRestarted
		}
	}
	r.lastHeard = time.Now()
	if !r.answered {
		r.answered = true
		r.update(func(s *Stats) { s.Replays++ })
		r.kept = r.fromZero && !r.contentSuspect && m.Batch == nil && m.Epoch == 0 && m.Seq > r.first && m.Seq < r.next
		r.contentSuspect = false
		if r.fromZero && !r.kept || m.Batch != nil { // a batch is all, whatever was known
			r.clearAll()
			r.started, r.next = false, 0
		} else if r.known && m.Seq == r.from && !r.sameIncarnation(m) {
			return errRestarted
		}
	}
	if r.kept && m.Seq == r.next-1 && !r.reached {
		if !r.sameIncarnation(m) {
			return errRestarted
		}
		r.reached = true
	}
	if r.started && m.Seq < r.next {
		return nil
	}
	if r.apply(m) != nil {
		r.skip(m)
	}
	return nil
}

// skip gives up a message that cannot be read. Its fingerprint is kept, since the next replay begins with it.
func (c *content) skip(m Message) {
	c.forget()
	c.markDoubtful(nil)
	c.started, c.next, c.first = true, m.Seq+1, m.Seq+1
	*c.appliedAt(m.Seq) = fingerprint{m.Seq + 1, m.checksum()}
}
