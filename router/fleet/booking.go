package fleet

import (
	"container/list"
	"sync"
	"time"
)

// A booking ties a decided request to the slot that it was sent to, from the decision until Envoy reports its end. Lost
// reports are harmless: a booking that Envoy never confirmed ends after unconfirmed, any booking after longest, and when
// there are too many, or what they keep is too much, the oldest end. All of these are counted.
const (
	unconfirmed = 30 * time.Second // decided, but no upstream was reported: Envoy's access log may be off
	longest     = 30 * time.Minute // the longest generation that we believe in
	most        = 1 << 17
	mostBytes   = 256 << 20
)

// Booking is one request's hold on a slot.
type Booking struct {
	Slot   *Slot
	Tokens int   // to prefill there
	Decode *Slot // who decodes, where another does
	Note   any   // the router's own, given back at the end
	Bytes  int   // of memory that Note keeps
	id     string
	at     time.Time
	in     *list.List // fresh or running, and its place there
	place  *list.Element
}

type bookings struct {
	mu      sync.Mutex
	open    map[string]*Booking
	fresh   list.List // not known to be running, the oldest first
	running list.List // by the time of Envoy's report
	bytes   int
	expired uint64
}

// Book counts a request on a slot under its decision id.
func (f *Fleet) Book(id string, b Booking) {
	b.id, b.at = id, f.now()
	b.Slot.book(b.Tokens, b.at)
	if b.Decode != nil {
		b.Decode.book(0, b.at)
	}
	t := &f.bookings
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open[id] = &b
	t.bytes += b.Bytes
	t.queue(&b, &t.fresh)
	for old := t.overdue(b.at); old != nil; old = t.overdue(b.at) {
		t.close(old)
		old.release()
		t.expired++
	}
}

func (t *bookings) queue(b *Booking, at *list.List) { b.in, b.place = at, at.PushBack(b) }

func (t *bookings) close(b *Booking) {
	delete(t.open, b.id)
	b.in.Remove(b.place)
	t.bytes -= b.Bytes
}

// overdue is the next booking that must end, nil when all may go on.
func (t *bookings) overdue(now time.Time) *Booking {
	fresh, running := oldest(&t.fresh), oldest(&t.running)
	switch {
	case fresh != nil && now.Sub(fresh.at) >= unconfirmed:
		return fresh
	case running != nil && now.Sub(running.at) >= longest:
		return running
	case len(t.open) <= most && t.bytes <= mostBytes:
		return nil
	case running == nil || fresh != nil && fresh.at.Before(running.at):
		return fresh
	}
	return running
}

func oldest(l *list.List) *Booking {
	if e := l.Front(); e != nil {
		return e.Value.(*Booking)
	}
	return nil
}

func (b *Booking) release() {
	b.Slot.release()
	if b.Decode != nil {
		b.Decode.release()
	}
}

// Expired counts the bookings that ended without a report.
func (f *Fleet) Expired() uint64 {
	f.bookings.mu.Lock()
	defer f.bookings.mu.Unlock()
	return f.bookings.expired
}

// Confirm takes Envoy's word that a request went to addr. Where that is not the booked worker the booking moves to the
// other's least loaded slot; moved gives the booking as it was. ok is false if the request or worker is not known.
func (f *Fleet) Confirm(id, addr string) (now, moved *Booking, ok bool) {
	f.bookings.mu.Lock()
	defer f.bookings.mu.Unlock()
	b := f.bookings.open[id]
	w := f.ByAddr(addr)
	if b == nil || w == nil && !b.Slot.Worker.at(addr) {
		return nil, nil, false
	}
	b.in.Remove(b.place)
	f.bookings.queue(b, &f.bookings.running)
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
	t := &f.bookings
	t.mu.Lock()
	b := t.open[id]
	if b != nil {
		t.close(b)
	}
	t.mu.Unlock()
	if b == nil {
		return nil, false
	}
	b.release()
	b.Slot.learn(b.Tokens, firstByte)
	return b, true
}

// Open counts the bookings that have not ended.
func (f *Fleet) Open() int {
	f.bookings.mu.Lock()
	defer f.bookings.mu.Unlock()
	return len(f.bookings.open)
}
