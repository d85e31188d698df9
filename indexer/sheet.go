package indexer

import "math/bits"

// sheet lists, for one holder, sixteen neighbouring blocks of one stem: the engine's handle of each and the tiers it
// lies in. It is the only place where a handle is written down; the holder's table refers to it as sheet number × 16 +
// slot, so finding a handle also finds its block and, on the same sheet, the blocks around it. A sheet is 152 bytes: 9.5
// bytes a block when full.
//
// A holder's sheets of one stem form a list in the order of their base. Gaps, tiers and second names need nothing else:
// a block removed from the middle is a bit cleared; a block in two tiers is a bit in two masks; content that an engine
// has under a second handle goes to a second sheet with the same base. Bad at: many stems of one or two blocks.
//
// The handles belong to the holder alone. The other fields change only under the stem's shard lock, because lookups read
// them where a stem's summary (see seat) is not enough.
type sheet struct {
	stem       uint32 // shard and stem; noStem on a free sheet
	next, prev uint32 // of the same holder and stem; noSheet at the ends
	held       [Tiers]uint16
	base       uint16 // the first block's place in the stem, a multiple of 16
	_          uint16
	handles    [sheetBlocks]uint64
}

const (
	sheetBlocks   = 16
	sheetWords    = 19
	sheetBits     = 8 // of a sheet's number, its place in its slab
	sheetsPerSlab = slabWords / sheetWords
	noSheet       = ^uint32(0)
	noStem        = ^uint32(0)
	noRef         = ^uint32(0)
)

// any is the blocks held in some tier.
func (s *sheet) any() uint16 { return s.held[GPU] | s.held[CPU] | s.held[Disk] | s.held[Remote] }

// stack is what the holder has at one base: the sheet and those behind it with the same base, taken together.
type stack struct {
	held [Tiers]uint16
	base int
}

// stackAt reads the stack that begins with a sheet and gives the sheet behind it.
func (m *memory) stackAt(id uint32) (st stack, next uint32) {
	s := m.sheet(id)
	st.held, st.base, next = s.held, int(s.base), s.next
	for next != noSheet {
		n := m.sheet(next)
		if int(n.base) != st.base {
			break
		}
		for t := range st.held {
			st.held[t] |= n.held[t]
		}
		next = n.next
	}
	return st, next
}

// best leaves in each tier only the blocks that no better tier has, and gives the blocks of all tiers.
func (s *stack) best() (all uint16) {
	for t := range s.held {
		s.held[t] &^= all
		all |= s.held[t]
	}
	return all
}

// leading is the number of ones from bit 0 on.
func leading(mask uint16) int { return bits.TrailingZeros16(^mask) }
