package indexer

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// slot is the private state of one slot: its table from engine hash to page entry, its stock of free pages, and scratch space for
// one slice of an event. Only calls for this slot touch it, so slots are fed in parallel and a lookup never waits for a table.
type slot struct {
	pages
	countCopies   bool
	heldBlocks    atomic.Int64
	stores        atomic.Uint64 // calls of Store
	partial       atomic.Bool   // blocks were dropped for lack of memory
	markedPartial atomic.Bool   // set by Mark
	upperBound    atomic.Bool   // set by Mark
	form          atomic.Uint64 // set by SetForm: the size and, in the lower half, the lookahead
	unclear       atomic.Bool   // its groups are not understood

	mu     sync.Mutex // also taken by the memory budget, which evicts blocks of any slot
	gone   bool       // Leave was called
	keysOf func([]uint32, []uint64)

	lastHash  uint64 // the block stored last: usually the next event's parent
	lastRef   uint32
	lastKnown bool

	copies map[copyKey]uint8 // number of copies beyond the first, if countCopies

	beside int64 // bytes reserved
	spare  int64 // bytes taken of memory.room for what is reserved next

	groups *groups // of a hybrid model, beside the one that the table has; nil: none

	// Scratch for one slice: references and table keys of its blocks, and the indexes of those whose engine hash is new.
	refs      [sliceBlocks]uint32
	keys      [sliceBlocks]uint64
	newHashes [sliceBlocks]uint16
}

// pages is where a slot's blocks are: its table, the pages that it may fill, and those of its blocks that are in doubt. Its user holds
// slot.mu.
type pages struct {
	x     *Index
	id    SlotID
	table table
	free  []uint32 // free pages; returned to other slots only at a call's end, so that a page freed during the call still has node == noNode

	// See Doubt: the number of doubtful blocks and, while there are any, a mask of the others by page.
	doubtful int
	sure     map[uint32]uint16
}

// copyKey names a block of which a slot that counts copies has more than one copy in a tier.
type copyKey struct {
	engineHash uint64
	tier       Tier
}

// copyBytes is the approximate memory of an entry of copies.
const copyBytes = 40

// Reserve counts n more bytes that the caller keeps about what a slot holds, outside of the index, and reports whether there is room. A
// negative n gives bytes back; Leave gives back the rest. All slots of all owners share a quarter of Options.MaxBytes, and no owner has
// more than three times what it leaves.
func (x *Index) Reserve(id SlotID, n int64) bool {
	s, err := x.lockSlot(id)
	if err != nil {
		return n <= 0
	}
	defer s.mu.Unlock()
	return s.reserve(n)
}

// reserveStep is what a slot takes beyond its need, and keeps of what it gives back, so that the room's lock is seldom taken.
const reserveStep = 4 << 10

func (s *slot) reserve(n int64) bool {
	mem := s.x.mem
	take := func(n int64) bool {
		if mem.room != nil && (!mem.leavesBeside(s.table.payer, n) || !mem.room.TryTake(s.table.payer, n)) {
			return false
		}
		mem.beside.Add(n)
		s.spare += n
		return true
	}
	if need := n - s.spare; need > 0 && !take(need+reserveStep) && !take(need) {
		return false
	}
	s.spare -= n
	s.beside += n
	keep := int64(reserveStep)
	if s.beside == 0 {
		keep = 0
	}
	if more := s.spare - keep; n < 0 && more > keep {
		if mem.room != nil {
			mem.room.Give(s.table.payer, more)
		}
		mem.beside.Add(-more)
		s.spare = keep
	}
	return true
}

// forgetCopies forgets all copies beyond the first of a block in a tier.
func (s *slot) forgetCopies(c copyKey) {
	if _, ok := s.copies[c]; ok {
		delete(s.copies, c)
		s.reserve(-copyBytes)
	}
}

// forgetAllCopies forgets all copies of blocks beyond the first.
func (s *slot) forgetAllCopies() {
	s.reserve(-int64(len(s.copies) * copyBytes))
	s.copies = nil
}

// sliceBlocks is the maximum number of blocks that are stored or removed under one lock.
const sliceBlocks = 256

// maxCopies limits the count of copies beyond the first.
const maxCopies = 254

// mix is one step of a keyed multiplicative hash: good enough for positions in a table, and not predictable without the seed.
func mix(v, seed uint64) uint64 {
	hi, lo := bits.Mul64(v^seed, 0x9FB21C651E98DF25)
	return hi ^ lo
}

// keysOfRefs computes the table keys of references, for table.insert.
func (s *pages) keysOfRefs(refs []uint32, keys []uint64) {
	mem, seed := s.x.mem, s.x.seed
	keys = keys[:len(refs)]
	for i, ref := range refs {
		keys[i] = mem.page(ref / pageBlocks).engineHashes[ref%pageBlocks]
	}
	for i, engineHash := range keys {
		keys[i] = mix(engineHash, seed)
	}
}

// find returns the reference of an engine hash, noRef if the slot does not hold it.
func (s *pages) find(engineHash, key uint64) uint32 {
	ref, _ := s.locate(engineHash, key)
	return ref
}

// locate does what find does, and also returns the position of the reference in the table.
func (s *pages) locate(engineHash, key uint64) (uint32, *uint32) {
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

// takePage takes a page from the slot's stock; noPage if there is no memory left.
func (s *pages) takePage() uint32 {
	s.stock(1)
	id, ok := pop(&s.free)
	if !ok {
		return noPage
	}
	return id
}

// stock fills the slot's stock up to at least n pages, so that none must be fetched under a shard's lock.
func (s *pages) stock(n int) {
	if len(s.free) < n {
		s.free = s.x.mem.takePages(s.free, n+pageStock, s.table.payer)
	}
}

const pageStock = 16

// freePage puts a page back into the slot's stock.
func (s *pages) freePage(id uint32) {
	pg := s.x.mem.page(id)
	pg.node = noNode
	s.unhold(id, pg.any())
	s.free = append(s.free, id)
}

// returnPages returns the pages beyond keep to all slots once there are twice as many.
func (s *pages) returnPages(keep int) {
	if len(s.free) > 2*keep {
		s.x.mem.givePages(s.free[keep:])
		s.free = s.free[:keep]
	}
}
