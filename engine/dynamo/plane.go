package dynamo

import (
	"context"
	"errors"
	"sync"

	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/guard"
)

// Plane splits what many publishers say into one feed.Source a worker-rank. A publisher speaks for one of them; which
// one only its events tell (its id is not the worker's).
//
// A gap cannot be filled: Dynamo answers for lost events on its own request plane only. The feed then drops what it knew
// of the worker-rank and goes on partial.
type Plane struct {
	mu    sync.Mutex
	ranks map[Key]*rank
}

type rank struct {
	key         Key
	plane       *Plane
	feed        *stream.Feed // nil: not running
	epoch       uint64       // rises with each publisher
	publisher   uint64       // publisher
	pending     []stream.Message
	pendingSize int
}

const (
	maxRanks = 4096 // worker-ranks followed, or waited for
	// What is kept for a worker-rank whose feed is not there yet: discovery may lag behind the first events.
	pendingMessages = 256
	pendingBytes    = 4 << 20
)

// Source is one worker-rank's share of the plane.
func (p *Plane) Source(k Key) stream.Source {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.rank(k); r != nil {
		return r
	}
	return &rank{key: k, plane: p} // too many: it hears nothing until there is room
}

// rank finds or makes a rank; nil if there are too many. The caller holds mu.
func (p *Plane) rank(k Key) *rank {
	r := p.ranks[k]
	if r == nil && len(p.ranks) < maxRanks {
		if p.ranks == nil {
			p.ranks = make(map[Key]*rank)
		}
		r = &rank{key: k, plane: p}
		p.ranks[k] = r
	}
	return r
}

// Run implements feed.Source.
func (r *rank) Run(ctx context.Context, f *stream.Feed) error {
	f.Up()
	p := r.plane
	p.mu.Lock()
	if p.ranks[r.key] == nil && len(p.ranks) < maxRanks {
		p.ranks[r.key] = r
	}
	r.feed = f
	for _, m := range r.pending {
		f.Offer(m)
	}
	r.pending, r.pendingSize = nil, 0
	p.mu.Unlock()
	<-ctx.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.feed == f { // else another feed has taken over
		r.feed = nil
		delete(p.ranks, r.key)
	}
	return ctx.Err()
}

// Replay implements feed.Source: there is nobody to ask.
func (r *rank) Replay(context.Context, uint64, func(stream.Message) error) error {
	return errors.ErrUnsupported
}

// message is one message of the plane, taken apart.
type message struct {
	key            Key
	publisher, seq uint64
	payload        []byte
}

// envelope takes one message of the event plane, as it came out of its frame, and gives the worker-rank that it is of, nil
// if there is none. Other topics than Topic are passed over.
func (p *Plane) envelope(b []byte) *rank {
	return p.receive(func() (m *message, err error) {
		e, err := ReadEnvelope(b)
		if err != nil || e.Topic != Topic && e.Topic != "kv_events" {
			return nil, err
		}
		k, _, ok := Peek(e.Payload)
		if !ok {
			return nil, errUnread
		}
		return &message{k, e.Publisher, e.Seq, e.Payload}, nil
	})
}

var errUnread = errors.New("dynamo: no event of a worker")

// receive delivers what read makes of a message's bytes, if it makes anything of them.
func (p *Plane) receive(read func() (*message, error)) *rank {
	var m *message
	if err := guard.Call(func() (err error) { m, err = read(); return err }); err != nil || m == nil {
		return nil
	}
	return p.deliver(m)
}

func (p *Plane) deliver(m *message) *rank {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.rank(m.key)
	if r == nil {
		return nil
	}
	if r.publisher != m.publisher || r.epoch == 0 {
		r.publisher = m.publisher
		r.epoch++
	}
	fm := stream.Message{Epoch: r.epoch, Seq: m.seq, Payload: m.payload}
	if r.feed != nil {
		r.feed.Offer(fm)
		return r
	}
	if len(r.pending) < pendingMessages && r.pendingSize+len(fm.Payload) <= pendingBytes {
		fm.Payload = append([]byte(nil), fm.Payload...)
		r.pending = append(r.pending, fm)
		r.pendingSize += len(fm.Payload)
	}
	return r
}

// link tells the feeds of ranks, or of all for nil, that what brings their events is up (nil) or down.
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
