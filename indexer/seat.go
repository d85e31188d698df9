package indexer

import "math/bits"

// seat is one holder's place on a stem, in one word: what a lookup needs to know of the holder's sheets.
//
//	bits  0..31  holder
//	bits 32..43  first:  blocks 0 to first lie in tier one
//	bits 44..55  all:    blocks first to all lie in tier two; all is the number of leading blocks held
//	bits 56..59  tier one, tier two
//	bit  60      mixed:  more than two pieces; the tiers of the leading blocks stand on the sheets
//	bit  61      beyond: something may be held behind the leading blocks (only writers ask)
//
// "Tier" is the best tier that holds a block. One piece, by far the most frequent case, has first == all and equal tiers.
type seat uint64

const (
	seatMixed  seat = 1 << 60
	seatBeyond seat = 1 << 61
	seatPlaces      = 1<<12 - 1
)

func newSeat(h Holder, first, all int, one, two Tier, flags seat) seat {
	if all == 0 {
		flags &^= seatMixed
	}
	if first == all {
		two = one
	}
	return seat(h) | seat(first)<<32 | seat(all)<<44 | seat(one)<<56 | seat(two)<<58 | flags
}

func (s seat) holder() Holder { return Holder(s) }
func (s seat) first() int     { return int(s>>32) & seatPlaces }
func (s seat) all() int       { return int(s>>44) & seatPlaces }
func (s seat) one() Tier      { return Tier(s >> 56 & 3) }
func (s seat) two() Tier      { return Tier(s >> 58 & 3) }
func (s seat) flags() seat    { return s & (seatMixed | seatBeyond) }

// stored is the seat after blocks from..to were stored in a tier; false means that only the sheets can tell.
func (s seat) stored(from, to int, t Tier) (seat, bool) {
	all := s.all()
	switch {
	case s.flags() != 0:
		return s, false
	case from < all && (t < s.one() || t < s.two()):
		return s, false // may be a better tier for blocks already held
	case to <= all:
		return s, true
	case from > all:
		return s | seatBeyond, true
	case all == 0:
		return newSeat(s.holder(), to, to, t, t, 0), true
	case s.first() == all && t == s.one():
		return newSeat(s.holder(), to, to, t, t, 0), true
	case s.first() == all:
		return newSeat(s.holder(), all, to, s.one(), t, 0), true
	case t == s.two():
		return newSeat(s.holder(), s.first(), to, s.one(), t, 0), true
	}
	return s, false
}

// cut is the seat after blocks were removed from all tiers: the lowest of them is low, and count of them were leading
// blocks.
func (s seat) cut(low, count int) seat {
	all := s.all()
	if low >= all {
		return s
	}
	flags := s.flags()
	if count != all-low {
		flags |= seatBeyond
	}
	return newSeat(s.holder(), min(s.first(), low), low, s.one(), s.two(), flags)
}

// seatFrom reads the seat from a holder's sheets: exact, at one cache miss a sheet.
func (m *memory) seatFrom(h Holder, id uint32) seat {
	var tier [3]Tier
	var end [3]int
	pieces, all := 0, 0
	var flags seat
	for id != noSheet {
		st, next := m.stackAt(id)
		if st.base != all {
			flags |= seatBeyond
			break
		}
		have := st.best()
		n := leading(have)
		for k := 0; k < n; {
			t := Tier(0)
			for st.held[t]>>k&1 == 0 {
				t++
			}
			r := min(leading(st.held[t]>>k), n-k)
			k += r
			switch {
			case pieces > 0 && tier[pieces-1] == t:
			case pieces < len(tier):
				tier[pieces] = t
				pieces++
			}
			end[pieces-1] = all + k
		}
		all += n
		if n < sheetBlocks {
			if have>>n != 0 || next != noSheet {
				flags |= seatBeyond
			}
			break
		}
		id = next
	}
	switch pieces {
	case 0, 1:
		return newSeat(h, all, all, tier[0], tier[0], flags)
	case 2:
		return newSeat(h, end[0], all, tier[0], tier[1], flags)
	}
	return newSeat(h, end[0], all, tier[0], tier[1], flags|seatMixed)
}

// lastHeld is one more than the last place that the sheets hold.
func (m *memory) lastHeld(id uint32) (end int) {
	for id != noSheet {
		st, next := m.stackAt(id)
		if have := st.best(); have != 0 {
			end = st.base + bits.Len16(have)
		}
		id = next
	}
	return end
}
