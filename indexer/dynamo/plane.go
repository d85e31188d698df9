package dynamo

import (
	"context"
	"errors"
	"sync"

	"github.com/sightline-router/sightline/indexer/feed"
)

// Plane splits what many publishers say into one feed.Source a worker-rank. A publisher speaks for one of them; which
// one only its events tell (its id is not the worker's).
//
// A gap cannot be filled: Dynamo answers for lost events on its own request plane only. The feed then drops what it knew
// of the worker-rank and goes on partial.
type Plane struct {
	// Unknown, if set, is called once for each worker-rank that events speak of before Source was called for it, in the
	// transport's goroutine: time to call Source.
	Unknown func(Key)

	mu    sync.Mutex
	ranks map[Key]*rank
	bad   uint64
}

type rank struct {
	key   Key
	plane *Plane
	feed  *feed.Feed // nil: not running
	epoch uint64     // rises with each publisher
	last  uint64     // publisher
	early []feed.Message
	bytes int
}

const (
	mostRanks = 4096 // worker-ranks followed, or waited for
	// What is kept for a worker-rank whose feed is not there yet: discovery may lag behind the first events.
	earlyMessages = 256
	earlyBytes    = 4 << 20
)

// Bad counts messages that no worker-rank could be found in.
func (p *Plane) Bad() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bad
}

// Source is one worker-rank's share of the plane.
func (p *Plane) Source(k Key) feed.Source {
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
	if r == nil && len(p.ranks) < mostRanks {
		if p.ranks == nil {
			p.ranks = make(map[Key]*rank)
		}
		r = &rank{key: k, plane: p}
		p.ranks[k] = r
	}
	return r
}

// Run implements feed.Source.
func (r *rank) Run(ctx context.Context, f *feed.Feed) error {
	f.Up()
	p := r.plane
	p.mu.Lock()
	if p.ranks[r.key] == nil && len(p.ranks) < mostRanks {
		p.ranks[r.key] = r
	}
	r.feed = f
	for _, m := range r.early {
		f.Offer(m)
	}
	r.early, r.bytes = nil, 0
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
func (r *rank) Replay(context.Context, uint64, func(feed.Message) error) error {
	return errors.ErrUnsupported
}

// Envelope takes one message of the event plane, as it came out of its frame. Other topics than Topic are passed over.
func (p *Plane) Envelope(b []byte) {
	e, err := ReadEnvelope(b)
	if err != nil {
		p.refuse()
		return
	}
	if e.Topic == Topic || e.Topic == "kv_events" {
		p.deliver(e.Publisher, e.Seq, e.Payload)
	}
}

// Bare takes one message of Dynamo before 1.6 on JetStream: one RouterEvent, numbered by its event id.
func (p *Plane) Bare(b []byte) {
	_, id, ok := Peek(b)
	if !ok {
		p.refuse()
		return
	}
	p.deliver(0, id, b)
}

func (p *Plane) refuse() {
	p.mu.Lock()
	p.bad++
	p.mu.Unlock()
}

func (p *Plane) deliver(publisher, seq uint64, payload []byte) {
	k, _, ok := Peek(payload)
	if !ok {
		p.refuse()
		return
	}
	p.mu.Lock()
	known := p.ranks[k] != nil
	r := p.rank(k)
	p.mu.Unlock()
	if r == nil {
		return
	}
	if !known && p.Unknown != nil {
		p.Unknown(k)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.last != publisher || r.epoch == 0 {
		r.last = publisher
		r.epoch++
	}
	m := feed.Message{Epoch: r.epoch, Seq: seq, Payload: payload}
	if r.feed != nil {
		r.feed.Offer(m)
		return
	}
	if len(r.early) < earlyMessages && r.bytes+len(payload) <= earlyBytes {
		m.Payload = append([]byte(nil), payload...)
		r.early = append(r.early, m)
		r.bytes += len(payload)
	}
}
