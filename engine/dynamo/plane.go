package dynamo

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/guard"
)

// Plane splits what many publishers send into one stream.Source a worker-rank. A publisher sends the events of one of them;
// only the events say of which, because a publisher's id is not the worker's.
//
// A gap cannot be filled, because Dynamo repeats lost events only on its own request plane. The feed then clears the
// worker-rank and goes on partial.
type Plane struct {
	// Full, if set, is called once: when messages are refused because of too many worker-ranks that nobody has asked for.
	Full func()

	mu        sync.Mutex
	ranks     map[Key]*rank
	strangers int // ranks without a source: nobody has asked for them yet
	refused   uint64
}

type rank struct {
	key         Key
	claimed     bool // a source has it
	plane       *Plane
	feed        *stream.Feed // nil while no feed runs
	epoch       uint64       // number of publishers so far: each is a new incarnation
	publisher   uint64       // the last one's id
	pending     []stream.Message
	pendingSize int
}

const (
	// maxStrangers bounds the worker-ranks that messages name and nobody has asked for. Those that were asked for are as many as
	// discovery says.
	maxStrangers = 4096
	// Kept for a worker-rank whose feed does not run yet, because discovery may be slower than the first events.
	pendingMessages = 256
	pendingBytes    = 4 << 20
)

// Source is one worker-rank's part of the plane.
func (p *Plane) Source(k Key) stream.Source {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.claim(k)
}

// claim finds or makes the rank of a source. The caller holds mu.
func (p *Plane) claim(k Key) *rank {
	r := p.ranks[k]
	switch {
	case r == nil:
		r = p.add(k)
	case !r.claimed:
		p.strangers--
	}
	r.claimed = true
	return r
}

// rank finds a message's rank, or makes it; nil if there are too many that nobody has asked for. The caller holds mu.
func (p *Plane) rank(k Key) *rank {
	if r := p.ranks[k]; r != nil {
		return r
	}
	if p.strangers >= maxStrangers {
		if p.refused++; p.refused == 1 && p.Full != nil {
			p.Full()
		}
		return nil
	}
	p.strangers++
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

// Refused is how many messages were of worker-ranks beyond those that are kept for discovery to tell of.
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
	r = p.claim(r.key) // another one than before, if the last feed had ended meanwhile
	r.feed = f
	for _, m := range r.pending {
		f.Offer(m)
	}
	r.pending, r.pendingSize = nil, 0
	p.mu.Unlock()
	<-ctx.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.feed == f { // else another feed runs for this rank
		r.feed = nil
		delete(p.ranks, r.key)
	}
	return ctx.Err()
}

// Replay implements stream.Source: there is nobody to ask.
func (r *rank) Replay(context.Context, uint64, func(stream.Message) error) error {
	return errors.ErrUnsupported
}

// receive takes one message of the event plane, without its frame, and returns the worker-rank whose events it has; nil if
// it has none. Other topics are skipped.
func (p *Plane) receive(b []byte) *rank {
	var e envelope
	var k Key
	ok := false
	err := guard.Call(func() (err error) { // a message that panics is dropped
		if e, err = readEnvelope(b); err == nil && e.ofEvents() {
			k, ok = peek(e.Payload)
		}
		return err
	})
	if err != nil || !ok {
		return nil
	}
	return p.deliver(k, e.Publisher, e.Seq, e.Payload)
}

// deliver hands a message to its worker-rank's feed, or keeps it until there is one. It returns nil if there are too many
// ranks.
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
	if len(r.pending) < pendingMessages && r.pendingSize+len(payload) <= pendingBytes {
		m.Payload = slices.Clone(payload)
		r.pending = append(r.pending, m)
		r.pendingSize += len(payload)
	}
	return r
}

// link tells the feeds of ranks (nil: all) that their transport is up (down is nil) or why it is down.
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
