package bus

import (
	"cmp"
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/mmhash/block"
)

const (
	// maxQueued limits the events that wait while a message is being published, or NATS cannot be reached. Beyond it they are dropped, and
	// routers read a snapshot. It fits the usual server limit of 1 MiB.
	maxQueued         = 1<<20 - 4<<10
	maxWaitingRouters = 1024 // routers that wait for a snapshot
	// heartbeat says that all that an agent knows is in the stream.
	heartbeat      = 5 * time.Second
	publishTime    = 2 * time.Second // for one attempt
	retryPause     = 250 * time.Millisecond
	leaveTime      = 5 * time.Second // to publish what is left, and the last snapshot
	processIDTries = 60              // a heartbeat apart: an engine's events may arrive before its server answers
	// A snapshot is written when something has changed, snapshotEvery after the last one plus a second for each 256 KiB that it
	// had: 2 M blocks, 32 MB, every three minutes.
	snapshotEvery = time.Minute
	snapshotPace  = 256 << 10
	snapshotTime  = 30 * time.Second // to write one
)

// PublisherOptions configure a Publisher.
type PublisherOptions struct {
	NATS   *nats.Conn
	Worker string
	Rank   int // -1: the worker has no ranks
	// Secret keys the blocks' hashes. It must not change while the Publisher runs.
	Secret *block.Secret
	// CountCopies: see indexer.SlotOptions.
	CountCopies bool
	// Tokens also publishes token ids, media names and sessions, for audits. The agent's decoder must keep them.
	Tokens bool
	// Replays: the engine can replay what it published while no agent was running.
	Replays bool
	// ProcessID, if set, returns an id of the engine's process, such as its start time; "": not known. An agent continues from what an
	// earlier one held if the engine replays, or if ProcessID is the same. It also calls ProcessID at each connection to the engine:
	// without replays, an engine that was replaced meanwhile and has sent as many messages as its predecessor looks the same.
	ProcessID func(context.Context) string
	Log       *zap.Logger // may be nil

	every, beat time.Duration // for tests; 0: snapshotEvery, heartbeat
}

// PublisherStats has a Publisher's counters and its current state.
type PublisherStats struct {
	Messages, Bytes uint64    // accepted by the stream
	Failed          uint64    // failed attempts to publish, which are retried
	Unanswered      uint64    // requests for a snapshot while too many were waiting for one
	Dropped         uint64    // times that too many events waited, and were dropped for a snapshot
	Refused         uint64    // messages refused because a newer agent publishes: 0 or 1
	Pending         int       // bytes of waiting events
	Blocks          int       // held by the worker
	Snapshots       uint64    // written
	SnapshotErrors  uint64    // failed to be written
	SnapshotBytes   int       // size of the last one
	SnapshotAt      time.Time // when it was written
	Epoch, Seq      uint64    // Seq: number of the next message
	Connected       bool      // to NATS
	Resumed         bool      // it continued from an earlier agent
	Current         bool      // what it knows is in the stream, or being published, and there is no newer agent
}

// Publisher is the sink of an agent's feed. Events of batches that come while a message is being published go into the next one:
// only one is in flight at a time, since it must name the stream's number of the previous one. While NATS cannot be reached nothing is
// published; then follows the difference, or a gap and a snapshot if that is too long. Options sets its options for the feed.
type Publisher struct {
	outbox
	rankLine         *rankLine
	sending          context.Context // until Leave
	cancel           context.CancelFunc
	running          sync.WaitGroup
	snapshotRequests *nats.Subscription
	wake             retry.Bell
	from             stream.Position // where the engine's stream continues
	beginEvents      []kvevent.Event // Options.InitialEvents of the feed

	// Used by the sender only, and before it starts by claim.
	last          uint64    // the stream's number of the line's last message
	lastUncertain bool      // an attempt failed, so last may be outdated
	unfinished    *outgoing // in flight when the sending ended

	// Under outbox.mu.
	feed           *stream.Feed // set once it is connected to the engine
	up             bool
	unproven       bool      // it continued from a snapshot, and the engine has not shown yet that nothing was missed
	failing        bool      // the last attempt to publish failed
	connections    int       // connections to the engine so far
	processID      string    // the engine's process, as last reported
	processAskedAt time.Time // when that was asked
	saving         bool
	saved          time.Time // when the last one was tried; initially the start, or zero if there is none
	streamCreated  int64     // when the stream was created
	waitingRouters []*nats.Msg
}

// outbox is what the worker holds, and the events about it that wait to be published.
type outbox struct {
	o       PublisherOptions
	mu      sync.Mutex     // held from a batch's first event to its Done, so that nothing sees half a batch
	index   *indexer.Index // what the worker holds: about 27 bytes a block
	slot    indexer.SlotID
	form    block.Form // of all blocks: the feed ignores others
	head               // of the last message, except that seq is the next one's
	inBatch bool
	events  []byte // waiting ones
	waiting bool   // there is something to publish, if only flags
	dropped bool   // events were dropped: until a snapshot is taken none are kept, and each message skips a number
	fenced  bool   // a newer agent publishes
	changed bool   // since the last snapshot
	stats   PublisherStats
}

// NewPublisher takes over the worker's line in the stream, reads what an earlier agent held, and publishes until Leave. It waits
// until ctx ends for the stream, which routers create.
func NewPublisher(ctx context.Context, o PublisherOptions) (*Publisher, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	l, err := newRankLine(o.NATS, subjectSuffix(o.Worker, o.Rank))
	if err != nil {
		return nil, err
	}
	p := &Publisher{outbox: outbox{o: o, index: indexer.New(indexer.Options{})}, rankLine: l, wake: make(retry.Bell, 1)}
	p.slot = p.index.Join(indexer.SlotOptions{CountCopies: o.CountCopies})
	if err := p.begin(ctx); err != nil {
		return nil, err
	}
	if p.stats.Resumed {
		p.saved = time.Now()
	} // else the first message gets a snapshot: an agent killed before it would leave nothing to continue from
	p.snapshotRequests, err = o.NATS.Subscribe(askSubjects+l.suffix, p.queueSnapshotRequest)
	if err != nil {
		return nil, err
	}
	p.sending, p.cancel = context.WithCancel(context.Background())
	p.running.Go(func() { p.send(p.sending) })
	p.wake.Ring()
	return p, nil
}

// Options makes p the sink of a feed.
func (p *Publisher) Options(o *stream.Options) {
	o.Sink, o.OnLink, o.From, o.InitialEvents, o.Applied, o.OnEvent = p, p.onLink, p.from, p.beginEvents, p.applied, p.onEvent
	o.Form = p.form
}

// Stats returns a copy.
func (p *Publisher) Stats() PublisherStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Pending, s.Blocks, s.Epoch, s.Seq, s.Connected = len(p.events), p.index.HeldBlocks(p.slot), p.epoch, p.seq, p.o.NATS.IsConnected()
	s.Current = s.Connected && !p.failing && !p.fenced && !p.unproven
	return s
}

// beginBatch takes mu at a batch's first event; Done releases it.
func (p *outbox) beginBatch() {
	if !p.inBatch {
		p.mu.Lock()
		p.inBatch = true
	}
}

// add appends an event to the waiting ones. The caller holds mu.
func (p *outbox) add(e *kvevent.Event) {
	p.changed = true
	if p.fenced || p.dropped {
		return
	}
	p.events = appendEvent(p.events, e, p.o.Tokens)
	if len(p.events) > maxQueued {
		p.drop()
	}
}

// drop drops the waiting events: routers see the gap in the numbers and read a snapshot. The caller holds mu.
func (p *outbox) drop() {
	p.events, p.dropped, p.waiting = nil, true, true
	p.stats.Dropped++
}

// onEvent implements stream.Options.OnEvent: what routers need. Their feeds treat it like ours does: blocks wait for their parents and
// doubt ends there as here. So only what the engine sent is published, and where something is missing.
func (p *outbox) onEvent(e *kvevent.Event) {
	p.beginBatch()
	if e.Kind == kvevent.Cleared {
		p.events = p.events[:0]
	}
	if e.Kind == kvevent.Stored {
		p.setForm(e)
	}
	p.add(e)
}

func (p *outbox) setForm(e *kvevent.Event) {
	p.form = block.Form{Size: e.BlockSize, Lookahead: e.Lookahead}
	p.index.SetForm(p.slot, p.form)
}

// Store implements stream.Sink.
func (p *outbox) Store(e *kvevent.Event) error {
	p.beginBatch()
	return p.index.Store(p.slot, e.Tier, e.Parent, e.HasParent, e.EngineHashes, e.Locals)
}

// Copy implements stream.Sink.
func (p *Publisher) Copy(tier kvevent.Tier, engineHashes []uint64) (unknown int) {
	p.beginBatch()
	unknown, _ = p.index.Copy(p.slot, tier, engineHashes)
	return unknown
}

// Remove implements stream.Sink.
func (p *outbox) Remove(tier kvevent.Tier, engineHashes []uint64) (unknown int) {
	p.beginBatch()
	unknown, _ = p.index.Remove(p.slot, tier, engineHashes)
	p.changed = true
	return unknown
}

// Clear implements stream.Sink.
func (p *outbox) Clear() {
	p.beginBatch()
	_ = p.index.Clear(p.slot)
}

// Held implements stream.Sink.
func (p *outbox) Held() (*indexer.Index, indexer.SlotID) {
	p.beginBatch()
	p.changed = true
	return p.index, p.slot
}

// applied implements stream.Options.Applied: the engine's position after the batch.
func (p *Publisher) applied(at stream.Position) {
	p.beginBatch()
	p.next, p.sum, p.unproven = at.Next, at.Sum, false
}

// Done implements stream.Sink: it schedules publishing if the batch brought anything.
func (p *Publisher) Done(partial, upperBound bool) {
	p.beginBatch()
	p.setFlag(flagPartial, partial)
	p.setFlag(flagUpperBound, upperBound)
	p.setFlag(flagAway, !p.up || p.unproven)
	p.waiting = p.waiting || len(p.events) > 0
	waiting := p.waiting && !p.fenced
	p.inBatch = false
	p.mu.Unlock()
	if waiting {
		p.wake.Ring()
	}
}

// onLink implements stream.Options.OnLink: whether the engine is connected.
func (p *Publisher) onLink(f *stream.Feed, up bool) {
	p.mu.Lock()
	p.feed = f
	p.up = up
	if up {
		p.connections++
	}
	links := p.connections
	p.setFlag(flagAway, !p.up || p.unproven)
	p.mu.Unlock()
	p.wake.Ring()
	if up && p.o.ProcessID != nil {
		p.running.Go(func() { p.checkProcess(f, links) })
	}
}

// checkProcess asks for the id of the connected engine process, and tells the feed if it has changed.
func (p *Publisher) checkProcess(f *stream.Feed, links int) {
	for range processIDTries {
		asked := time.Now()
		life := p.o.ProcessID(p.sending)
		p.mu.Lock()
		over, was, lived := p.connections != links, p.processID, p.processAskedAt
		if life != "" && !over {
			p.processID, p.processAskedAt = life, asked
		}
		p.mu.Unlock()
		if life != "" && !over && was != "" && was != life {
			p.o.Log.Info("the engine process was replaced")
			f.ProcessRestarted(lived)
		}
		if life != "" || over || !retry.Sleep(p.sending, heartbeat) {
			return
		}
	}
}

// setFlag sets or clears a flag of the worker's state. The caller holds mu.
func (p *outbox) setFlag(flag byte, set bool) {
	if was := p.flags&flag != 0; was != set {
		p.flags ^= flag
		p.waiting = true
	}
}

// queueSnapshotRequest keeps a router's request until there is a snapshot.
func (p *Publisher) queueSnapshotRequest(m *nats.Msg) {
	if m.Reply == "" || len(m.Header) > 0 { // not a router's: an answer of the NATS server's, sent here on a client's request
		return
	}
	p.mu.Lock()
	if len(p.waitingRouters) < maxWaitingRouters {
		p.waitingRouters = append(p.waitingRouters, m)
	} else {
		p.stats.Unanswered++
	}
	p.mu.Unlock()
	p.wake.Ring()
}

// Leave implements stream.Sink: within leaveTime it publishes what waits, marks the engine as away, and writes a snapshot. What
// the worker holds stays known.
func (p *Publisher) Leave() {
	p.cancel()
	p.running.Wait()
	_ = p.snapshotRequests.Unsubscribe()
	if !p.o.NATS.IsConnected() || p.fenced {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	if p.unfinished != nil && p.deliver(ctx, p.unfinished) != nil {
		return
	}
	p.mu.Lock()
	p.setFlag(flagAway, true)
	p.mu.Unlock()
	if m, s := p.takeMessage(true); m != nil && p.deliver(ctx, m) == nil && s != nil {
		p.save(ctx, s)
	}
}

// send publishes what waits, and a heartbeat periodically.
func (p *Publisher) send(ctx context.Context) {
	beat := time.NewTicker(cmp.Or(p.o.beat, heartbeat))
	defer beat.Stop()
	look := time.NewTicker(min(cmp.Or(p.o.every, snapshotEvery), heartbeat))
	defer look.Stop()
	for beats := uint64(0); ; {
		now := false
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			now = true
		case <-look.C:
		case <-p.wake:
		}
		if !p.o.NATS.IsConnected() { // keep what comes meanwhile, and publish it later
			continue
		}
		if m, s := p.takeMessage(false); m != nil {
			if err := p.deliver(ctx, m); errors.Is(err, errFenced) {
				p.stop()
				return
			} else if err != nil { // ctx has ended
				p.unfinished = m
				if s != nil { // a snapshot that was not published
					p.mu.Lock()
					p.saving, p.changed = false, true
					p.mu.Unlock()
				}
				return
			} else if s != nil {
				p.running.Go(func() { p.save(ctx, s) })
			}
		}
		if now {
			beats++
			_ = p.o.NATS.Publish(beatSubjects+p.rankLine.suffix, appendBeat(nil, p.agent, beats))
		}
	}
}

// outgoing is a message of the line.
type outgoing struct {
	head
	payload []byte
	number  uint64 // in the stream, once it is there
	made    int64  // when that stream was created
}

// snapshot is what the worker holds after a message.
type snapshot struct {
	of     *outgoing
	blocks []indexer.Block
	groups []kvevent.Event // of further KV cache groups
	rest   []kvevent.Event // from stream.Feed.PendingEvents
	form   block.Form
	links  int
	asking []*nats.Msg
}

// takeMessage returns a message of what waits, nil if nothing does, and a snapshot of the state after it if one is due.
func (p *Publisher) takeMessage(leaving bool) (m *outgoing, s *snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	every := cmp.Or(p.o.every, snapshotEvery) + time.Duration(p.stats.SnapshotBytes/snapshotPace)*time.Second
	if most := p.o.NATS.MaxPayload(); most > 0 && int64(headBytes+len(p.events)) > most {
		p.drop()
	}
	due := p.dropped || len(p.waitingRouters) > 0 || p.changed && (leaving || time.Since(p.saved) >= every)
	due = due && !p.saving
	if !p.waiting && !due {
		return nil, nil
	}
	if p.dropped {
		p.seq++
	}
	m = &outgoing{head: p.head, payload: append(p.head.append(make([]byte, 0, headBytes+len(p.events))), p.events...)}
	p.events = p.events[:0]
	if cap(p.events) > maxQueued/4 {
		p.events = nil
	}
	p.seq++
	p.waiting = false
	if due {
		list, err := p.index.Blocks(p.slot)
		if err == nil {
			s = &snapshot{of: m, blocks: list, groups: p.index.GroupEvents(p.slot), form: p.form,
				links: p.connections, asking: p.waitingRouters, rest: p.beginEvents}
			if p.feed != nil {
				s.rest = nil
				if list := p.index.Doubtful(p.slot); len(list) > 0 {
					s.rest = []kvevent.Event{{Kind: kvevent.Lost, EngineHashes: list}}
				}
				s.rest = append(s.rest, p.feed.PendingEvents()...)
			}
			p.changed, p.dropped, p.saving, p.waitingRouters = false, false, true, nil
		}
	}
	return m, s
}

var errFenced = errors.New("a newer agent publishes for this worker")

// deliver publishes a message, retrying until the stream has it. It ends early with ctx, or with errFenced.
func (p *Publisher) deliver(ctx context.Context, m *outgoing) error {
	pause := retry.Backoff{First: retryPause}
	for {
		before := p.lastUncertain
		err := p.attempt(ctx, m)
		if err == nil && before {
			p.o.Log.Info("events are published")
		}
		if err == nil || ctx.Err() != nil || errors.Is(err, errFenced) {
			return err
		}
		p.lastUncertain = true
		p.mu.Lock()
		p.stats.Failed++
		p.failing = true
		p.mu.Unlock()
		if !before {
			p.o.Log.Warn("events cannot be published; keeping them and retrying", zap.Error(err))
		}
		if !pause.Wait(ctx) {
			return ctx.Err()
		}
	}
}

// attempt publishes once, on the condition that no other agent has published since. After a failure it first checks what the stream
// has: the message may have arrived without its confirmation.
func (p *Publisher) attempt(ctx context.Context, m *outgoing) error {
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	if p.lastUncertain {
		e, err := p.rankLine.end(ctx)
		if err != nil {
			return err
		}
		p.mu.Lock()
		if p.streamCreated != e.made { // numbers begin again: a snapshot's tag has an old one
			p.streamCreated, p.last, p.changed = e.made, 0, true
		}
		p.mu.Unlock()
		switch {
		case e.message == nil:
			p.last = 0
		case e.unreadable != nil && e.message.Sequence > p.last: // not from an agent
			p.last = e.message.Sequence
		case e.unreadable == nil && e.agent == p.agent && e.message.Sequence >= p.last:
			p.last = e.message.Sequence
			if e.seq == m.seq {
				p.published(m)
				return nil
			}
		case e.unreadable == nil && e.epoch >= p.epoch && e.message.Sequence > p.last:
			return errFenced
		}
	}
	ack, err := p.rankLine.js.PublishMsg(ctx, &nats.Msg{Subject: p.rankLine.subject(), Data: m.payload},
		jetstream.WithExpectLastSequencePerSubject(p.last))
	if err == nil {
		p.last = ack.Sequence
		p.published(m)
	}
	return err
}

func (p *Publisher) published(m *outgoing) {
	p.lastUncertain = false
	p.mu.Lock()
	m.number, m.made = p.last, p.streamCreated
	p.stats.Messages++
	p.stats.Bytes += uint64(len(m.payload))
	p.failing = false
	p.mu.Unlock()
}

// stop ends the publishing for good because of a newer agent.
func (p *Publisher) stop() {
	p.o.Log.Error("a newer agent publishes this worker's events; stopping (two agents for one worker, or two workers with one name?)",
		zap.String("worker", p.o.Worker), zap.Int("rank", p.o.Rank))
	_ = p.snapshotRequests.Unsubscribe()
	p.mu.Lock()
	p.fenced, p.events, p.waitingRouters = true, nil, nil
	p.stats.Refused++
	p.mu.Unlock()
}

// save writes a snapshot whose message was published, and answers the routers that asked for it.
func (p *Publisher) save(ctx context.Context, s *snapshot) {
	ctx, cancel := context.WithTimeout(ctx, snapshotTime)
	defer cancel()
	b := appendBlocks(s.of.head.append(nil), s.blocks, s.groups, s.form, math.MaxInt)
	for i := range s.rest {
		b = appendEvent(b, &s.rest[i], false)
	}
	t := snapshotTag{Epoch: s.of.epoch, Seq: s.of.seq, Number: s.of.number, Made: s.of.made}
	if p.o.ProcessID != nil {
		life := p.o.ProcessID(ctx)
		p.mu.Lock()
		if p.connections == s.links { // the engine was connected throughout
			t.Life = life
		}
		p.mu.Unlock()
	}
	err := p.rankLine.save(ctx, t, b)
	answer := ""
	p.mu.Lock()
	p.saving, p.saved, p.stats.SnapshotBytes = false, time.Now(), len(b)
	if err == nil {
		p.stats.Snapshots++
		p.stats.SnapshotAt = p.saved
	} else {
		p.changed, answer = true, err.Error()
	}
	ended := errors.Is(ctx.Err(), context.Canceled) // a last snapshot follows
	if err != nil && !ended {
		p.stats.SnapshotErrors++
	}
	p.mu.Unlock()
	if err != nil && !ended {
		p.o.Log.Warn("a snapshot was not written", zap.Error(err))
	}
	for _, m := range s.asking {
		_ = m.Respond([]byte(answer))
	}
	p.wake.Ring() // more may have asked
}
