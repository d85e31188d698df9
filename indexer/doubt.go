package indexer

import "math/bits"

// Doubt puts all that a slot holds in doubt, or only the blocks with some engine hashes: messages were lost, and blocks that they
// removed may still be in the index. Lookups count doubtful blocks like others. A block is in doubt until Confirm reaches it or
// it is removed; blocks stored later are not. Further copies of all blocks are forgotten, since they may be gone: one removal is
// then enough. What further groups hold (StoreGroup) is forgotten.
//
// Cost: without engine hashes none that grows with what is held, since the blocks that are not in doubt are recorded, by page:
// about a byte for each of these while any other is in doubt. With engine hashes about 0.1 µs a held block.
func (x *Index) Doubt(id SlotID, engineHashes []uint64) {
	s, err := x.lockSlot(id)
	if err != nil {
		return
	}
	defer s.mu.Unlock()
	s.sure, s.doubtful = map[uint32]uint16{}, int(s.heldBlocks.Load())
	s.forgetAllCopies()
	s.clearGroups()
	s.settled(0)
	if len(engineHashes) == 0 {
		return
	}
	only := make(map[uint32]bool, len(engineHashes))
	for _, engineHash := range engineHashes {
		only[s.find(engineHash, mix(engineHash, x.seed))] = true
	}
	s.table.eachRef(func(ref uint32) {
		if !only[ref] {
			s.confirm(ref/pageBlocks, 1<<(ref%pageBlocks))
		}
	})
}

// InDoubt returns how many of a slot's blocks are in doubt.
func (x *slotList) InDoubt(id SlotID) int {
	s, err := x.lockSlot(id)
	if err != nil {
		return 0
	}
	defer s.mu.Unlock()
	return s.doubtful
}

// Doubtful returns the engine hashes of a slot's blocks that are in doubt. Cost: about 0.05 µs a held block.
func (x *Index) Doubtful(id SlotID) (engineHashes []uint64) {
	s, err := x.lockSlot(id)
	if err != nil {
		return nil
	}
	defer s.mu.Unlock()
	if s.doubtful == 0 {
		return nil
	}
	engineHashes = make([]uint64, 0, s.doubtful)
	s.table.eachRef(func(ref uint32) {
		if !s.isSure(ref) {
			engineHashes = append(engineHashes, x.mem.page(ref / pageBlocks).engineHashes[ref%pageBlocks])
		}
	})
	return engineHashes
}

// DropDoubtful removes those of some blocks that are in doubt, in all tiers, and returns their engine hashes. Cost: about 0.2 µs
// a block.
func (x *Index) DropDoubtful(id SlotID, engineHashes []uint64) (dropped []uint64) {
	s, err := x.lockSlot(id)
	if err != nil {
		return nil
	}
	defer s.mu.Unlock()
	for _, engineHash := range engineHashes {
		if s.doubtful == 0 {
			break
		}
		key := mix(engineHash, x.seed)
		if ref := s.find(engineHash, key); ref != noRef && !s.isSure(ref) {
			s.forget(ref)
			s.table.remove(key, ref)
			dropped = append(dropped, engineHash)
		}
	}
	if len(dropped) > 0 {
		s.heldBlocks.Add(-int64(len(dropped)))
		s.lastKnown = false
		s.returnPages(2 * pageStock)
	}
	return dropped
}

// Confirm ends the doubt about a block that is known to be held, and about those before it, since engines evict from the ends of
// prompts. It returns how many these are. It stops at a block that is not in doubt, since all before that one are not either, and
// at one that is not held. Among the blocks before, content under several engine hashes stays in doubt, since it is not known
// which of them is held. Cost: about 0.1 µs, and as much for every sixteen blocks.
func (x *Index) Confirm(id SlotID, engineHash uint64) (confirmed int) {
	s, err := x.lockSlot(id)
	if err != nil {
		return 0
	}
	defer s.mu.Unlock()
	was, mem := s.doubtful, x.mem
	if was == 0 {
		return 0
	}
	ref := s.find(engineHash, mix(engineHash, x.seed))
	if ref == noRef || s.isSure(ref) {
		return 0
	}
	page, bit := ref/pageBlocks, int(ref%pageBlocks)
	s.confirm(page, 1<<bit)
	for page != noPage {
		page = mem.firstAt(page)
		var held, twice, sure uint16
		for at, base := page, mem.page(page).base; at != noPage && mem.page(at).base == base; at = mem.page(at).next {
			any := mem.page(at).any()
			held, twice, sure = held|any, twice|held&any, sure|s.sure[at]
		}
		before := uint16(1)<<bit - 1
		from := bits.Len16((^held | sure) & before)
		for at, base := page, mem.page(page).base; at != noPage && mem.page(at).base == base; at = mem.page(at).next {
			s.confirm(at, mem.page(at).any()&^twice&before&^(1<<from-1))
		}
		if from > 0 || s.doubtful == 0 {
			break
		}
		page, bit = s.pageBefore(page)
	}
	return was - s.doubtful
}

// pageBefore returns a page of the blocks before the first page of a base, and how many of that page's entries precede; noPage if
// the slot does not hold the last of these, or there is none.
func (s *pages) pageBefore(first uint32) (page uint32, entries int) {
	mem := s.x.mem
	pg := mem.page(first)
	if pg.base > 0 {
		if pg.prev == noPage || mem.page(pg.prev).base+pageBlocks != pg.base {
			return noPage, 0
		}
		return pg.prev, pageBlocks
	}
	sh := s.x.shardOfNode(pg.node)
	sh.lock.RLock()
	nd := sh.node(pg.node)
	parent, offset := nd.parent, int(nd.parentOffset)
	sh.lock.RUnlock()
	if parent == root {
		return noPage, 0
	}
	sh = s.x.shardOfNode(parent)
	sh.lock.RLock()
	defer sh.lock.RUnlock()
	_, head := mem.residencyOf(sh.node(parent), blocksOf(s.id))
	if head == nil {
		return noPage, 0
	}
	base := (offset - 1) &^ (pageBlocks - 1)
	page, _ = mem.seek(*head, noPage, base)
	return page, offset - base
}

func (s *pages) isSure(ref uint32) bool { return s.sure[ref/pageBlocks]>>(ref%pageBlocks)&1 != 0 }

// confirm ends the doubt about blocks of a page.
func (s *pages) confirm(page uint32, blocks uint16) {
	if sure := s.sure[page]; s.doubtful > 0 && blocks&^sure != 0 {
		s.sure[page] = sure | blocks
		s.settled(bits.OnesCount16(blocks &^ sure))
	}
}

// unhold records that blocks of a page are no longer held.
func (s *pages) unhold(page uint32, blocks uint16) {
	if s.doubtful == 0 {
		return
	}
	sure := s.sure[page]
	if left := sure &^ blocks; left != 0 {
		s.sure[page] = left
	} else {
		delete(s.sure, page)
	}
	s.settled(bits.OnesCount16(blocks &^ sure))
}

// settled records that n blocks are no longer in doubt.
func (s *pages) settled(n int) {
	s.doubtful -= n
	if s.doubtful == 0 {
		s.sure = nil
	}
}
