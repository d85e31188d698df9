package indexer

// Drop takes away, in all tiers and copies, what a slot has of a prompt from its block number from on, and gives how many
// blocks that were. It is for a caller who has learned that the worker does not hold them after all: its answer counted
// fewer cached tokens than an exact prediction. Cost: about 0.1 µs a block.
func (x *Index) Drop(id SlotID, locals []uint64, from int) (dropped int, err error) {
	s, err := x.lockSlot(id)
	if err != nil || len(locals) == 0 {
		if err == nil {
			s.mu.Unlock()
		}
		return 0, err
	}
	defer s.mu.Unlock()
	before := s.heldBlocks.Load()
	var engineHashes [Tiers][]uint64
	sh := x.shardForPrompt(locals[0])
	sh.lock.RLock()
	for parent, place, at := uint32(root), 0, 0; at < len(locals); {
		run := sh.child(parent, place, locals[at:])
		if run == 0 {
			break
		}
		nd := sh.mem.node(run)
		n := common(sh.mem.locals(run, nd.length()), locals[at:])
		if _, head := sh.mem.residencyOf(nd, id); head != nil {
			sh.mem.engineHashesIn(*head, max(from-at, 0), n, &engineHashes)
		}
		parent, place, at = nd.id, n, at+n
	}
	sh.lock.RUnlock()
	for tier, list := range engineHashes {
		for _, engineHash := range list {
			delete(s.copies, copyKey{engineHash, Tier(tier)})
		}
		for len(list) > 0 {
			n := min(len(list), sliceBlocks)
			s.remove(Tier(tier), list[:n])
			list = list[n:]
		}
	}
	return int(before - s.heldBlocks.Load()), nil
}

// handlesIn adds the engine hashes that a list of pages has at places from..to of its node, by tier.
func (m *memory) engineHashesIn(page uint32, from, to int, add *[Tiers][]uint64) {
	for ; page != noPage; page = m.page(page).next {
		pg := m.page(page)
		for k := range pageBlocks {
			if place := int(pg.base) + k; place < from || place >= to {
				continue
			}
			for tier := range pg.held {
				if pg.held[tier]>>k&1 != 0 {
					add[tier] = append(add[tier], pg.engineHashes[k])
				}
			}
		}
	}
}
