package fleet

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// A booking ties a decided request to the slot that it was sent to, from the decision until Envoy reports its end. Two
// limits keep lost reports harmless: a booking that Envoy never confirmed ends after unconfirmed, any booking after
// longest. The table is bounded; when a shard is full its oldest booking ends, counted.
const (
	unconfirmed = 30 * time.Second // decided, but no upstream was reported: Envoy's access log may be off
	longest     = 30 * time.Minute // the longest generation that we believe in
	shards      = 32
	perShard    = 4096
)

// Booking is one request's hold on a slot.
type Booking struct {
	Slot   *Slot
	Tokens int   // to prefill there
	Decode *Slot // who decodes, where another does
	Note   any   // the router's own, given back at the end
	at     time.Time
	known  bool // Envoy reported an upstream
}

type bookings struct {
	seed  maphash.Seed
	shard [shards]struct {
		sync.Mutex
		open  map[string]*Booking
		fresh []string // not known to be running, by age; may name ended ones
		long  []string // running, by age; may name ended ones
	}
	expired atomic.Uint64
}

func (b *bookings) init() {
	b.seed = maphash.MakeSeed()
	for i := range b.shard {
		b.shard[i].open = make(map[string]*Booking)
	}
}

// Book counts a request on a slot under its decision id.
func (f *Fleet) Book(id string, b Booking) {
	b.at = f.now()
	b.Slot.book(b.Tokens, b.at)
	if b.Decode != nil {
		b.Decode.book(0, b.at)
	}
	s := &f.bookings.shard[maphash.String(f.bookings.seed, id)%shards]
	s.Lock()
	defer s.Unlock()
	s.open[id] = &b
	s.fresh = append(s.fresh, id)
	// Old ones end here, a few with each new one.
	for len(s.fresh) > 0 {
		old := s.open[s.fresh[0]]
		if old != nil && b.at.Sub(old.at) < unconfirmed && len(s.open) <= perShard {
			break
		}
		if old != nil && old.known && len(s.open) <= perShard {
			s.long = append(s.long, s.fresh[0])
		} else if old != nil {
			old.release()
			delete(s.open, s.fresh[0])
			f.bookings.expired.Add(1)
		}
		s.fresh = s.fresh[1:]
	}
	for len(s.long) > 0 {
		old := s.open[s.long[0]]
		if old != nil {
			if b.at.Sub(old.at) < longest {
				break
			}
			old.release()
			delete(s.open, s.long[0])
			f.bookings.expired.Add(1)
		}
		s.long = s.long[1:]
	}
}

func (b *Booking) release() {
	b.Slot.release()
	if b.Decode != nil {
		b.Decode.release()
	}
}

// Expired counts the bookings that ended without a report.
func (f *Fleet) Expired() uint64 { return f.bookings.expired.Load() }

// Confirm takes Envoy's word that a request went to addr. Where that is not the booked worker the booking moves to the
// other's least loaded slot; moved gives the booking as it was. ok is false if the request or worker is not known.
func (f *Fleet) Confirm(id, addr string) (now, moved *Booking, ok bool) {
	s := &f.bookings.shard[maphash.String(f.bookings.seed, id)%shards]
	s.Lock()
	defer s.Unlock()
	b := s.open[id]
	w := f.ByAddr(addr)
	if b == nil || w == nil && !b.Slot.Worker.at(addr) {
		return nil, nil, false
	}
	b.known = true
	if b.Slot.Worker == w || b.Slot.Worker.at(addr) {
		return b, nil, true
	}
	was := *b
	t := f.now()
	b.Slot.release()
	b.Slot = w.Slots[0]
	for _, slot := range w.Slots[1:] {
		if slot.Load(t).Inflight < b.Slot.Load(t).Inflight {
			b.Slot = slot
		}
	}
	b.Slot.book(b.Tokens, t)
	return b, &was, true
}

// End releases a request's slot and learns from its time to first byte (0: none came). It gives the booking, once.
func (f *Fleet) End(id string, firstByte time.Duration) (*Booking, bool) {
	s := &f.bookings.shard[maphash.String(f.bookings.seed, id)%shards]
	s.Lock()
	b, ok := s.open[id]
	delete(s.open, id)
	s.Unlock()
	if !ok {
		return nil, false
	}
	b.release()
	b.Slot.learn(b.Tokens, firstByte)
	return b, true
}

// Open counts the bookings that have not ended.
func (f *Fleet) Open() (n int) {
	for i := range f.bookings.shard {
		s := &f.bookings.shard[i]
		s.Lock()
		n += len(s.open)
		s.Unlock()
	}
	return n
}
