package fleet

import "time"

// Other replicas' requests count like ours: they take a place and tokens of a slot, and the slot's own events tell of their
// prefill. What ends them is their replica's word alone (router/peers), so they are no bookings.

// Charge counts another replica's request at its slots. over ends it: call it once.
func (f *Fleet) Charge(b Booking) (over func()) {
	now := f.now()
	f.count(&b, 1)
	held := b.Slot.hold(&b, now, now, true)
	decoding := (*hold)(nil)
	if b.Decode != nil {
		decoding = b.Decode.hold(&Booking{Context: b.Context, Answers: b.Answers, fetched: true}, now, now, true)
	}
	return func() {
		now := f.now()
		f.count(&b, -1)
		held.release(now)
		if decoding != nil {
			decoding.release(now)
		}
	}
}

func (f *Fleet) count(b *Booking, by int) {
	f.bookings.mu.Lock()
	defer f.bookings.mu.Unlock()
	f.bookings.count(b, by)
}

// Find gives a worker's slot of a rank (-1: it has none), nil if there is none.
func (f *Fleet) Find(worker string, rank int) *Slot {
	if w := f.state.Load().byName[worker]; w != nil {
		for _, s := range w.Slots {
			if s.Rank == rank {
				return s
			}
		}
	}
	return nil
}

// Each shows the first bookings that have a slot, with the tokens that are left to prefill, until do gives false.
func (f *Fleet) Each(do func(b *Booking, left int) bool) {
	t := &f.bookings
	t.mu.Lock()
	defer t.mu.Unlock()
	now := f.now()
	for _, b := range t.open {
		if b.hold != nil && !do(&b.Booking, b.hold.remains(now)) {
			return
		}
	}
}

// Queued is how many tokens wait at the slot of what was booked here.
func (s *Slot) Queued(now time.Time) (tokens float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain(now)
	for _, h := range s.queue {
		if !h.theirs {
			tokens += h.left
		}
	}
	return tokens
}

func (h *hold) remains(now time.Time) int {
	h.slot.mu.Lock()
	defer h.slot.mu.Unlock()
	h.slot.drain(now)
	return int(h.left)
}
