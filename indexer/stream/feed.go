// Package feed keeps an index true to one worker-rank: it takes the rank's messages in whatever order and number they
// come, and the index ends equal to what the worker holds, or to less of it and marked so.
//
//	Source ─ messages (epoch, seq, payload) ─▶ queue ─▶ order ─▶ Decoder ─▶ events ─▶ Sink (the index, or the bus)
//	         replay ◀──────────────────────────────────  gap, restart, join
//
//	feed.go     Options, Start, Close; the queue's two ends
//	order.go    sequence numbers: what is new, double, missing, from another life
//	apply.go    events → Sink
//	offload.go  blocks that are told by engine hash alone
//	stats.go    what happened
//	index.go    the Sink that is an index
//	zmq.go      the Source that is a pair of ZeroMQ sockets; asked.go one that asks the worker where they are
//
// The rule behind it all: what may be wrong is thrown away. Too little in the index costs a hit, too much costs a
// promise that the worker does not keep.
package stream

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/internal/guard"
)

// Message is one batch as it travels.
type Message struct {
	// Epoch rises when the publisher starts anew. 0 where a transport has none (ZMQ): there a new life is recognised by
	// its numbers.
	Epoch   uint64
	Seq     uint64 // rises by one a batch
	Payload []byte
}

// Source brings a worker-rank's messages. package zmq (through ZMQ) and package bus are sources.
type Source interface {
	// Run hands live messages to the feed until ctx ends: Up after each (re)connection, Offer for each message.
	Run(ctx context.Context, f *Feed) error
	// Replay calls each, in order, for the buffered messages from seq on, or for one message that begins with a clear or
	// a snapshot and tells everything. errors.ErrUnsupported: there is nothing to ask.
	Replay(ctx context.Context, from uint64, each func(Message) error) error
}

// Decoder turns a payload into normal form (package vllm, package bus).
type Decoder interface {
	Decode(payload []byte) (kvevent.Batch, error)
}

// Sink takes what a worker-rank holds: IndexSink, or the bus's publisher. Calls come from one goroutine.
type Sink interface {
	// Store takes blocks; errors that wrap indexer.ErrUnknownParent are counted apart.
	Store(e *kvevent.Event) error
	// Remove takes one copy of each away and gives how many were not there.
	Remove(tier kvevent.Tier, engineHashes []uint64) (unknown int)
	// Clear takes away everything.
	Clear()
	// Load replaces everything by a snapshot of package indexer; on an error nothing is left.
	Load(snapshot []byte) error
	// Done ends a batch; partial says that the worker may hold more than was told, recurrent that a hit needs more than that
	// (event.Batch).
	Done(partial, recurrent bool)
	// Leave ends it all.
	Leave()
}

// Options sets up a Feed.
type Options struct {
	Source  Source
	Decoder Decoder
	Sink    Sink
	// BlockSize is the tokens a block that this rank must have; 0 takes the first that comes. Events of another block
	// size are counted and left out: their hashes match no request of the rank's class.
	BlockSize int
	// Stored, if set, sees every stored event before it is applied, in the feed's goroutine: for audit and learning. The
	// event is good until it returns.
	Stored func(*kvevent.Event)
	// OtherSize, if set, is told of each block size but BlockSize that events carry, when it changes, in the feed's
	// goroutine.
	OtherSize func(tokens int)
	// Link, if set, is told when the source's connection comes and goes, in the source's goroutine.
	Link func(up bool)
	// Idle is how long a silent publisher is believed to be unchanged; then its last message is asked for again, which
	// shows a restart or a lost message. 0: never. Only for sources whose Replay is cheap.
	Idle time.Duration
}

const (
	queueMessages = 4096
	queueBytes    = 64 << 20
	// replayTime bounds one replay. A publisher of vLLM answers within 100 ms and sends some 100 MB/s.
	replayTime = 10 * time.Second
	// settleTime after a connection is made, a replay finds what was published while the subscription was on its way.
	settleTime = time.Second
	// epochTime is how long the newest epoch may be silent before an older one is believed.
	epochTime = 30 * time.Second
)

// Feed is one worker-rank's stream being applied.
type Feed struct {
	o       Options
	cancel  context.CancelFunc
	running sync.WaitGroup
	wake    chan struct{}

	mu           sync.Mutex
	queue        queue
	stats        Stats
	resyncWanted bool         // Resync was called
	staleSince   atomic.Int64 // Unix ns of when the stream stopped being live; 0: it is

	order
	offload offload
}

// Start runs a feed until Close.
func Start(o Options) *Feed {
	ctx, cancel := context.WithCancel(context.Background())
	f := &Feed{o: o, cancel: cancel, wake: make(chan struct{}, 1)}
	f.stats.Partial = true // until told otherwise
	f.updateStale()
	f.running.Go(func() { f.listen(ctx) })
	f.running.Go(func() { f.applyQueue(ctx) })
	return f
}

// listen runs the source, and runs it again after a panic. An error that it ends with is for good.
func (f *Feed) listen(ctx context.Context) {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		err := guard.Call(func() error { return f.o.Source.Run(ctx, f) })
		if ctx.Err() != nil {
			return
		}
		f.Down(err)
		if !isPanic(err) {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(jitter(wait)):
		}
	}
}

// panicked counts an error that is a panic, and reports whether it is one.
func (f *Feed) panicked(err error) bool {
	if !isPanic(err) {
		return false
	}
	f.update(func(s *Stats) { s.Panics++; s.LastError = err.Error() })
	return true
}

func isPanic(err error) bool {
	var p *guard.Panic
	return errors.As(err, &p)
}

// Close ends the feed and takes what it held out of its sink. It returns when all goroutines have ended.
func (f *Feed) Close() {
	f.cancel()
	f.running.Wait()
	f.o.Sink.Leave()
}

// Offer takes one live message, copying the payload, and never blocks: when the queue is full the message is dropped and
// counted, and the feed asks for a replay. For the source's goroutine.
func (f *Feed) Offer(m Message) {
	f.mu.Lock()
	if !f.stats.Connected { // back without a word: what came meanwhile is asked for, before anybody takes us for live
		f.stats.Connected, f.stats.CaughtUp = true, false
		f.queue.markConnection()
	}
	f.stats.LastMessage = time.Now()
	if !f.queue.push(m) {
		f.stats.Drops++
	}
	f.updateStale()
	f.mu.Unlock()
	f.signal()
}

// Resync says that what is known of the worker has turned out wrong: it is asked for everything anew, and what is known
// goes when the answer comes, or at once where there is nothing to ask. It does not wait.
func (f *Feed) Resync() {
	f.mu.Lock()
	f.resyncWanted = true
	f.mu.Unlock()
	f.signal()
}

// Up says that the source is connected (again).
func (f *Feed) Up() {
	f.mu.Lock()
	f.stats.Connected, f.stats.CaughtUp = true, false
	f.queue.markConnection()
	f.updateStale()
	f.mu.Unlock()
	f.signal()
	if f.o.Link != nil {
		f.o.Link(true)
	}
}

// Down says that the source has lost its connection; err tells why. A panic is counted.
func (f *Feed) Down(err error) {
	f.update(func(s *Stats) {
		s.Connected = false
		if err != nil {
			s.LastError = err.Error()
		}
		if isPanic(err) {
			s.Panics++
		}
	})
	if f.o.Link != nil {
		f.o.Link(false)
	}
}

// Malformed says that something came that is no message.
func (f *Feed) Malformed() {
	f.update(func(s *Stats) {
		s.Malformed++
		s.LastError = "a message without a sequence number (another topic's publisher?)"
	})
}

func (f *Feed) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// applyQueue applies what the queue brings, in order, and looks after the stream when it is silent.
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
			if next := f.nextCheck(f.o.Idle); next > 0 {
				check.Reset(next)
			}
		case <-f.wake:
			f.mu.Lock()
			doubt := f.resyncWanted
			f.resyncWanted = false
			f.mu.Unlock()
			if doubt {
				f.resync(ctx)
				if next := f.nextCheck(f.o.Idle); next > 0 {
					check.Reset(next)
				}
			}
			for more := true; more && ctx.Err() == nil; {
				f.mu.Lock()
				m, up, lost := f.queue.pop()
				f.mu.Unlock()
				next := f.o.Idle
				switch {
				case up:
					f.catchUp(ctx)
					f.setCaughtUp()
					next = min(next, settleTime)
				case m != nil:
					f.takeMessage(ctx, *m)
					if f.replayOwed && time.Now().After(f.notBefore) { // a stream that never pauses must not put it off
						f.catchUp(ctx)
					}
					f.mu.Lock()
					f.queue.recycle(m)
					f.mu.Unlock()
				case lost:
					f.afterDrop(ctx)
				default:
					more = false
				}
				if next = f.nextCheck(next); more && next > 0 {
					check.Reset(next)
				}
			}
		}
	}
}

// setCaughtUp notes that what was before the connection is known as far as it can be.
func (f *Feed) setCaughtUp() {
	if !f.replayOwed {
		f.update(func(s *Stats) { s.CaughtUp = true })
	}
}

// nextCheck is when to look again: sooner than idle if a replay is owed; 0 is never.
func (f *Feed) nextCheck(idle time.Duration) time.Duration {
	if f.replayOwed && (idle == 0 || f.backoff < idle) {
		return max(time.Until(f.notBefore), time.Millisecond)
	}
	return jitter(idle)
}

// jitter is a wait of about d: what many feeds lost at one moment, or began to wait for, they do not all ask for at another.
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return d/2 + rand.N(d)
}

// queue is bounded in messages and bytes; its buffers are used again. A nil item marks a new connection.
type queue struct {
	items   []*Message
	free    []*Message
	bytes   int
	dropped bool // something was dropped since the queue was last empty
}

func (q *queue) push(m Message) bool {
	if len(q.items) >= queueMessages || q.bytes+len(m.Payload) > queueBytes {
		q.dropped = true
		return false
	}
	var own *Message
	if n := len(q.free); n > 0 {
		own, q.free = q.free[n-1], q.free[:n-1]
	} else {
		own = new(Message)
	}
	own.Epoch, own.Seq, own.Payload = m.Epoch, m.Seq, append(own.Payload[:0], m.Payload...)
	q.items = append(q.items, own)
	q.bytes += len(m.Payload)
	return true
}

func (q *queue) markConnection() {
	if n := len(q.items); n == 0 || q.items[n-1] != nil {
		q.items = append(q.items, nil)
	}
}

// pop gives the next message, or up for a mark, or, once after losses when nothing is left, lost.
func (q *queue) pop() (m *Message, up, lost bool) {
	if len(q.items) == 0 {
		lost, q.dropped = q.dropped, false
		return nil, false, lost
	}
	m, q.items = q.items[0], q.items[1:]
	if m == nil {
		return nil, true, false
	}
	q.bytes -= len(m.Payload)
	return m, false, false
}

const maxFree = 64

func (q *queue) recycle(m *Message) {
	if len(q.free) < maxFree && cap(m.Payload) <= 1<<20 {
		q.free = append(q.free, m)
	}
}
