package indexer

import "math/bits"

// page lists, for one slot, sixteen neighbouring blocks of one node: the engine's engine hash of each and the tiers it
// lies in. It is the only place where a engine hash is written down; the slot's table refers to it as page number × 16 +
// slot, so finding a engine hash also finds its block and, on the same page, the blocks around it. A page is 152 bytes: 9.5
// bytes a block when full.
//
// A slot's pages of one node form a list in the order of their base. Gaps, tiers and second names need nothing else:
// a block removed from the middle is a bit cleared; a block in two tiers is a bit in two masks; content that an engine
// has under a second engine hash goes to a second page with the same base. Bad at: many nodes of one or two blocks.
//
// The engine hashes belong to the slot alone. The other fields change only under the node's shard lock, because lookups read
// them where a node's summary (see residency) is not enough.
type page struct {
	node         uint32 // shard and node; noStem on a free page
	next, prev   uint32 // of the same slot and node; noSheet at the ends
	held         [Tiers]uint16
	base         uint16 // the first block's place in the node, a multiple of 16
	_            uint16
	engineHashes [pageBlocks]uint64
}

const (
	pageBlocks   = 16
	pageWords    = 19
	pageBits     = 8 // of a page's number, its place in its slab
	pagesPerSlab = slabWords / pageWords
	noPage       = ^uint32(0)
	noNode       = ^uint32(0)
	noRef        = ^uint32(0)
)

// any is the blocks held in some tier.
func (pg *page) any() uint16 { return pg.held[GPU] | pg.held[CPU] | pg.held[Disk] | pg.held[Remote] }

// stack is what the slot has at one base: the page and those behind it with the same base, taken together.
type stack struct {
	held [Tiers]uint16
	base int
}

// stackAt reads the stack that begins with a page and gives the page behind it.
func (m *memory) stackAt(id uint32) (st stack, next uint32) {
	pg := m.page(id)
	st.held, st.base, next = pg.held, int(pg.base), pg.next
	for next != noPage {
		n := m.page(next)
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
func leadingOnes(mask uint16) int { return bits.TrailingZeros16(^mask) }
