package bus

// How an agent begins. It takes over the end of the worker's line with an empty message: from then on an older agent's messages
// are refused. Then it reads from the newest snapshot what the worker held, and the position of the engine's own stream then. If
// the engine can replay from there, or is shown to be the same process, the agent continues, and routers keep what they know; the
// first replay in package stream shows whether the engine is still the same, and clears if not. If the last agent published more
// after its snapshot (it had no time to write one at its end), the agent reads that from the stream, message by message: 0.1 to
// 0.3 ms each over loopback (BenchmarkTakeOver), for at most catchUpTime. If that fails, routers read a snapshot, and what the
// engine does not report again is lost. Otherwise the agent starts empty, and routers forget.
//
// It uses no consumer for that: a client that may create one can speak for others (WriteUsers). It requests messages by number, which a
// server permits for the whole stream or not at all, so WriteUsers permits it only to agents that may publish for every worker.
// The server does not answer the requests of others: an agent first checks whether it may, so that it need not wait.

import (
	"cmp"
	"context"
	cryptorand "crypto/rand"
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/retry"
)

const (
	beginTime   = 30 * time.Second // for one attempt
	catchUpTime = 10 * time.Second // to read what an earlier agent published after its snapshot
)

// begin retries until it succeeds or ctx ends.
func (p *Publisher) begin(ctx context.Context) error {
	pause := retry.Backoff{First: retryPause}
	for told := ""; ; {
		attempt, cancel := context.WithTimeout(ctx, beginTime)
		fresh, err := p.claim(attempt)
		if err == nil {
			err = p.load(attempt, fresh)
		}
		cancel()
		if err == nil || ctx.Err() != nil {
			return cmp.Or(ctx.Err(), err)
		}
		if err.Error() != told {
			told = err.Error()
			p.o.Log.Warn("the agents' stream cannot be used yet; it is tried again", zap.Error(err))
		}
		if !pause.Wait(ctx) {
			return ctx.Err()
		}
	}
}

// claim appends an empty message to the line. fresh: the line was empty and begins with it.
func (p *Publisher) claim(ctx context.Context) (fresh bool, err error) {
	if err := CheckServer(p.o.NATS); err != nil {
		return false, err
	}
	e, err := p.rankLine.end(ctx)
	if err != nil {
		return false, err
	}
	// A new line's epoch is the creation time of the stream plus its number of messages: lines of an older stream, and earlier
	// lines in this one, have smaller epochs.
	p.streamCreated, p.head, p.last = e.made, head{epoch: uint64(e.made) + e.stream.CachedInfo().State.LastSeq}, 0
	fresh = e.message == nil || e.unreadable != nil
	if !fresh {
		p.head = e.head
		p.seq++
	}
	if e.message != nil {
		p.last = e.message.Sequence
	}
	p.head.agent, p.head.key = randomNumber(), p.o.Secret.Key().ID
	p.flags |= flagAway
	ack, err := p.rankLine.js.PublishMsg(ctx, &nats.Msg{Subject: p.rankLine.subject(), Data: p.head.append(nil)},
		jetstream.WithExpectLastSequencePerSubject(p.last))
	if err != nil {
		return false, err
	}
	p.last = ack.Sequence
	p.seq++
	return fresh, nil
}

// randomNumber returns a number that no client can guess.
func randomNumber() uint64 {
	var b [8]byte
	_, _ = cryptorand.Read(b[:]) // it never fails
	return binary.LittleEndian.Uint64(b[:])
}

// load continues from what the line holds, or starts empty.
func (p *Publisher) load(ctx context.Context, fresh bool) error {
	life := ""
	if p.o.ProcessID != nil {
		p.processAskedAt = time.Now()
		life = p.o.ProcessID(ctx)
		p.processID = life
	}
	holds := func(t snapshotTag) bool { // whether the engine lets us continue from what it held
		if life != "" && t.Life != "" {
			return life == t.Life
		}
		return p.o.Replays
	}
	t, message, err := p.loadNewest(ctx)
	if err != nil {
		return err
	}
	p.waiting = true
	if message == nil || !holds(t) || p.restore(message) != nil {
		_ = p.index.Clear(p.slot)
		p.next, p.sum, p.flags, p.beginEvents = 0, 0, flagAway, nil
		p.add(&kvevent.Event{Kind: kvevent.Cleared})
		return nil
	}
	p.stats.Resumed, p.unproven = true, !p.o.Replays
	p.dropped = fresh || t.Made != p.streamCreated || t.Epoch != p.epoch // routers must read a snapshot
	if !p.dropped {
		if err := p.catchUp(ctx, t); err != nil {
			p.o.Log.Warn("cannot read what the previous agent published after its snapshot; routers must read a new snapshot, "+
				"and events that the engine does not replay are lost", zap.Error(err))
			p.dropped = true
		}
	}
	p.from = stream.Position{Next: p.next, Sum: p.sum, Partial: p.flags&flagPartial != 0, UpperBound: p.flags&flagUpperBound != 0}
	p.flags |= flagAway
	p.o.Log.Info("continuing from the previous agent's state, if the engine process is still the same",
		zap.Int("blocks", p.index.HeldBlocks(p.slot)),
		zap.Uint64("engine_message", p.next))
	return nil
}

// catchUp applies the line's messages between a snapshot and the claim. After an error the messages read before it stay applied.
func (p *Publisher) catchUp(ctx context.Context, t snapshotTag) error {
	ctx, cancel := context.WithTimeout(ctx, catchUpTime)
	defer cancel()
	claimed := p.seq - 1
	if t.Seq+1 == claimed {
		return nil
	}
	if err := p.rankLine.mayReadByNumber(ctx); err != nil {
		return err
	}
	s, err := p.rankLine.js.Stream(ctx, EventStream)
	if err != nil {
		return err
	}
	for number := t.Number; ; {
		m, err := s.GetMsg(ctx, number+1, jetstream.WithGetMsgSubject(p.rankLine.subject()))
		if err != nil {
			return err
		}
		h, err := readMessage(m.Data)
		switch t.Seq++; {
		case err != nil:
			return err
		case isForwarded(m.Header, 1):
			return errForwarded
		case h.epoch != t.Epoch || h.seq != t.Seq:
			return errIncomplete
		case h.seq == claimed:
			return nil
		}
		if err := p.restore(m.Data); err != nil {
			return err
		}
		number, p.changed = m.Sequence, true
	}
}

// restore applies a message that an agent published.
func (p *Publisher) restore(b []byte) error {
	batch, err := (&Decoder{Secret: p.o.Secret}).Decode(b)
	if err != nil {
		return err
	}
	keep := func(e kvevent.Event) { // e is valid until the next events are read
		e.EngineHashes, e.Locals, e.Tokens, e.Media = slices.Clone(e.EngineHashes), slices.Clone(e.Locals), nil, nil
		p.beginEvents = append(p.beginEvents, e)
	}
	for events := batch.Events; len(events) > 0; {
		for i := range events {
			switch e := &events[i]; e.Kind {
			case kvevent.Stored:
				p.setForm(e)
				failed := p.index.Store(p.slot, e.Tier, e.Parent, e.HasParent, e.EngineHashes, e.Locals)
				if errors.Is(failed, indexer.ErrUnknownParent) {
					keep(*e)
					failed = nil
				}
				err = errors.Join(err, failed)
			case kvevent.Lost:
				keep(*e)
			case kvevent.Removed:
				_, _ = p.index.Remove(p.slot, e.Tier, e.EngineHashes)
				if len(p.beginEvents) > 0 {
					keep(*e)
				}
			case kvevent.GroupStored:
				_, _ = p.index.StoreGroup(p.slot, p.form.Size, e)
			case kvevent.GroupRemoved:
				_, _ = p.index.RemoveGroup(p.slot, e.Group, e.EngineHashes)
			case kvevent.Cleared:
				_ = p.index.Clear(p.slot)
				p.beginEvents = nil
			}
		}
		events = nil
		if batch.More != nil {
			events = batch.More()
		}
	}
	h, _ := readHead(b) // Decode has checked it
	p.flags, p.next, p.sum = h.flags, h.next, h.sum
	return err
}

// loadNewest returns the newest snapshot; none if it cannot be read.
func (p *Publisher) loadNewest(ctx context.Context) (t snapshotTag, message []byte, err error) {
	t, err = p.rankLine.tag(ctx)
	if err != nil || t.Parts == 0 {
		return t, nil, err
	}
	message, err = p.rankLine.snapshot(ctx, t, maxSnapshot)
	if err != nil {
		p.o.Log.Warn("the snapshot cannot be read", zap.Error(err))
		message = nil
	}
	return t, message, nil
}
