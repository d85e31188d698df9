package indexer

import "math/bits"

// residency is what one slot holds of one node, in one word: all that a lookup needs in most cases. It summarizes the
// slot's pages of the node.
//
//	bits  0..31  slot
//	bits 32..43  boundary: blocks [0, boundary) lie in tierOne
//	bits 44..55  leading:  number of leading blocks held; blocks [boundary, leading) lie in tierTwo
//	bits 56..59  tierOne, tierTwo
//	bit  60      mixed:    the leading blocks lie in more than two pieces of tiers, and the pages must be read
//	bit  61      beyond:   the slot may hold blocks behind the leading ones (only writers ask)
//
// A block's tier is the best tier that holds it. By far the most frequent case is one piece, with boundary == leading and
// equal tiers.
type residency uint64

const (
	residencyMixed  residency = 1 << 60
	residencyBeyond residency = 1 << 61
	offsetMask                = 1<<12 - 1
)

func newResidency(id SlotID, first, all int, one, two Tier, flags residency) residency {
	if all == 0 {
		flags &^= residencyMixed
	}
	if first == all {
		two = one
	}
	return residency(id) | residency(first)<<32 | residency(all)<<44 | residency(one)<<56 | residency(two)<<58 | flags
}

func (res residency) slot() SlotID     { return SlotID(res) }
func (res residency) boundary() int    { return int(res>>32) & offsetMask }
func (res residency) leading() int     { return int(res>>44) & offsetMask }
func (res residency) tierOne() Tier    { return Tier(res >> 56 & 3) }
func (res residency) tierTwo() Tier    { return Tier(res >> 58 & 3) }
func (res residency) flags() residency { return res & (residencyMixed | residencyBeyond) }

// stored returns the residency after blocks [from, to) were stored in a tier; false if it must be read from the pages.
func (res residency) stored(from, to int, t Tier) (residency, bool) {
	all := res.leading()
	switch {
	case res.flags() != 0:
		return res, false
	case from < all && (t < res.tierOne() || t < res.tierTwo()):
		return res, false // blocks already held may now have a better tier
	case to <= all:
		return res, true
	case from > all:
		return res | residencyBeyond, true
	case all == 0:
		return newResidency(res.slot(), to, to, t, t, 0), true
	case res.boundary() == all && t == res.tierOne():
		return newResidency(res.slot(), to, to, t, t, 0), true
	case res.boundary() == all:
		return newResidency(res.slot(), all, to, res.tierOne(), t, 0), true
	case t == res.tierTwo():
		return newResidency(res.slot(), res.boundary(), to, res.tierOne(), t, 0), true
	}
	return res, false
}

// cut returns the residency after blocks were removed from all tiers: low is the first of them, and count is how many of
// them were leading blocks.
func (res residency) cut(low, count int) residency {
	all := res.leading()
	if low >= all {
		return res
	}
	flags := res.flags()
	if count != all-low {
		flags |= residencyBeyond
	}
	return newResidency(res.slot(), min(res.boundary(), low), low, res.tierOne(), res.tierTwo(), flags)
}

// residencyFrom computes the residency from a slot's pages: exact, at one cache miss a page.
func (m *memory) residencyFrom(id SlotID, first uint32) residency {
	var tier [3]Tier
	var end [3]int
	pieces, all := 0, 0
	var flags residency
	for first != noPage {
		st, next := m.stackAt(first)
		if st.base != all {
			flags |= residencyBeyond
			break
		}
		have := st.best()
		n := leadingOnes(have)
		for k := 0; k < n; {
			t := Tier(0)
			for st.held[t]>>k&1 == 0 {
				t++
			}
			r := min(leadingOnes(st.held[t]>>k), n-k)
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
		if n < pageBlocks {
			if have>>n != 0 || next != noPage {
				flags |= residencyBeyond
			}
			break
		}
		first = next
	}
	switch pieces {
	case 0, 1:
		return newResidency(id, all, all, tier[0], tier[0], flags)
	case 2:
		return newResidency(id, end[0], all, tier[0], tier[1], flags)
	}
	return newResidency(id, end[0], all, tier[0], tier[1], flags|residencyMixed)
}

// lastHeld is one more than the last offset that the pages hold; 0 if they hold nothing.
func (m *memory) lastHeld(id uint32) (end int) {
	for id != noPage {
		st, next := m.stackAt(id)
		if have := st.best(); have != 0 {
			end = st.base + bits.Len16(have)
		}
		id = next
	}
	return end
}
