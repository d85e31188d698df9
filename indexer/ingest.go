package indexer

import (
	"fmt"
	"slices"
)

// Store records blocks that a slot now holds in a tier. They are a chain: each block follows the previous one, the first follows
// parent, or begins a prompt if hasParent is false. engineHashes are the engine's own hashes of the blocks, locals their local
// hashes.
//
// An engine hash that is held already with the same content is stored again (a further copy, if the slot counts copies); with
// other content it moves to the new content. Blocks for which there is no memory are counted as dropped and make the slot
// partial; that is not an error. Errors: ErrUnknownParent (not for a partial slot), ErrOwnParent, ErrMalformed,
// ErrUnknownSlot; nothing is stored then. Cost: about 0.1 µs a block, no allocation except for the index's own growth.
func (x *Index) Store(id SlotID, tier Tier, parent uint64, hasParent bool, engineHashes, locals []uint64) error {
	if len(engineHashes) != len(locals) || tier >= Tiers {
		return fmt.Errorf("stored: %w: %d engine hashes, %d local hashes, %v (want as many of each, and a known tier)",
			ErrMalformed, len(engineHashes), len(locals), tier)
	}
	s, err := x.lockSlot(id)
	if err != nil {
		return err
	}
	at := noRef
	if hasParent {
		if slices.Contains(engineHashes, parent) {
			s.mu.Unlock()
			return fmt.Errorf("stored: %w: engine hash %#x", ErrOwnParent, parent)
		}
		if s.lastKnown && s.lastHash == parent {
			at = s.lastRef
		} else {
			at = s.find(parent, mix(parent, x.seed))
			if at == noRef {
				partial := s.partial.Load()
				s.mu.Unlock()
				if partial {
					x.budget.dropped.Add(int64(len(engineHashes)))
					return nil
				}
				return fmt.Errorf("stored: %w: engine hash %#x of slot %d (want it stored before; ask the worker for a replay from 0)",
					ErrUnknownParent, parent, id)
			}
		}
	}
	s.stores.Add(1)
	all, noRoom := len(engineHashes), false
	for len(engineHashes) > 0 {
		n := min(len(engineHashes), sliceBlocks)
		got := s.store(at, tier, engineHashes[:n], locals[:n])
		if got < n {
			x.budget.dropped.Add(int64(len(engineHashes) - got))
			s.partial.Store(true)
			noRoom = true
			break
		}
		at, engineHashes, locals = s.lastRef, engineHashes[n:], locals[n:]
	}
	s.mu.Unlock()
	if x.budget.limited {
		x.keepBudget(all, noRoom)
	}
	return nil
}

// Copy records that a slot now also holds blocks in a tier that it holds in another, and returns how many of them it does not hold at all.
// Errors: ErrMalformed, ErrUnknownSlot. Cost: about 0.1 µs a block.
func (x *Index) Copy(id SlotID, tier Tier, engineHashes []uint64) (unknown int, err error) {
	if tier >= Tiers {
		return 0, fmt.Errorf("copied: %w: %v (want a known tier)", ErrMalformed, tier)
	}
	s, err := x.lockSlot(id)
	if err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	s.stores.Add(1)
	for _, engineHash := range engineHashes {
		if ref := s.find(engineHash, mix(engineHash, x.seed)); ref == noRef {
			unknown++
		} else {
			s.copy(tier, engineHash, ref)
		}
	}
	return unknown, nil
}

// copy records that a tier holds one more copy of a block.
func (s *slot) copy(tier Tier, engineHash uint64, ref uint32) {
	mem, bit := s.x.mem, ref%pageBlocks
	pg := mem.page(ref / pageBlocks)
	sh := s.x.shardOfNode(pg.node)
	sh.lock.Lock()
	if pg.held[tier]>>bit&1 != 0 {
		s.addCopy(engineHash, tier)
	}
	pg.held[tier] |= 1 << bit
	pg.storedAt = uint16(s.stores.Load())
	at := int(pg.base) + int(bit)
	res, head := mem.residencyOf(sh.node(pg.node), blocksOf(s.id))
	if next, ok := res.stored(tier, at, at+1); ok {
		*res = next
	} else {
		*res = mem.residencyFrom(blocksOf(s.id), *head)
	}
	sh.lock.Unlock()
	if tier == GPU && s.groups != nil {
		s.syncHash(engineHash)
	}
}

// store records up to one slice after the block at, or at the root if at is noRef, and returns how many fit.
func (s *slot) store(at uint32, tier Tier, engineHashes, locals []uint64) int {
	s.keysFor(engineHashes)
	s.stock(len(engineHashes)/pageBlocks + 2)
	w := writer{slot: s, tier: tier}
	n := w.insert(at, engineHashes, locals)
	added := 0
	for _, f := range s.newHashes[:w.newCount] {
		ref, key := s.refs[f], s.keys[f]
		if old, slot := s.locate(engineHashes[f], key); old != noRef {
			// The engine hash now has other content. If the list has it twice, its last block counts.
			if last := lastIndex(engineHashes[:n], engineHashes[f]); s.refs[last] == old {
				old = ref
			} else {
				*slot = ref
			}
			s.forget(old)
		} else if s.table.insert(key, ref, s.keysOf) {
			added++
		} else {
			s.forget(ref)
			n = min(n, int(f))
		}
	}
	if added > 0 {
		s.heldBlocks.Add(int64(added))
	}
	if s.groups != nil {
		for _, f := range s.newHashes[:w.newCount] {
			if _, ok := s.groups.held[engineHashes[f]]; ok || s.groups.before[engineHashes[f]] != nil {
				s.syncHash(engineHashes[f])
			}
		}
	}
	s.lastKnown = n == len(engineHashes)
	if s.lastKnown {
		s.lastHash, s.lastRef = engineHashes[n-1], s.refs[n-1]
	}
	return n
}

// keysFor fills keys and prefetches the table's lines, so that their cache misses overlap with each other and with the shard's.
func (s *slot) keysFor(engineHashes []uint64) {
	for i, engineHash := range engineHashes {
		key := mix(engineHash, s.x.seed)
		s.keys[i] = key
		if s.table.dir != nil {
			prefetch(s.table.lineOf(key), 1)
		}
	}
}

// lastIndex returns the index of the last v in list, 0 if there is none.
func lastIndex(list []uint64, v uint64) int {
	i := len(list) - 1
	for i > 0 && list[i] != v {
		i--
	}
	return i
}

// forget removes a page entry from all tiers; the caller updates the table.
func (s *slot) forget(ref uint32) {
	mem := s.x.mem
	pg := mem.page(ref / pageBlocks)
	if len(s.copies) > 0 {
		for t := range Tier(Tiers) {
			s.forgetCopies(copyKey{pg.engineHashes[ref%pageBlocks], t})
		}
	}
	refs := [1]uint32{ref}
	s.release(refs[:], 1<<Tiers-1)
}

// Remove removes blocks from one tier of a slot, in any order, and returns how many of them the slot did not hold there. A block
// that is still held under another engine hash or in another tier still counts. Errors: ErrMalformed, ErrUnknownSlot. Cost: about
// 0.07 µs a block.
func (x *Index) Remove(id SlotID, tier Tier, engineHashes []uint64) (unknown int, err error) {
	if tier >= Tiers {
		return 0, fmt.Errorf("removed: %w: %v (want a known tier)", ErrMalformed, tier)
	}
	s, err := x.lockSlot(id)
	if err != nil {
		return 0, err
	}
	for part := range slices.Chunk(engineHashes, sliceBlocks) {
		unknown += s.remove(tier, part)
	}
	s.mu.Unlock()
	return unknown, nil
}

// remove does what Remove does, for one slice.
func (s *slot) remove(tier Tier, engineHashes []uint64) (unknown int) {
	if s.table.dir == nil {
		return len(engineHashes)
	}
	s.keysFor(engineHashes)
	mem, n := s.x.mem, 0
	for i, engineHash := range engineHashes {
		ref := s.find(engineHash, s.keys[i])
		if ref == noRef {
			unknown++
			continue
		}
		if len(s.copies) > 0 && s.dropCopy(engineHash, tier) {
			continue
		}
		s.refs[n], s.keys[n] = ref, s.keys[i]
		n++
	}
	for from := 0; from < n; { // one lock for adjacent blocks of one node
		node, to := mem.page(s.refs[from]/pageBlocks).node, from+1
		if node == noNode { // twice in the list, and removed already
			unknown++
			s.refs[from] = noRef
			from++
			continue
		}
		for to < n && mem.page(s.refs[to]/pageBlocks).node == node {
			to++
		}
		unknown += s.release(s.refs[from:to], 1<<tier)
		from = to
	}
	removed := 0
	for i, ref := range s.refs[:n] { // blocks that are no longer held anywhere; release cleared the others
		if ref != noRef && s.table.remove(s.keys[i], ref) {
			removed++
		}
	}
	s.returnPages(2 * pageStock)
	if removed > 0 {
		s.heldBlocks.Add(-int64(removed))
		s.lastKnown = false
	}
	return unknown
}

// addCopy counts a further copy of a block.
func (s *slot) addCopy(engineHash uint64, tier Tier) {
	if !s.countCopies {
		return
	}
	if s.copies == nil {
		s.copies = map[copyKey]uint8{}
	}
	c := copyKey{engineHash, tier}
	if n, known := s.copies[c]; known || s.reserve(copyBytes) {
		s.copies[c] = min(n, maxCopies-1) + 1
	}
}

// dropCopy reports whether a copy remains after one of several was removed.
func (s *slot) dropCopy(engineHash uint64, tier Tier) bool {
	c := copyKey{engineHash, tier}
	n, ok := s.copies[c]
	if n > 1 {
		s.copies[c] = n - 1
	} else if ok {
		s.forgetCopies(c)
	}
	return ok
}

// Clear removes all blocks of a slot, in all tiers, and forgets that some were dropped (see Partial). Cost: 50 to 100 ns a held
// block; the shards are locked for one node at a time.
func (x *Index) Clear(id SlotID) error {
	s, err := x.lockSlot(id)
	if err != nil {
		return err
	}
	s.clear()
	s.mu.Unlock()
	return nil
}

// clear empties the slot by its table: each reference leads to a node, whose residency and pages are all removed at once.
func (s *slot) clear() {
	mem := s.x.mem
	if do := s.x.onLost.Load(); do != nil && s.heldBlocks.Load() > 0 {
		(*do)(s.id, listing(s))
	}
	s.sure, s.doubtful = nil, 0
	s.table.eachRef(func(ref uint32) {
		if node := mem.page(ref / pageBlocks).node; node != noNode { // else removed with an earlier block of its node
			s.evictNode(node)
		}
	})
	s.table.reset()
	s.returnPages(0)
	s.heldBlocks.Store(0)
	s.partial.Store(false)
	s.forgetAllCopies()
	s.lastKnown = false
	s.clearGroups()
}
