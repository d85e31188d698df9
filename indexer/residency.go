package indexer

import "math/bits"

// residency is what one slot holds of one node, in one word: all that a lookup needs. It summarizes the slot's pages of the
// node.
//
//	bits  0..31  slot
//	bits 32..43  leading: number of leading blocks held, in any tier
//	bit  44      beyond:  the slot may hold blocks behind the leading ones (only writers ask)
type residency uint64

const (
	residencyBeyond residency = 1 << 44
	leadingMask               = 1<<12 - 1
)

func newResidency(id SlotID, leading int, flags residency) residency {
	return residency(id) | residency(leading)<<32 | flags
}

func (res residency) slot() SlotID { return SlotID(res) }
func (res residency) leading() int { return int(res>>32) & leadingMask }

// stored returns the residency after blocks [from, to) were stored; false if it must be read from the pages.
func (res residency) stored(from, to int) (residency, bool) {
	switch leading := res.leading(); {
	case to <= leading:
		return res, true
	case from > leading:
		return res | residencyBeyond, true
	}
	return newResidency(res.slot(), to, 0), res&residencyBeyond == 0
}

// cut returns the residency after blocks were removed from all tiers: low is the first of them, and count is how many of
// them were leading blocks.
func (res residency) cut(low, count int) residency {
	leading := res.leading()
	if low >= leading {
		return res
	}
	flags := res & residencyBeyond
	if count != leading-low {
		flags = residencyBeyond
	}
	return newResidency(res.slot(), low, flags)
}

// residencyFrom computes the residency from a slot's pages: exact, at one cache miss a page.
func (m *memory) residencyFrom(id SlotID, first uint32) residency {
	leading := 0
	for at := first; at != noPage; {
		held, base, next := m.heldAt(at)
		if base != leading {
			return newResidency(id, leading, residencyBeyond)
		}
		n := bits.TrailingZeros16(^held)
		if leading += n; n < pageBlocks {
			if held>>n != 0 || next != noPage {
				return newResidency(id, leading, residencyBeyond)
			}
			break
		}
		at = next
	}
	return newResidency(id, leading, 0)
}

// lastHeld is one more than the last offset that the pages hold; 0 if they hold nothing.
func (m *memory) lastHeld(id uint32) (end int) {
	for id != noPage {
		held, base, next := m.heldAt(id)
		if held != 0 {
			end = base + bits.Len16(held)
		}
		id = next
	}
	return end
}
