package stream

// Backfill recovers what a worker cannot replay any more. A publisher keeps only its last messages: a router that joins late,
// such as after a restart, or was disconnected for longer, receives only what is stored from then on. Another router has received
// the rest:
//
//	replay ─▶ begins later ─▶ Backfill.Ask ─▶ another's Feed.Held, at its message n ─▶ replay from n: the same message?
//	─▶ that, then the rest
//
// Nothing is lost between the two, since the worker's own messages continue from the other router's position. A snapshot of
// another incarnation is not used, since the worker's message n is then a different one.

import (
	"context"
	"errors"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/mmhash/block"
)

// Held is all that a worker's rank holds, as known to a feed after the publisher's message At.Next-1.
type Held struct {
	At     Position
	Form   block.Form
	Blocks []indexer.Block
	Groups []kvevent.Event // of a hybrid model's further groups, after the blocks
}

// ErrIncomplete: a feed does not know all that its rank holds, or not for certain.
var ErrIncomplete = errors.New("what the worker holds is known only in part")

// ErrTooMany: a rank holds more blocks than are wanted.
var ErrTooMany = errors.New("the worker holds more blocks than are wanted")

// heldQuestion is a call of Feed.Held that waits for the feed.
type heldQuestion struct {
	most int
	held Held
	done chan error
}

// Held returns what the rank holds, if all of that is known and its events are live. At.Partial: the index has evicted some of it.
// The feed applies nothing meanwhile, about 0.1 µs a block. Errors: ErrIncomplete, at once if the rank is still catching up; ErrTooMany,
// before anything is listed, if it holds more than most blocks; ctx's if it ends before the feed answers.
func (f *Feed) Held(ctx context.Context, most int) (Held, error) {
	q := &heldQuestion{most: most, done: make(chan error, 1)}
	f.mu.Lock()
	if f.stats.Partial || !f.stats.Live() {
		f.mu.Unlock()
		return Held{}, ErrIncomplete
	}
	f.heldWaiting = append(f.heldWaiting, q)
	f.mu.Unlock()
	f.wake.Ring()
	select {
	case err := <-q.done:
		return q.held, err
	case <-ctx.Done():
		return Held{}, ctx.Err()
	}
}

// answerHeld answers the waiting calls of Held.
func (f *Feed) answerHeld() {
	f.mu.Lock()
	asking, live := f.heldWaiting, f.stats.Live()
	f.heldWaiting = nil
	f.mu.Unlock()
	for _, q := range asking {
		err := ErrIncomplete
		if f.started && f.next > 0 && f.epoch == 0 && live && !f.replayOwed && !f.isPartial() && f.doubt.since.IsZero() {
			x, slot := f.o.Sink.Held()
			if x.HeldBlocks(slot) > q.most {
				err = ErrTooMany
			} else if list, unknown := x.Blocks(slot); unknown == nil {
				err = nil
				q.held = Held{Position{f.next, f.appliedAt(f.next - 1).sum, x.Partial(slot), f.upperBound}, x.Form(slot), list, x.GroupEvents(slot)}
			}
			f.o.Sink.Done(f.isPartial(), f.upperBound)
		}
		q.done <- err
	}
}

// AskOthers asks the other routers again if the rank is partial, because one has come that was not there when the rank joined. It
// returns when that has ended, or ctx has.
func (f *Feed) AskOthers(ctx context.Context) {
	done := make(chan struct{})
	f.mu.Lock()
	f.othersWaiting = append(f.othersWaiting, done)
	f.mu.Unlock()
	f.wake.Ring()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// askOthers asks other replicas for what the rank holds. It is called in the feed's goroutine.
func (f *Feed) askOthers(ctx context.Context) {
	f.mu.Lock()
	list := f.othersWaiting
	f.othersWaiting = nil
	f.mu.Unlock()
	if b, ok := f.o.Source.(*Backfill); ok && len(list) > 0 && f.started && f.next > 0 && f.partial && !f.replayOwed {
		if err := f.replay(ctx, b.replayOthers); err != nil && !errors.Is(err, errNoOther) {
			f.replayOwed, f.confirmed = true, f.next
			f.catchUp(ctx)
		}
	}
	for _, done := range list {
		close(done)
	}
}

// Backfill is a Source without epochs. If the publisher can only replay from later on, Backfill's replay begins with the blocks that
// another replica holds of the worker.
type Backfill struct {
	Source
	// Ask asks another router for all that it holds of the rank: a batch that begins with Cleared. ok is false if none has it;
	// after an error it may be asked again.
	Ask func(ctx context.Context) (at Position, all kvevent.Batch, ok bool, err error)

	failures int // questions in a row; after backfillTries the worker's own replay has to do
}

var (
	errReplayTooLate = errors.New("the publisher's replay no longer has the oldest missing message")
	errConflict      = errors.New("another replica received a different message with this sequence number")
	errNoOther       = errors.New("no other router has all that the worker holds")
)

const (
	backfillTries = 3
	backfillPause = 50 * time.Millisecond // a publisher sends a message slightly before it can replay it
)

// Replay implements Source.
func (b *Backfill) Replay(ctx context.Context, from uint64, each func(Message) error) error {
	begun := false
	err := b.Source.Replay(ctx, from, func(m Message) error {
		if !begun && m.Seq > from+min(from, 1) { // message from itself is known: it only shows the incarnation
			return errReplayTooLate
		}
		begun = true
		return each(m)
	})
	if errors.Is(err, errReplayTooLate) {
		err = b.replayOthers(ctx, from, each)
	}
	if errors.Is(err, errNoOther) {
		return b.Source.Replay(ctx, from, each)
	}
	return err
}

// replayOthers replays what another router holds, and what the publisher has sent since.
func (b *Backfill) replayOthers(ctx context.Context, _ uint64, each func(Message) error) error {
	if b.failures == backfillTries {
		b.failures = 0
		return errNoOther
	}
	at, all, ok, err := b.Ask(ctx)
	if err != nil {
		b.failures++
		return err
	}
	b.failures = 0
	for try := 0; ok && at.Next > 0 && try < backfillTries; try++ {
		reached := false
		err := b.Source.Replay(ctx, at.Next-1, func(m Message) error {
			if reached {
				return each(m)
			}
			if m.Seq != at.Next-1 || xxh3.Hash(m.Payload) != at.Sum {
				return errConflict
			}
			reached = true
			return each(Message{Seq: m.Seq, Batch: &all, sum: at.Sum})
		})
		if errors.Is(err, errConflict) {
			break
		}
		if reached || err != nil {
			return err
		}
		if !retry.Sleep(ctx, backfillPause) {
			return ctx.Err()
		}
	}
	return errNoOther
}
