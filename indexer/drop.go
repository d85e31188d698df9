package indexer

// Drop takes away, in all tiers and copies, what a holder has of a prompt from its block number from on, and gives how many
// blocks that were. It is for a caller who has learned that the worker does not hold them after all: its answer counted
// fewer cached tokens than an exact prediction. Cost: about 0.1 µs a block.
func (x *Index) Drop(id Holder, locals []uint64, from int) (dropped int, err error) {
	h, err := x.lockHolder(id)
	if err != nil || len(locals) == 0 {
		if err == nil {
			h.mu.Unlock()
		}
		return 0, err
	}
	defer h.mu.Unlock()
	before := h.held.Load()
	var handles [Tiers][]uint64
	t := x.treeFor(locals[0])
	t.lock.RLock()
	for parent, place, at := uint32(root), 0, 0; at < len(locals); {
		run := t.child(parent, place, locals[at:])
		if run == 0 {
			break
		}
		st := t.mem.record(run)
		n := common(t.mem.hashes(run, st.length()), locals[at:])
		if _, head := t.mem.seatOf(st, id); head != nil {
			t.mem.handlesIn(*head, max(from-at, 0), n, &handles)
		}
		parent, place, at = st.id, n, at+n
	}
	t.lock.RUnlock()
	for tier, list := range handles {
		for _, handle := range list {
			delete(h.copies, copyOf{handle, Tier(tier)})
		}
		for len(list) > 0 {
			n := min(len(list), slice)
			h.remove(Tier(tier), list[:n])
			list = list[n:]
		}
	}
	return int(before - h.held.Load()), nil
}

// handlesIn adds the handles that a list of sheets has at places from..to of its stem, by tier.
func (m *memory) handlesIn(sheet uint32, from, to int, add *[Tiers][]uint64) {
	for ; sheet != noSheet; sheet = m.sheet(sheet).next {
		s := m.sheet(sheet)
		for k := range sheetBlocks {
			if place := int(s.base) + k; place < from || place >= to {
				continue
			}
			for tier := range s.held {
				if s.held[tier]>>k&1 != 0 {
					add[tier] = append(add[tier], s.handles[k])
				}
			}
		}
	}
}
