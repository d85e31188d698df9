package indexer

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// slot is the private side of one slot: its table from engine hash to page slot, its stock of free pages, and scratch
// space for one slice of an event. Only calls for this slot touch it, so slots are fed in parallel and a lookup
// never waits for a table.
type slot struct {
	x             *Index
	id            SlotID
	countCopies   bool
	heldBlocks    atomic.Int64
	partial       atomic.Bool // blocks were dropped for lack of memory
	markedPartial atomic.Bool // MarkPartial
	recurrent     atomic.Bool // MarkRecurrent

	mu     sync.Mutex // the budget may drop another slot's blocks
	gone   bool
	table  table
	keysOf func([]uint32, []uint64)
	pages  []uint32 // free pages; not shared while a call runs, so that what it frees stays recognisable

	lastHash  uint64 // the block stored last: most often the next event's parent
	lastRef   uint32
	lastKnown bool

	copies map[copyKey]uint8 // further physical copies, where counted

	refs      [sliceBlocks]uint32
	keys      [sliceBlocks]uint64
	newHashes [sliceBlocks]uint16
}

// copyOf names a block of which there is more than one copy in a tier.
type copyKey struct {
	engineHash uint64
	tier       Tier
}

// slice is the most blocks that are stored or removed under one lock.
const sliceBlocks = 256

const maxCopies = 255

// mix is one step of a keyed multiplicative hash: enough for table places, and not to be guessed from outside.
func mix(v, seed uint64) uint64 {
	hi, lo := bits.Mul64(v^seed, 0x9FB21C651E98DF25)
	return hi ^ lo
}

func (s *slot) keysOfRefs(refs []uint32, keys []uint64) {
	mem, seed := s.x.mem, s.x.seed
	keys = keys[:len(refs)]
	for i, ref := range refs {
		keys[i] = mem.page(ref / pageBlocks).engineHashes[ref%pageBlocks]
	}
	for i, engineHash := range keys {
		keys[i] = mix(engineHash, seed)
	}
}

// find gives the reference of a engine hash, noRef where it is not held.
func (s *slot) find(engineHash, key uint64) uint32 {
	ref, _ := s.locate(engineHash, key)
	return ref
}

// locate gives also the place of the reference in the table.
func (s *slot) locate(engineHash, key uint64) (uint32, *uint32) {
	if s.table.dir == nil {
		return noRef, nil
	}
	mem := s.x.mem
	seg, home, tag := s.table.segmentOf(key), homeOf(key), tagOf(key)
	for d := uint32(0); d < segmentLines; d++ {
		l := seg.line(home + d)
		lo, hi := l.match(tag)
		for ; lo|hi != 0; lo, hi = dropLow(lo, hi) {
			k := lowEntry(lo, hi)
			if ref := l.refs[k]; mem.page(ref / pageBlocks).engineHashes[ref%pageBlocks] == engineHash {
				return ref, &l.refs[k]
			}
		}
		if l.overflow == 0 {
			break
		}
	}
	return noRef, nil
}

// takeSheet gives a page from the slot's stock, noSheet when there is no memory left.
func (s *slot) takePage() uint32 {
	if len(s.pages) == 0 {
		s.stock(1)
		if len(s.pages) == 0 {
			return noPage
		}
	}
	id := s.pages[len(s.pages)-1]
	s.pages = s.pages[:len(s.pages)-1]
	return id
}

// stock sees to it that n pages are at hand, so that none must be fetched under a shard's lock.
func (s *slot) stock(n int) {
	if len(s.pages) < n {
		s.pages = s.x.mem.takePages(s.pages, n+pageStock)
	}
}

const pageStock = 16

// giveSheet takes a page back.
func (s *slot) freePage(id uint32) {
	s.x.mem.page(id).node = noNode
	s.pages = append(s.pages, id)
}

// returnSheets gives what goes beyond a small stock to the other slots.
func (s *slot) returnPages(keep int) {
	if len(s.pages) > 2*keep {
		s.x.mem.givePages(s.pages[keep:])
		s.pages = s.pages[:keep]
	}
}
