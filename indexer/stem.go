package indexer

import (
	"sync/atomic"
	"unsafe"
)

// stem is a run of local hashes that somebody stored one after the other. It grows at its end. A prompt that departs in
// the middle does not split it: the other continuation is a new stem that hangs at that place of the old one. So (stem,
// place) names a block for as long as it is held, no reference ever goes stale, and a lookup compares a whole run with
// one memory comparison instead of hashing block by block: 512 blocks in about 60 ns.
//
// It costs 64 bytes and 8 bytes a block, in multiples of 64, and some 8 bytes in the children table. The record stands in
// front of its hashes in one run, so that a lookup fetches both at once. Up to three seats lie in the record; more move
// to a list in runs of the same shard. Bad at: prompts that branch every block or two (some 140 bytes a stem), and
// finding one seat among thousands, which is a scan.
type stem struct {
	seats     [3]seat
	heads     [3]uint32 // of each seat, the first sheet
	list      uint32    // where the seats lie when there are more than three; else 0
	sitting   uint32    // number of seats
	id        uint32    // its number in the shard: the run may move, the number stays
	parent    uint32    // root: hangs at the front of all prompts
	children  uint32
	mark      uint32 // atomic: epoch in which a lookup or store last came by, units of the run, blocks
	parentAt  uint16 // place in the parent at which it hangs: the number of blocks before it there
	lastChild uint16 // no child hangs behind this place (it may be less when the furthest child is gone)
}

const (
	lengthBits   = 12
	capacityBits = 9
	epochShift   = lengthBits + capacityBits
	epochMask    = 1<<(32-epochShift) - 1
	recordWords  = 8
)

func (st *stem) length() int { return int(atomic.LoadUint32(&st.mark) & (1<<lengthBits - 1)) }
func (st *stem) capacity() int {
	return int(atomic.LoadUint32(&st.mark)>>lengthBits) & (1<<capacityBits - 1)
}
func (st *stem) epoch() uint32 { return atomic.LoadUint32(&st.mark) >> epochShift }

func (st *stem) set(length, capacity int, epoch uint32) {
	atomic.StoreUint32(&st.mark, epoch<<epochShift|uint32(capacity)<<lengthBits|uint32(length))
}

// use notes that a lookup came by. Lookups at the same time write the same.
func (st *stem) use(epoch uint32) {
	if mark := atomic.LoadUint32(&st.mark); mark>>epochShift != epoch {
		atomic.StoreUint32(&st.mark, mark&(1<<epochShift-1)|epoch<<epochShift)
	}
}

// record is the stem of a run.
func (m *memory) record(run uint32) *stem {
	return (*stem)(unsafe.Pointer(&m.run(run, recordWords)[0]))
}

// hashes is the local hashes of a run of so many blocks.
func (m *memory) hashes(run uint32, blocks int) []uint64 {
	return m.run(run, recordWords+blocks)[recordWords:]
}

const (
	maxStem        = 2048 // blocks; a longer prompt goes on in a child at the end
	numbersPerSlab = slabWords * 2
	stemBits       = 26 // of a stem's full number; the shard stands above
	root           = 0
	seatsInStem    = 3
)

// seatList is the head of a run that holds further seats: seats first, then their first sheets.
type seatList struct {
	next  uint32 // further run, 0 at the end
	count uint16
	units uint16
}

const maxListUnits = 64 // 340 seats; more hang behind in further runs

func (l *seatList) room() int { return (int(l.units)*unitWords - 1) * 2 / 3 }

// arrays gives the list's seats and heads.
func (l *seatList) arrays() ([]seat, []uint32) {
	n := l.room()
	first := unsafe.Add(unsafe.Pointer(l), unsafe.Sizeof(*l))
	return unsafe.Slice((*seat)(first), n)[:l.count], unsafe.Slice((*uint32)(unsafe.Add(first, n*8)), n)[:l.count]
}

func (m *memory) seatList(at uint32) *seatList {
	return (*seatList)(unsafe.Pointer(&m.run(at, 1)[0]))
}

// seatsOf gives the seats in pieces: call with at = 0 first, then with the value returned until it is 0 again.
func (m *memory) seatsOf(st *stem, at uint32) (seats []seat, heads []uint32, next uint32) {
	if at == 0 {
		if st.list == 0 {
			return st.seats[:st.sitting], st.heads[:st.sitting], 0
		}
		at = st.list
	}
	l := m.seatList(at)
	seats, heads = l.arrays()
	return seats, heads, l.next
}

// seatOf finds a holder's seat, nil where it has none.
func (m *memory) seatOf(st *stem, h Holder) (*seat, *uint32) {
	for at := uint32(0); ; {
		seats, heads, next := m.seatsOf(st, at)
		for i := range seats {
			if seats[i].holder() == h {
				return &seats[i], &heads[i]
			}
		}
		if at = next; at == 0 {
			return nil, nil
		}
	}
}

// addSeat gives a holder an empty seat; nil when there is no memory left.
func (r *runs) addSeat(st *stem, h Holder) (*seat, *uint32) {
	if st.list == 0 && st.sitting < seatsInStem {
		i := st.sitting
		st.seats[i], st.heads[i] = newSeat(h, 0, 0, 0, 0, 0), noSheet
		st.sitting++
		return &st.seats[i], &st.heads[i]
	}
	if !r.widen(st) {
		return nil, nil
	}
	l := r.mem.seatList(st.list)
	l.count++
	seats, heads := l.arrays()
	i := len(seats) - 1
	seats[i], heads[i] = newSeat(h, 0, 0, 0, 0, 0), noSheet
	st.sitting++
	return &seats[i], &heads[i]
}

// widen makes room for one more in the first run of the list.
func (r *runs) widen(st *stem) bool {
	old := st.list
	var l *seatList
	n := 1
	if old != 0 {
		if l = r.mem.seatList(old); int(l.count) < l.room() {
			return true
		}
		n = min(int(l.units)*2, maxListUnits)
	}
	at := r.alloc(n)
	if at == 0 {
		return false
	}
	w := r.mem.seatList(at)
	*w = seatList{units: uint16(n)}
	switch {
	case old == 0:
		w.count = seatsInStem
		seats, heads := w.arrays()
		copy(seats, st.seats[:])
		copy(heads, st.heads[:])
	case n > int(l.units): // a longer run takes the shorter one's place
		w.count, w.next = l.count, l.next
		seats, heads := w.arrays()
		oldSeats, oldHeads := l.arrays()
		copy(seats, oldSeats)
		copy(heads, oldHeads)
		r.free(old, int(l.units))
	default: // full length: a further run, in front
		w.next = old
	}
	st.list = at
	return true
}

// dropSeat takes a holder's seat away.
func (r *runs) dropSeat(st *stem, h Holder) {
	before := uint32(0)
	for at := uint32(0); ; {
		if at == 0 {
			at = st.list
		}
		seats, heads, next := r.mem.seatsOf(st, at)
		for i := range seats {
			if seats[i].holder() != h {
				continue
			}
			last := len(seats) - 1
			seats[i], heads[i] = seats[last], heads[last]
			st.sitting--
			if st.list != 0 {
				r.narrow(st, before, at)
			}
			return
		}
		if before, at = at, next; at == 0 {
			return
		}
	}
}

// narrow shortens the list by the last seat of one run, and moves three seats back into the record.
func (r *runs) narrow(st *stem, before, at uint32) {
	l := r.mem.seatList(at)
	l.count--
	if l.count == 0 {
		if before == 0 {
			st.list = l.next
		} else {
			r.mem.seatList(before).next = l.next
		}
		r.free(at, int(l.units))
	}
	if st.sitting > seatsInStem-1 { // one below the record's room, so that a seat coming and going costs nothing
		return
	}
	k := 0
	for at := st.list; at != 0; {
		l := r.mem.seatList(at)
		seats, heads := l.arrays()
		for i := range seats {
			st.seats[k], st.heads[k] = seats[i], heads[i]
			k++
		}
		next := l.next
		r.free(at, int(l.units))
		at = next
	}
	st.list = 0
}

// freeSeats gives the list's memory back.
func (r *runs) freeSeats(st *stem) {
	for at := st.list; at != 0; {
		l := r.mem.seatList(at)
		next := l.next
		r.free(at, int(l.units))
		at = next
	}
	st.list, st.sitting = 0, 0
}
