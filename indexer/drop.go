package indexer

import "slices"

// Drop takes a prompt's blocks from number from on away from a slot, in all tiers and copies, and returns how many these
// were. It is for a caller who learned that the worker does not hold them after all: the answer reported fewer cached tokens
// than an exact prediction. Cost: about 0.1 µs a block.
func (x *Index) Drop(id SlotID, locals []uint64, from int) (dropped int, err error) {
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
	sh := x.shardForPrompt(locals[0])
	sh.lock.RLock()
	for parent, offset, at := uint32(root), 0, 0; at < len(locals); {
		run := sh.child(parent, offset, locals[at:])
		if run == 0 {
			break
		}
		nd := sh.mem.node(run)
		n := common(sh.mem.locals(run, nd.length()), locals[at:])
		if _, head := sh.mem.residencyOf(nd, id); head != nil {
			sh.mem.engineHashesIn(*head, max(from-at, 0), n, &engineHashes)
		}
		parent, offset, at = nd.id, n, at+n
	}
	sh.lock.RUnlock()
	for tier, list := range engineHashes {
		for _, engineHash := range list {
			delete(s.copies, copyKey{engineHash, Tier(tier)})
		}
		for part := range slices.Chunk(list, sliceBlocks) {
			s.remove(Tier(tier), part)
		}
	}
	return int(before - s.heldBlocks.Load()), nil
}

// engineHashesIn appends the engine hashes that a list of pages holds at offsets [from, to) of its node, by tier.
func (m *memory) engineHashesIn(page uint32, from, to int, add *[Tiers][]uint64) {
	for ; page != noPage; page = m.page(page).next {
		pg := m.page(page)
		for k := range pageBlocks {
			if offset := int(pg.base) + k; offset < from || offset >= to {
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
