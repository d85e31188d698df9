package fleet

import (
	"sync/atomic"
	"time"
)

// Envoy has two access logs: the router's tells where a request goes, the connection manager's how it ends. Where one is missing
// what is in flight is not known, and nothing may be refused for it.
//
//	nothing of a request    silence after its decision, unless another was told of since
//	no end                  requests count as in flight at workers that tell of far fewer, or that tell nothing; and none has ended since

// Silence is what Envoy does not tell.
type Silence int

const (
	Speaks    Silence = iota
	NoReports         // requests are decided, and nothing is told of any
	NoEnds            // it is told where they go, and not how they end
)

const (
	silence = 5 * time.Second // a report comes 20 ms after the fact

	endsAfter = 30 * time.Second // a request that began so long ago is among those that its worker tells of
	fewEnds   = 3                // so many beside twice those that the workers tell of: one client that reads slowly is not yet a missing log
	longAfter = 5 * time.Minute  // of workers that tell nothing: that none of manyEnds has ended by then
	manyEnds  = 16
)

type silent struct {
	what  Silence
	since time.Time // the decision, or the start, of the first that was not told of
}

// hearing is what is known of that; bookings.mu guards all but now.
type hearing struct {
	now     atomic.Pointer[silent] // nil: Envoy speaks, or nothing shows that it does not
	waiting *booking               // the first that was decided since the last report
	ended   time.Time              // when the last end was told
}

// Silent says what Envoy does not tell, and since when.
func (f *Fleet) Silent() (what Silence, since time.Time) {
	if s := f.bookings.hears.now.Load(); s != nil {
		return s.what, s.since
	}
	return Speaks, time.Time{}
}

// heard notes a report.
func (h *hearing) heard() {
	if h.waiting = nil; h.now.Load() != nil && h.now.Load().what == NoReports {
		h.now.Store(nil)
	}
}

// heardEnd notes that an end was told.
func (h *hearing) heardEnd(now time.Time) {
	h.ended = now
	h.now.Store(nil)
}

// listen notices that no report comes.
func (h *hearing) listen(now time.Time) {
	if w := h.waiting; w != nil && now.Sub(w.since) >= silence && (h.now.Load() == nil || h.now.Load().what != NoReports) {
		h.now.Store(&silent{NoReports, w.since})
	}
}

// listenForEnds notices that no ends come. It takes time linear in the bookings that are old, where none has ended since the oldest.
func (t *bookings) listenForEnds(now time.Time) {
	oldest := t.first(running)
	if oldest == nil || now.Sub(oldest.since) < endsAfter || !t.hears.ended.Before(oldest.since) || t.hears.now.Load() != nil {
		return
	}
	at, long := make(map[*Slot]int), make(map[*Slot]int)
	t.each(running, func(b *booking) {
		if b.Source == 0 || now.Sub(b.since) < endsAfter { // 0: no log tells of it, but its own stream
			return
		}
		slot := b.Slot
		if b.Decode != nil {
			slot = b.Decode
		}
		if at[slot]++; now.Sub(b.since) >= longAfter {
			long[slot]++
		}
	})
	over, untold := 0, 0
	for slot, n := range at {
		if told, ok := slot.Word(now); ok && told.Running >= 0 {
			over += max(0, n-2*(told.Running+told.Waiting))
		} else {
			untold += long[slot]
		}
	}
	if over >= fewEnds || untold >= manyEnds {
		t.hears.now.Store(&silent{NoEnds, oldest.since})
	}
}
