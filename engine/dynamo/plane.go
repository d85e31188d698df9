package dynamo

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/internal/guard"
)

// Plane splits the messages of many publishers into one stream.Source per worker-rank. A publisher sends the events of one
// worker-rank; only the events say which one, because a publisher's id is not the worker's.
//
// A gap cannot be filled, because Dynamo repeats lost events only on its own request plane. After a gap the feed clears the
// worker-rank and continues as partial.
type Plane struct {
	// OnFull, if set, is called once, when messages are first refused because too many worker-ranks have no source.
	OnFull func()
	// OnUnreadable, if set, is called once, with the first message that cannot be read: where it came from, and why.
	OnUnreadable func(from string, err error)

	mu        sync.Mutex
	ranks     map[Key]*rank
	unclaimed int // ranks without a source
	refused   uint64
	pending   int // bytes that wait for the feeds of all ranks
	received  *fair.Room

	unreadable atomic.Uint64
}

type rank struct {
	key         Key
	claimed     bool // it has a source
	plane       *Plane
	feed        *stream.Feed // nil while no feed runs
	epoch       uint64       // counts publishers: each one is a new incarnation
	publisher   uint64       // the latest one's id
	pending     []stream.Message
	pendingSize int
}

const (
	// maxUnclaimed bounds the worker-ranks that messages name but discovery has not. The others are as many as discovery says.
	maxUnclaimed = 4096
	// Bounds of what is kept for a worker-rank whose feed does not run yet: discovery may lag behind the first events.
	pendingMessages = 256
	pendingBytes    = 4 << 20
	allPending      = 64 << 20 // for all of them
	allReceived     = 64 << 20 // of large messages that are received at a time
)

// Source returns the source of one worker-rank.
func (p *Plane) Source(k Key) stream.Source {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.claim(k)
}

// claim returns a source's rank and makes it if necessary. The caller holds mu.
func (p *Plane) claim(k Key) *rank {
	r := p.ranks[k]
	switch {
	case r == nil:
		r = p.add(k)
	case !r.claimed:
		p.unclaimed--
	}
	r.claimed = true
	return r
}

// rank returns a message's rank and makes it if necessary; nil if too many have no source. The caller holds mu.
func (p *Plane) rank(k Key) *rank {
	if r := p.ranks[k]; r != nil {
		return r
	}
	if p.unclaimed >= maxUnclaimed {
		p.refused++
		if p.refused == 1 && p.OnFull != nil {
			p.OnFull()
		}
		return nil
	}
	p.unclaimed++
	return p.add(k)
}

func (p *Plane) add(k Key) *rank {
	if p.ranks == nil {
		p.ranks = make(map[Key]*rank)
	}
	r := &rank{key: k, plane: p}
	p.ranks[k] = r
	return r
}

// Refused returns the number of messages refused because too many worker-ranks had no source.
func (p *Plane) Refused() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// Run implements stream.Source.
func (r *rank) Run(ctx context.Context, f *stream.Feed) error {
	f.Up()
	p := r.plane
	p.mu.Lock()
	r = p.claim(r.key) // a new rank if the previous feed has ended meanwhile
	r.feed = f
	for _, m := range r.pending {
		f.Offer(m)
	}
	p.pending -= r.pendingSize
	r.pending, r.pendingSize = nil, 0
	p.mu.Unlock()
	<-ctx.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.feed == f { // otherwise another feed has taken over this rank
		r.feed = nil
		delete(p.ranks, r.key)
	}
	return ctx.Err()
}

// Replay implements stream.Source. Replay is not supported.
func (r *rank) Replay(context.Context, uint64, func(stream.Message) error) error {
	return errors.ErrUnsupported
}

// receive handles one message of the event plane, without its frame, and returns the worker-rank whose events it holds; nil if
// there is none. It skips other topics. from is where the message came from.
func (p *Plane) receive(from string, b []byte) *rank {
	var e envelope
	var k Key
	ok := false
	err := guard.Call(func() (err error) { // a message that panics is dropped
		e, err = readEnvelope(b)
		if err == nil && e.ofEvents() {
			k, ok, err = peek(e.Payload)
		}
		return err
	})
	if err != nil {
		p.noteUnreadable(from, err)
	}
	if err != nil || !ok {
		return nil
	}
	return p.deliver(k, e.Publisher, e.Seq, e.Payload)
}

// noteUnreadable counts a message of which not even the worker could be read. It belongs to no rank's stream.
func (p *Plane) noteUnreadable(from string, err error) {
	if p.unreadable.Add(1) == 1 && p.OnUnreadable != nil {
		p.OnUnreadable(from, err)
	}
}

// Unreadable returns the number of messages of which not even the worker could be read.
func (p *Plane) Unreadable() uint64 { return p.unreadable.Load() }

// deliver hands a message to its worker-rank's feed, or queues it until there is one. It returns nil if there are too many ranks.
func (p *Plane) deliver(k Key, publisher, seq uint64, payload []byte) *rank {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.rank(k)
	if r == nil {
		return nil
	}
	if r.publisher != publisher || r.epoch == 0 {
		r.publisher = publisher
		r.epoch++
	}
	m := stream.Message{Epoch: r.epoch, Seq: seq, Payload: payload}
	if r.feed != nil {
		r.feed.Offer(m)
		return r
	}
	if len(r.pending) < pendingMessages && r.pendingSize+len(payload) <= pendingBytes && p.pending+len(payload) <= allPending {
		m.Payload = slices.Clone(payload)
		r.pending = append(r.pending, m)
		r.pendingSize += len(payload)
		p.pending += len(payload)
	}
	return r
}

// link tells the feeds of ranks (nil: of all ranks) that their transport is up (down is nil) or why it is down.
func (p *Plane) link(ranks map[*rank]bool, down error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.ranks {
		switch {
		case r.feed == nil || ranks != nil && !ranks[r]:
		case down != nil:
			r.feed.Down(down)
		default:
			r.feed.Up()
		}
	}
}
