package indexer

// page lists, for one slot, sixteen adjacent blocks of one node: the engine hash of each block and the tiers that hold it. The
// engine hash is stored nowhere else: the slot's table refers to it as page number × 16 + entry, so finding an engine hash also
// finds its block and, on the same page, its neighbours. A page is 152 bytes: 9.5 bytes a block when full.
//
// A slot's pages of one node form a list sorted by base. That covers every case: a block removed from the middle is one bit
// cleared, a block in two tiers is a bit in two masks, and content under a second engine hash goes to a second page with the same
// base. Bad at: many nodes of one or two blocks.
//
// The engine hashes and storedAt are read and written by the slot's own calls only. The other fields change only under the
// shard's lock, because lookups read them if the residency's summary is not enough.
type page struct {
	node         uint32 // noNode on a free page
	next, prev   uint32 // page of the same slot and node; noPage at the ends
	held         [Tiers]uint16
	base         uint16 // offset of the first block in the node, a multiple of 16
	storedAt     uint16 // slot.stores when a block was last stored here, modulo 65536
	engineHashes [pageBlocks]uint64
}

const (
	pageBlocks   = 16
	pageWords    = 19
	pageBits     = 8 // of a page number; the bits above are its slab's
	pagesPerSlab = slabWords / pageWords
	noPage       = ^uint32(0)
	noNode       = ^uint32(0)
	noRef        = ^uint32(0)
)

// any returns a mask of the blocks held in some tier.
func (pg *page) any() uint16 { return pg.held[GPU] | pg.held[CPU] | pg.held[Disk] | pg.held[Remote] }

// firstAt returns the first of the slot's pages that have the same base as a page.
func (m *space) firstAt(id uint32) uint32 {
	pg := m.page(id)
	for pg.prev != noPage && m.page(pg.prev).base == pg.base {
		id = pg.prev
		pg = m.page(id)
	}
	return id
}

// heldAt returns masks of the blocks that a slot holds at one base, in any tier and on the GPU, on the page id or following ones
// with the same base, and the page after these.
func (m *space) heldAt(id uint32) (held, gpu uint16, base int, next uint32) {
	pg := m.page(id)
	held, gpu, base, next = pg.any(), pg.held[GPU], int(pg.base), pg.next
	for next != noPage && int(m.page(next).base) == base {
		pg = m.page(next)
		held, gpu, next = held|pg.any(), gpu|pg.held[GPU], pg.next
	}
	return held, gpu, base, next
}
