// Package stream keeps an index in sync with one worker's rank. The rank's messages may arrive late, repeatedly or incompletely;
// the index then equals what the worker holds, or less with the slot marked partial.
//
//	Source ─ messages (epoch, seq, payload) ─▶ queue ─▶ order ─▶ Decoder ─▶ events ─▶ Sink (the index, or the bus)
//	         replay ◀──────────────────────────────────  gap, restart, join
//
//	feed.go     Options, Start, Close; both ends of the queue
//	order.go    sequence numbers: which message is next, a duplicate, after a gap, of another incarnation
//	apply.go    events → Sink
//	doubt.go    what was reported before messages were lost for good
//	orphans.go  blocks whose parent is not known; inferredprefixes.go: parents that requests revealed
//	stats.go    counters and state
//	backfill.go what another router has received, if the worker cannot replay it any more
//	index.go    the Sink that is an index
//	budget.go   the memory that the feeds of all workers share
//	zmq.go      the Source that is a pair of ZeroMQ sockets; lookup.go: one that asks the worker where they are
//
// What may be wrong is dropped or marked as doubtful: too little in the index costs a hit, too much promises a hit that the
// worker does not have. Cost: two goroutines a rank, a queue of at most 64 MiB (256 MiB for all, Budget), about 0.2 µs a block from
// payload to index. Nothing here returns an error to a caller: errors are counted in Stats, and the last one is in Stats.LastError.
package stream

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/mmhash/block"
)

// Message is one batch as a transport carries it.
type Message struct {
	// Epoch rises with each incarnation of the publisher. It is 0 if the transport has none (ZMQ): a new incarnation then shows
	// in the sequence numbers.
	Epoch   uint64
	Seq     uint64 // increases by one with each batch
	Payload []byte
	// Batch, instead of Payload, is all that is held after this message, as another router knows it; see Backfill.
	Batch *kvevent.Batch
	sum   uint64 // with Batch: of the publisher's own payload
}

// checksum returns the payload's XXH3-64.
func (m *Message) checksum() uint64 {
	if m.Batch != nil {
		return m.sum
	}
	return xxh3.Hash(m.Payload)
}

// Source delivers a rank's messages, such as ZMQ and a source of package bus.
type Source interface {
	// Run delivers live messages until ctx ends: it calls Up after each (re)connection, Offer for each message, and Down when a
	// connection is lost.
	Run(ctx context.Context, f *Feed) error
	// Replay calls each, in order, for the messages from number from on that the publisher still has, or for one message that
	// begins with Cleared and so has everything. errors.ErrUnsupported: nothing can replay.
	Replay(ctx context.Context, from uint64, each func(Message) error) error
}

// Restarter is a decoder that learns from events what does not change while the engine runs; Restart forgets it.
type Restarter interface{ Restart() }

// Sink receives what a rank holds: IndexSink, or the bus's Publisher. All calls come from one goroutine.
type Sink interface {
	// Store adds an event's blocks; an error that wraps indexer.ErrUnknownParent means that their parent is not held.
	Store(e *kvevent.Event) error
	// Copy adds one copy of each block in another tier than those that hold it, and returns how many are not held.
	Copy(tier kvevent.Tier, engineHashes []uint64) (unknown int)
	// Remove removes one copy of each block from a tier and returns how many were not there.
	Remove(tier kvevent.Tier, engineHashes []uint64) (unknown int)
	// Clear removes everything.
	Clear()
	// Done ends a batch. partial: the worker may hold more than its events said. upperBound: see
	// kvevent.Batch.
	Done(partial, upperBound bool)
	// Held returns the index slot that holds it all, so that a gap that cannot be filled leaves it in doubt; with a nil index the
	// gap clears it. Like other calls it belongs to a batch, which Done ends.
	Held() (*indexer.Index, indexer.SlotID)
	// Leave removes everything for good.
	Leave()
}

// Options configure a Feed.
type Options struct {
	Source  Source
	Decoder kvevent.Decoder
	Sink    Sink
	// BlockSize is the number of tokens in a block that the rank is configured to have; 0: none is configured. What its events say is used.
	BlockSize int
	// Chunk is the size of the model's chunked attention in tokens, which vLLM's events do not say; 0: as the decoder assumes.
	Chunk int
	// Stored, if set, is called with every stored event before it is applied, in the feed's goroutine: for audit and learning.
	// The event is valid until it returns.
	Stored func(*kvevent.Event)
	// OnEvent, if set, is called in the feed's goroutine with each event before it is applied, for others that follow the sink by feeds of
	// their own. It does not get events of another block size than the rank's. Where a gap leaves what is held cleared or in doubt, a
	// Cleared or a Lost comes.
	OnEvent func(*kvevent.Event)
	// From is where a stream that was followed before continues, with a sink that holds what it held there. The first replay
	// shows whether the publisher is still the same.
	From Position
	// Form is the form of the blocks that the sink holds there; the zero value: it holds none.
	Form block.Form
	// InitialEvents is what the sink at From does not show: what was in doubt, as a kvevent.Lost, and the earlier feed's PendingEvents.
	InitialEvents []kvevent.Event
	// Applied, if set, is called in the feed's goroutine with the position after each batch, before the sink's Done.
	Applied func(Position)
	// OnLink, if set, is called when the source's connection is made and lost, and when Stats.Mute or Stats.Unreadable changes.
	OnLink func(f *Feed, up bool)
	// ReplaySlots, if set, limits by its capacity how many of the feeds that share it run a replay at once: a source whose answer is
	// one snapshot has all of it in memory. Waiting for a turn does not count as the replay's time.
	ReplaySlots chan struct{}
	// Idle is the silence after which the last message is requested again, which reveals a restart, a lost message, or a dead
	// publisher behind an open connection. 0: never. Only for sources whose Replay is cheap.
	Idle time.Duration
	// Budget is what the feed shares with others, as this Worker; nil: it has one of its own.
	Budget *Budget
	Worker fair.Client

	doubtTime time.Duration // for tests; 0: the package's
}

// Position is a position in a publisher's stream: after its message number Next-1, whose payload has the XXH3-64 Sum. The zero
// value is the beginning.
type Position struct {
	Next, Sum           uint64
	Partial, UpperBound bool // as passed to Sink.Done
}

const (
	queueMessages = 4096
	queueBytes    = 64 << 20
	// replayTime limits one replay. vLLM's publisher answers within 100 ms and sends about 100 MB/s.
	replayTime = 10 * time.Second
	// settleTime is the delay after a connection until another replay, for messages that were published before the subscription
	// took effect.
	settleTime = time.Second
	// epochTime is how long the newest epoch must be silent before an older one is followed again.
	epochTime = 30 * time.Second
)

// Feed follows one worker-rank's stream and applies it to its sink.
type Feed struct {
	content
	cancel  context.CancelFunc
	running sync.WaitGroup
	wake    retry.Bell
}

// content is what the stream's messages say that the rank holds. Only applyQueue's goroutine uses it, but for shared.
type content struct {
	shared
	o Options
	order
	form         block.Form // of the blocks held, as the last stored event has it
	comparedSize int        // with the configured one
	orphans      orphans
	orphanBytes  int64 // of Budget.orphans
	stems        stems
	doubt        doubt
}

// shared is what callers and the source give to a feed and are told of it. It is safe for concurrent use.
type shared struct {
	mu             sync.Mutex
	queue          queue
	stats          Stats
	unreadInRow    int    // messages in a row that could not be read
	resyncWanted   bool   // Resync was called
	queuedStems    []Stem // by Learn
	queuedBlocks   int    // of them
	heldWaiting    []*heldQuestion
	othersWaiting  []chan<- struct{} // by AskOthers
	restartedAfter time.Time         // by ProcessRestarted; zero: not called
	link           func(up bool)     // Options.OnLink of the feed; nil: nobody is told
	staleSince     atomic.Int64      // when the stream stopped being live, in Unix ns; 0 while it is live
	doubtSince     atomic.Int64      // doubt.since in Unix ns; 0: none
}

// Start runs a feed until Close.
func Start(o Options) *Feed {
	ctx, cancel := context.WithCancel(context.Background())
	o.doubtTime = cmp.Or(o.doubtTime, doubtTime)
	if o.Budget == nil {
		o.Budget = NewBudget()
	}
	f := &Feed{content: content{o: o, form: o.Form}, cancel: cancel, wake: make(retry.Bell, 1)}
	f.queue = queue{room: o.Budget.queued, worker: o.Worker}
	if o.OnLink != nil {
		f.link = func(up bool) { o.OnLink(f, up) }
	}
	if d, ok := o.Decoder.(interface{ Bound(kvevent.Room) }); ok {
		d.Bound(f.reserve)
	}
	f.stats.Partial = true // until a batch shows otherwise
	if p := o.From; p.Next > 0 {
		f.started, f.next, f.partial, f.upperBound, f.stats.Partial = true, p.Next, p.Partial, p.UpperBound, p.Partial
		*f.appliedAt(p.Next - 1) = fingerprint{p.Next, p.Sum}
	}
	f.o.OnEvent = nil // readers of the sink know these
	for i := range o.InitialEvents {
		f.applyEvent(&o.InitialEvents[i], &Stats{})
	}
	f.o.OnEvent = o.OnEvent
	if len(o.InitialEvents) > 0 {
		f.reportBounds()
	}
	f.updateStale()
	f.running.Go(func() { f.listen(ctx) })
	f.running.Go(func() { f.applyQueue(ctx) })
	return f
}

// listen runs the source, and restarts it after a panic. Any other error is final.
func (f *Feed) listen(ctx context.Context) {
	pause := retry.Backoff{First: firstRetry, Longest: lastRetry}
	for {
		err := guard.Call(func() error { return f.o.Source.Run(ctx, f) })
		if ctx.Err() != nil {
			return
		}
		f.Down(err)
		if !isPanic(err) {
			return
		}
		pause.Wait(ctx)
	}
}

// panicked reports whether an error is a panic, and counts it if so.
func (s *shared) panicked(err error) bool {
	if !isPanic(err) {
		return false
	}
	s.update(func(s *Stats) { s.Panics++; s.LastError = err.Error() })
	return true
}

func isPanic(err error) bool {
	var p *guard.Panic
	return errors.As(err, &p)
}

// Close ends the feed and removes what it held from its sink. It returns when all its goroutines have ended.
func (f *Feed) Close() {
	f.cancel()
	f.running.Wait()
	f.giveBack()
	f.o.Sink.Leave()
}

// Offer queues a copy of one live message. It never blocks: if the queue is full, the message is dropped and counted, and the
// feed requests a replay. For the source's goroutine.
func (f *Feed) Offer(m Message) {
	f.mu.Lock()
	if !f.stats.Connected { // reconnected without Up: not live until a replay has brought what came meanwhile
		f.stats.Connected, f.stats.CaughtUp = true, false
		f.queue.markConnection()
	}
	f.stats.LastMessage = time.Now()
	spoke := f.stats.Mute
	f.stats.Mute = false
	if !f.queue.push(m) {
		f.stats.Drops++
	}
	f.updateStale()
	f.mu.Unlock()
	f.wake.Ring()
	if spoke && f.link != nil {
		f.link(true)
	}
}

// Resync is for a caller that found that the index is wrong about this worker: the feed requests a replay from 0. What is known
// stays until the answer comes, or is cleared at once if nothing can replay. Resync does not block.
func (f *Feed) Resync() {
	f.mu.Lock()
	f.resyncWanted = true
	f.mu.Unlock()
	f.wake.Ring()
}

// ProcessRestarted is for a caller that found that the engine's process is not the one that ran at the given time. The feed requests a
// replay and, unless it has noticed a restart since, clears what is known if nothing can replay. ProcessRestarted does not block.
func (f *Feed) ProcessRestarted(was time.Time) {
	f.mu.Lock()
	f.restartedAfter = was
	f.mu.Unlock()
	f.wake.Ring()
}

// Received returns a hold of the room for what is received of the feed's worker.
func (f *Feed) Received() fair.Hold { return f.o.Budget.Received(f.o.Worker) }

// Up is called by the source after each (re)connection.
func (f *Feed) Up() {
	f.mu.Lock()
	f.stats.Connected, f.stats.CaughtUp, f.stats.Mute = true, false, false
	f.stats.Unreadable, f.unreadInRow = "", 0 // it may be another publisher
	f.queue.markConnection()
	f.updateStale()
	f.mu.Unlock()
	f.wake.Ring()
	if f.link != nil {
		f.link(true)
	}
}

// Down is called by the source when it has lost its connection, with the reason. A panic is counted as one.
func (f *Feed) Down(err error) {
	f.update(func(s *Stats) {
		s.Connected, s.Lost = false, err
		if err != nil {
			s.LastError = err.Error()
		}
		if isPanic(err) {
			s.Panics++
		}
	})
	if f.link != nil {
		f.link(false)
	}
}

// Malformed is called by the source for received data that is not a message, with the reason.
func (f *Feed) Malformed(reason string) {
	f.update(func(s *Stats) { s.Malformed++; s.LastError = reason })
	f.noteReadable(reason)
}

// unreadableAfter is how many messages in a row cannot be read until the stream counts as unreadable: one may be damaged, or of
// another publisher on the same socket.
const unreadableAfter = 3

// noteReadable records that a message could be read (""), or why not.
func (s *shared) noteReadable(why string) {
	s.mu.Lock()
	was := s.stats.Unreadable
	s.unreadInRow++
	if why == "" {
		s.unreadInRow, s.stats.Unreadable = 0, ""
	} else if s.unreadInRow >= unreadableAfter && was == "" {
		s.stats.Unreadable = why
	}
	changed, up := s.stats.Unreadable != was, s.stats.Connected && s.stats.Unreadable == ""
	s.updateStale()
	s.mu.Unlock()
	if changed && s.link != nil {
		s.link(up)
	}
}

// refused records that a peer other than the worker connected.
func (f *Feed) refused(peer netip.Addr) {
	f.update(func(s *Stats) {
		s.Strangers++
		s.LastError = "a connection from " + peer.String() + " was refused: it is not the worker's address"
	})
}

// applyQueue applies the queued messages in order, catches up after a connection, and asks again after a failed replay or if the
// publisher is silent.
func (f *Feed) applyQueue(ctx context.Context) {
	check := time.NewTimer(time.Hour)
	check.Stop()
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-check.C:
			f.catchUp(ctx)
			f.setCaughtUp()
			f.setMute()
			f.settle()
			f.reportBounds()
			if next := f.nextCheck(f.o.Idle); next > 0 {
				check.Reset(next)
			}
		case <-f.wake:
			f.mu.Lock()
			resync, reborn := f.resyncWanted, f.restartedAfter
			f.resyncWanted, f.restartedAfter = false, time.Time{}
			f.mu.Unlock()
			if resync && reborn.IsZero() {
				f.resync(ctx)
				if next := f.nextCheck(f.o.Idle); next > 0 {
					check.Reset(next)
				}
			}
			f.answerHeld()
			f.askOthers(ctx)
			f.takeLearned()
			for more := true; more && ctx.Err() == nil; {
				f.mu.Lock()
				m, up, lost := f.queue.pop()
				f.mu.Unlock()
				next := f.o.Idle
				switch {
				case up:
					f.backoff, f.notBefore = 0, time.Time{} // failures while the publisher was away do not matter now
					f.catchUp(ctx)
					f.setCaughtUp()
					next = min(next, settleTime)
				case m != nil:
					f.takeMessage(ctx, *m)
					if f.replayOwed && time.Now().After(f.notBefore) { // even if the queue is never empty
						f.catchUp(ctx)
					}
				case lost: // and no later message has revealed the gap
					if !f.catchUp(ctx) {
						f.forget()
						f.markDoubtful(nil)
					}
				default:
					more = false
				}
				next = f.nextCheck(next)
				if more && next > 0 {
					check.Reset(next)
				}
			}
			if !reborn.IsZero() && ctx.Err() == nil { // after the queue, whose messages are of the process before
				f.replaceIncarnation(ctx, reborn)
				if resync && !f.restarted.After(reborn) {
					f.resync(ctx)
				}
				if next := f.nextCheck(f.o.Idle); next > 0 {
					check.Reset(next)
				}
			}
		}
	}
}

// setCaughtUp records that everything available from the publisher was applied.
func (f *Feed) setCaughtUp() {
	if !f.replayOwed {
		f.update(func(s *Stats) { s.CaughtUp = true })
	}
}

// setMute sets Stats.Mute after the publisher was asked: until then an idle and a dead one look the same.
func (f *Feed) setMute() {
	f.mu.Lock()
	was := f.stats.Mute
	f.stats.Mute = f.replayOwed && f.stats.Connected && f.o.Idle > 0 && (was || time.Since(f.stats.LastMessage) >= f.o.Idle/2)
	now := f.stats.Mute
	f.updateStale()
	f.mu.Unlock()
	if now != was && f.link != nil {
		f.link(!now)
	}
}

// nextCheck returns how long to wait before asking the publisher again: idle, or less if a replay is owed; 0 means never.
func (f *Feed) nextCheck(idle time.Duration) time.Duration {
	if f.replayOwed && (idle == 0 || f.backoff < idle) {
		return max(time.Until(f.notBefore), time.Millisecond)
	}
	if !f.doubt.since.IsZero() {
		if left := max(time.Until(f.doubt.since.Add(f.o.doubtTime)), time.Millisecond); idle == 0 || left < idle {
			return left
		}
	}
	return jitter(idle)
}

// jitter returns a random duration of d on average, so that feeds that lost their streams at the same moment do not all ask again
// together.
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return d/2 + rand.N(d)
}

// queue is bounded in messages and bytes. A nil item marks a new connection.
type queue struct {
	items   []*Message
	bytes   int    // of them, and of last
	dropped bool   // a message was dropped since the queue was last empty
	last    []byte // payload of the message popped last, in use until the next pop
	spare   []byte // memory for the next message pushed

	room   *fair.Room // Budget.queued; nil: only this queue's bounds
	worker fair.Client
}

// push copies a message into the queue; it returns false if there is no room.
func (q *queue) push(m Message) bool {
	if len(q.items) >= queueMessages || q.bytes+len(m.Payload) > queueBytes ||
		q.room != nil && !q.room.TryTake(q.worker, int64(len(m.Payload)+messageBytes)) {
		q.dropped = true
		return false
	}
	m.Payload, q.spare = append(q.spare, m.Payload...), nil
	q.items = append(q.items, &m)
	q.bytes += len(m.Payload)
	return true
}

// give returns what a message took of the room.
func (q *queue) give(payload int) {
	if q.room != nil {
		q.room.Give(q.worker, int64(payload+messageBytes))
	}
}

// markConnection adds the mark of a new connection after the messages of the old one.
func (q *queue) markConnection() {
	if n := len(q.items); n == 0 || q.items[n-1] != nil {
		q.items = append(q.items, nil)
	}
}

// maxSpare limits the memory that a feed keeps for its next message.
const maxSpare = 32 << 10

// pop returns the next message, or up for a connection's mark. lost is true once when the queue is empty and messages were
// dropped since it was last empty.
func (q *queue) pop() (m *Message, up, lost bool) {
	if q.last != nil {
		q.bytes -= len(q.last)
		q.give(len(q.last))
		if cap(q.last) <= maxSpare {
			q.spare = q.last[:0]
		}
		q.last = nil
	}
	if len(q.items) == 0 {
		lost, q.dropped = q.dropped, false
		return nil, false, lost
	}
	m, q.items = q.items[0], q.items[1:]
	if m == nil {
		return nil, true, false
	}
	q.last = m.Payload
	return m, false, false
}
