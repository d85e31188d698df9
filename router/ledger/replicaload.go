package ledger

// Other replicas' requests count like ours: they take a place and tokens of a slot, and the slot's events report their prefill. Only
// their replica says when they end.

// Taken is the number of other replicas' bookings, and the bytes of their block hashes.
type Taken struct{ Bookings, Bytes int }

// Taken returns how many bookings of other replicas are open here, and their bytes.
func (l *Ledger) Taken() Taken {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.takenSize
}

// Take books another replica's request, which has a slot, under the replica's number. moved: its tenant's work has it already, from
// another slot.
func (l *Ledger) Take(replica string, number uint64, b Booking, moved bool) {
	now := l.now()
	b.At = now
	work, decoding := b.Work, b.decoding()
	work.OfReplica, decoding.OfReplica = true, true
	one := &booking{Booking: b, charge: b.Slot.Charge(work, now, now)}
	if b.Decode != nil {
		one.decoding = b.Decode.Charge(decoding, now, now)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endTaken(replica, number, false)
	if l.taken[replica] == nil {
		l.taken[replica] = make(map[uint64]*booking)
	}
	l.taken[replica][number] = one
	l.count(&b, 1)
	if !moved {
		l.work.give(&b, now)
	}
	l.takenSize.Bookings, l.takenSize.Bytes = l.takenSize.Bookings+1, l.takenSize.Bytes+b.Bytes
}

// EndTaken ends another replica's booking, once, and returns it; nil: it is not known. lost: the replica is gone, so it cannot say when
// the request ends. Its worker then has a request of another sender, until its reports show fewer (fleet.Charge.Lose).
func (l *Ledger) EndTaken(replica string, number uint64, lost bool) *Booking {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.endTaken(replica, number, lost)
}

func (l *Ledger) endTaken(replica string, number uint64, lost bool) *Booking {
	b := l.taken[replica][number]
	if b == nil {
		return nil
	}
	delete(l.taken[replica], number)
	if len(l.taken[replica]) == 0 {
		delete(l.taken, replica)
	}
	l.takenSize.Bookings, l.takenSize.Bytes = l.takenSize.Bookings-1, l.takenSize.Bytes-b.Bytes
	if now := l.now(); lost {
		b.charge.Lose(now)
		if b.decoding != nil {
			b.decoding.Lose(now)
		}
		l.count(&b.Booking, -1)
	} else {
		l.release(b, now)
	}
	return &b.Booking
}

// TakenFrom returns the numbers of a replica's bookings.
func (l *Ledger) TakenFrom(replica string) []uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]uint64, 0, len(l.taken[replica]))
	for number := range l.taken[replica] {
		list = append(list, number)
	}
	return list
}

// EachOpen calls do for this replica's open bookings that have a slot, with the tokens left to prefill, until do returns false.
func (l *Ledger) EachOpen(do func(b *Booking, left int) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for _, b := range l.open {
		if b.charge != nil && !do(&b.Booking, b.charge.Remaining(now)) {
			return
		}
	}
}
