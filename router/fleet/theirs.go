package fleet

import "time"

// Other replicas' requests count like ours: they take a place and tokens of a slot, and the slot's events report their prefill.
// They are not bookings, since only their replica says when they end (router/peers).

// ChargeReplica charges another replica's request to its slots. The caller must call over once, to end it; lost if the replica is gone, so
// that nobody says when the request ends.
func (f *Fleet) ChargeReplica(b Booking) (over func(lost bool)) {
	now := f.now()
	f.countTenant(&b, 1)
	held := b.Slot.hold(&b, now, now, true)
	decoding := (*hold)(nil)
	if b.Decode != nil {
		decoding = b.Decode.hold(&Booking{Context: b.Context, Answers: b.Answers, decodePart: true}, now, now, true)
	}
	return func(lost bool) {
		now := f.now()
		f.countTenant(&b, -1)
		held.end(now, lost)
		if decoding != nil {
			decoding.end(now, lost)
		}
	}
}

func (f *Fleet) countTenant(b *Booking, by int) {
	f.bookings.mu.Lock()
	defer f.bookings.mu.Unlock()
	f.bookings.count(b, by)
}

// Find returns a worker's slot by rank (-1: the worker has no ranks); nil: there is none.
func (f *Fleet) Find(worker string, rank int) *Slot {
	if w := f.state.Load().byStableName[worker]; w != nil {
		for _, s := range w.Slots {
			if s.Rank == rank {
				return s
			}
		}
	}
	return nil
}

// EachOpen calls do for the open bookings that have a slot, with the tokens left to prefill, until do returns false.
func (f *Fleet) EachOpen(do func(b *Booking, left int) bool) {
	t := &f.bookings
	t.mu.Lock()
	defer t.mu.Unlock()
	now := f.now()
	for _, b := range t.open {
		if b.hold != nil && !do(&b.Booking, b.hold.remainingAt(now)) {
			return
		}
	}
}

// Queued returns the tokens that are left to prefill at the slot for requests of this replica.
func (s *Slot) Queued(now time.Time) (tokens float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain(now)
	for _, h := range s.queue {
		if !h.ofReplica {
			tokens += h.remaining
		}
	}
	return tokens
}

func (h *hold) remainingAt(now time.Time) int {
	h.slot.mu.Lock()
	defer h.slot.mu.Unlock()
	h.slot.drain(now)
	return int(h.remaining)
}
