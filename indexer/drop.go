package indexer

import "slices"

// Stores returns the number of Store calls for a slot so far, for Drop; 0 for an unknown slot.
func (x *slotList) Stores(id SlotID) uint64 {
	if s := x.slot(id); s != nil {
		return s.stores.Load()
	}
	return 0
}

// Drop removes a prompt's blocks from index from on from a slot, in all tiers and copies, and returns how many these were. It is
// for a caller that learned that the worker did not hold them when Stores was since: the answer reported fewer cached tokens than
// an exact prediction. Blocks that were stored later stay, with one copy counted in each tier: by then the worker has computed
// most of these blocks again. This is tracked for each page of sixteen blocks, and for 65 535 further stores. Cost: about 0.1 µs
// a block. Error: ErrUnknownSlot.
func (x *Index) Drop(id SlotID, locals []uint64, from int, since uint64) (dropped int, err error) {
	if len(locals) == 0 {
		return 0, nil
	}
	s, err := x.lockSlot(id)
	if err != nil {
		return 0, err
	}
	defer s.mu.Unlock()
	before := s.heldBlocks.Load()
	var engineHashes [Tiers][]uint64
	for whole := false; !whole; {
		engineHashes, whole = s.dropped(locals, from, since)
	}
	for tier, list := range engineHashes {
		for part := range slices.Chunk(list, sliceBlocks) {
			s.remove(Tier(tier), part)
		}
	}
	return int(before - s.heldBlocks.Load()), nil
}

// dropped returns by tier the engine hashes that Drop removes; false if it must start over, see shard.
func (s *slot) dropped(locals []uint64, from int, since uint64) (engineHashes [Tiers][]uint64, whole bool) {
	whole = eachNode(s, locals, func(page uint32, at, n int, _ []uint64) {
		s.appendDropped(&engineHashes, page, max(from-at, 0), n, since)
	})
	return engineHashes, whole
}

// StoredSince reports whether a slot holds some of a prompt's blocks from one index to another on pages to which it has stored since Stores
// was since. It did not hold these before, or not all.
func (x *Index) StoredSince(id SlotID, locals []uint64, from, to int, since uint64) (stored bool) {
	s, err := x.lockSlot(id)
	if err != nil || len(locals) == 0 {
		return false
	}
	defer s.mu.Unlock()
	for whole := false; !whole; {
		stored = false
		whole = eachNode(s, locals[:min(to, len(locals))], func(page uint32, at, n int, _ []uint64) {
			for ; page != noPage; page = x.mem.page(page).next {
				pg := x.mem.page(page)
				first, last := int(pg.base)+at, int(pg.base)+at+pageBlocks
				stored = stored || last > from && first < at+n && first < to && pg.any() != 0 && s.storedAfter(pg, since)
			}
		})
	}
	return stored
}

// Behind appends the local hashes of the blocks that a slot holds right behind a prompt and has stored since Stores was since: those of its
// answer. They are missing if another answer to the prompt was stored before. Cost: about that of a lookup of the prompt.
func (x *Index) Behind(dst []uint64, id SlotID, locals []uint64, since uint64) []uint64 {
	s, err := x.lockSlot(id)
	if err != nil {
		return dst
	}
	defer s.mu.Unlock()
	before := len(dst)
	for whole := false; !whole; {
		dst = dst[:before]
		whole = eachNode(s, locals, func(page uint32, at, n int, behind []uint64) {
			if at+n < len(locals) {
				return
			}
			for k, local := range behind {
				for page != noPage && int(x.mem.page(page).base)+pageBlocks <= n+k {
					page = x.mem.page(page).next
				}
				if page == noPage {
					return
				}
				if pg := x.mem.page(page); n+k < int(pg.base) || pg.any()>>(n+k-int(pg.base))&1 == 0 || !s.storedAfter(pg, since) {
					return
				}
				dst = append(dst, local)
			}
		})
	}
	return dst
}

// eachNode calls a function with the slot's pages of each node of a prompt, how many blocks are before the node, how many it has of the
// prompt, and its blocks behind these. It returns false if it must start over, see shard.
func eachNode(s *slot, locals []uint64, do func(page uint32, at, n int, behind []uint64)) (whole bool) {
	var sh *shard
	for parent, offset, at := uint32(root), 0, 0; at < len(locals); {
		key := childKey(parent, offset, locals[at], s.x.seed)
		next := s.x.shardOfKey(key)
		if sh == nil {
			next.lock.RLock()
		} else if !sh.follow(next) {
			next.lock.RUnlock()
			return false
		}
		sh = next
		run := sh.child(key, parent, offset, locals[at:])
		if run == 0 {
			break
		}
		nd := sh.mem.node(run)
		all := sh.mem.locals(run, nd.length())
		n := common(all, locals[at:])
		if _, head := sh.mem.residencyOf(nd, blocksOf(s.id)); head != nil {
			do(*head, at, n, all[n:])
		}
		parent, offset, at = nd.id, n, at+n
	}
	sh.lock.RUnlock()
	return true
}

// appendDropped appends by tier the engine hashes that a list of pages holds at offsets [from, to) of its node and that were not
// stored after since, and forgets further copies of all of them.
func (s *slot) appendDropped(add *[Tiers][]uint64, page uint32, from, to int, since uint64) {
	mem := s.x.mem
	for ; page != noPage; page = mem.page(page).next {
		pg := mem.page(page)
		stays := s.storedAfter(pg, since)
		for k := range pageBlocks {
			if offset := int(pg.base) + k; offset < from || offset >= to {
				continue
			}
			for tier := range pg.held {
				if pg.held[tier]>>k&1 == 0 {
					continue
				}
				s.forgetCopies(copyKey{pg.engineHashes[k], Tier(tier)})
				if !stays {
					add[tier] = append(add[tier], pg.engineHashes[k])
				}
			}
		}
	}
}

// storedAfter reports whether a block was stored on a page after the slot's first since stores.
func (s *slot) storedAfter(pg *page, since uint64) bool {
	now := s.stores.Load()
	age := uint16(now) - pg.storedAt // stores since then, modulo 65536
	return now-since < 1<<16 && uint64(age) < now-since
}
