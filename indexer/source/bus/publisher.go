package bus

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/zeebo/xxh3"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
)

const (
	bufferMessages = 8192
	bufferBytes    = 64 << 20
	// heartbeat is the longest silence of a publisher: by the next message a router sees that it missed the last one.
	heartbeat   = 5 * time.Second
	publishTime = 2 * time.Second // for one attempt
	retryPause  = 250 * time.Millisecond
	partBytes   = 512 << 10
	partHead    = 16 // epoch, index, count
	maxSnapshot = 256 << 20
)

// PublisherOptions sets up a Publisher.
type PublisherOptions struct {
	NATS   *nats.Conn
	Prefix Prefix
	Worker string
	Rank   int // -1: the worker has no ranks
	// CountCopies: see indexer.SlotOptions.
	CountCopies bool
	// Tokens publishes token ids, media names and sessions too, for audits. The agent's decoder must keep them.
	Tokens bool
	Log    *zap.Logger // for events that cannot be published; may be nil
}

// Publisher is the sink of an agent's feed: it publishes every batch as one message, and answers routers' snapshot requests.
// While NATS is away it buffers at most 64 MB; then the oldest messages are dropped, and routers see the gap in the numbers
// and ask for a snapshot.
type Publisher struct {
	o        PublisherOptions
	js       jetstream.JetStream
	subject  string
	epoch    uint64
	cancel   context.CancelFunc
	running  sync.WaitGroup
	requests *nats.Subscription

	// mu is held from a batch's first event to its Done, so that a snapshot never has half a batch.
	mu        sync.Mutex
	inBatch   bool
	index     *indexer.Index // what the worker holds, for snapshots: about 27 bytes a block
	slot      indexer.SlotID
	blockSize int    // of all blocks: the feed leaves others out
	seq       uint64 // of the next message
	events    []byte // of the batch
	flags     byte   // flagPartial, flagAway (the engine cannot be heard) and flagRecurrent, as they are now

	out struct {
		sync.Mutex
		queue [][]byte
		bytes int
		wake  chan struct{}
	}
}

// NewPublisher publishes until Leave. Routers make the stream; until there is one, events are kept. Its epoch is the time of the call, so routers
// follow the younger of two agents for one worker.
func NewPublisher(o PublisherOptions) (*Publisher, error) {
	js, err := jetstream.New(o.NATS)
	if err != nil {
		return nil, err
	}
	p := &Publisher{o: o, js: js, subject: o.Prefix.events() + subjectSuffix(o.Worker, o.Rank), epoch: uint64(time.Now().UnixNano()),
		flags: flagPartial | flagAway}
	p.index = indexer.New(indexer.Options{})
	p.slot = p.index.Join(indexer.SlotOptions{CountCopies: o.CountCopies})
	p.out.wake = make(chan struct{}, 1)
	p.requests, err = o.NATS.Subscribe(o.Prefix.asks()+subjectSuffix(o.Worker, o.Rank), p.answerSnapshot)
	if err != nil {
		return nil, err
	}
	if p.o.Log == nil {
		p.o.Log = zap.NewNop()
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.running.Go(func() { p.send(ctx) })
	return p, nil
}

// beginBatch takes mu at a batch's first event; Done releases it.
func (p *Publisher) beginBatch() {
	if !p.inBatch {
		p.mu.Lock()
		p.inBatch = true
	}
}

// Store implements feed.Sink.
func (p *Publisher) Store(e *kvevent.Event) error {
	p.beginBatch()
	if err := p.index.Store(p.slot, e.Tier, e.Parent, e.HasParent, e.EngineHashes, e.Locals); err != nil {
		return err
	}
	p.events, p.blockSize = appendEvent(p.events, e, p.o.Tokens), e.BlockSize
	return nil
}

// Remove implements feed.Sink.
func (p *Publisher) Remove(tier kvevent.Tier, engineHashes []uint64) (unknown int) {
	p.beginBatch()
	unknown, _ = p.index.Remove(p.slot, tier, engineHashes)
	if unknown < len(engineHashes) {
		p.events = appendEvent(p.events, &kvevent.Event{Kind: kvevent.Removed, Tier: tier, EngineHashes: engineHashes}, false)
	}
	return unknown
}

// Clear implements feed.Sink.
func (p *Publisher) Clear() {
	p.beginBatch()
	_ = p.index.Clear(p.slot)
	p.events = appendEvent(p.events[:0], &kvevent.Event{Kind: kvevent.Cleared}, false)
}

// Done implements stream.Sink: it publishes the batch, if there is anything in it.
func (p *Publisher) Done(partial, recurrent bool) {
	p.beginBatch()
	flags := p.flags & flagAway
	if partial {
		flags |= flagPartial
	}
	if recurrent {
		flags |= flagRecurrent
	}
	if len(p.events) > 0 || flags != p.flags {
		p.flags = flags
		p.enqueue()
	}
	p.inBatch = false
	p.mu.Unlock()
}

// Link publishes whether the engine can be heard; it is for stream.Options.
func (p *Publisher) Link(up bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if away := p.flags&flagAway != 0; away == up {
		p.flags ^= flagAway
		p.enqueue()
	}
}

// Leave implements feed.Sink: nothing more is published.
func (p *Publisher) Leave() {
	_ = p.requests.Unsubscribe()
	p.cancel()
	p.running.Wait()
}

// enqueue puts the batch as a message into the buffer. The caller holds mu.
func (p *Publisher) enqueue() {
	b := appendHead(make([]byte, 0, headBytes+len(p.events)), p.flags, p.epoch, p.seq)
	b = append(b, p.events...)
	p.seq++
	if p.events = p.events[:0]; cap(p.events) > 4<<20 {
		p.events = nil
	}
	p.out.Lock()
	for len(p.out.queue) > 0 && (len(p.out.queue) >= bufferMessages || p.out.bytes+len(b) > bufferBytes) {
		p.out.bytes -= len(p.out.queue[0])
		p.out.queue = p.out.queue[1:]
	}
	p.out.queue = append(p.out.queue, b)
	p.out.bytes += len(b)
	p.out.Unlock()
	select {
	case p.out.wake <- struct{}{}:
	default:
	}
}

// send publishes the buffer in order, each message until the server has it, and a heartbeat in silence.
func (p *Publisher) send(ctx context.Context) {
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	var err error
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			p.mu.Lock()
			p.enqueue()
			p.mu.Unlock()
		case <-p.out.wake:
		}
		for ctx.Err() == nil {
			p.out.Lock()
			if len(p.out.queue) == 0 {
				p.out.Unlock()
				break
			}
			b := p.out.queue[0]
			p.out.Unlock()
			before := err
			if err = p.publish(ctx, b); err == nil {
				if before != nil {
					p.o.Log.Info("events are published")
				}
				beat.Reset(heartbeat)
				p.out.Lock()
				if len(p.out.queue) > 0 && &p.out.queue[0][0] == &b[0] { // it was not dropped meanwhile
					p.out.bytes -= len(b)
					p.out.queue = p.out.queue[1:]
				}
				p.out.Unlock()
				continue
			}
			if before == nil && ctx.Err() == nil {
				p.o.Log.Warn("events cannot be published; they are kept and tried again", zap.Error(err))
			}
			select {
			case <-ctx.Done():
			case <-time.After(retryPause/2 + rand.N(retryPause)):
			}
		}
	}
}

// publish tries once. The message may arrive although its confirmation does not: routers drop the second copy by its number.
// A message that is too big for the server is given up: routers see the gap and ask for a snapshot.
func (p *Publisher) publish(ctx context.Context, b []byte) error {
	if int64(len(b)) > p.o.NATS.MaxPayload() && p.o.NATS.IsConnected() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	_, err := p.js.PublishMsg(ctx, &nats.Msg{Subject: p.subject, Data: b})
	return err
}

// answerSnapshot answers a router's snapshot request with the state after the last message, in parts.
func (p *Publisher) answerSnapshot(m *nats.Msg) {
	p.mu.Lock()
	if p.seq == 0 { // seq-1 would underflow: publish an empty batch 0 for the snapshot to cover
		p.enqueue()
	}
	b := appendHead(nil, p.flags, p.epoch, p.seq-1)
	list, err := p.index.Blocks(p.slot)
	blockSize := p.blockSize
	p.mu.Unlock()
	if err != nil {
		return
	}
	b = appendEvent(b, &kvevent.Event{Kind: kvevent.Cleared}, false)
	for _, e := range indexer.Events(list) {
		e.BlockSize = blockSize
		b = appendEvent(b, &e, false)
	}
	b = binary.LittleEndian.AppendUint64(b, xxh3.Hash(b))
	parts := (len(b) + partBytes - 1) / partBytes
	for i := range parts {
		part := binary.LittleEndian.AppendUint64(nil, p.epoch)
		part = binary.LittleEndian.AppendUint32(part, uint32(i))
		part = binary.LittleEndian.AppendUint32(part, uint32(parts))
		if m.Respond(append(part, b[i*partBytes:min((i+1)*partBytes, len(b))]...)) != nil {
			return
		}
	}
}
