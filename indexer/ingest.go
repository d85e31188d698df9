package indexer

import (
	"fmt"
	"slices"
)

// Store takes in blocks that a holder now has in a tier: a chain, each block behind the one before, the first behind
// the parent, or at the front of a prompt where there is none. handles are the engine's opaque block hashes, locals the
// blocks' local hashes.
//
// A handle that is held already is stored again (a second copy, where the holder counts copies) if its content is the
// same, and moves to the new content if not. Blocks that find no memory are dropped and counted, and mark the holder
// partial; that is no error. Errors: ErrUnknownParent (not of a partial holder), ErrOwnParent, ErrMalformed,
// ErrUnknownHolder; nothing is stored then. Cost: about 0.1 µs a block, no allocation but the index's own growth.
func (x *Index) Store(id Holder, tier Tier, parent uint64, hasParent bool, handles, locals []uint64) error {
	if len(handles) != len(locals) || tier >= Tiers {
		return fmt.Errorf("stored: %w: %d handles, %d local hashes, %v (want as many of each, and a known tier)", ErrMalformed, len(handles), len(locals), tier)
	}
	h, err := x.lockHolder(id)
	if err != nil {
		return err
	}
	at := noRef
	if hasParent {
		if slices.Contains(handles, parent) {
			h.mu.Unlock()
			return fmt.Errorf("stored: %w: handle %#x", ErrOwnParent, parent)
		}
		if h.lastKnown && h.lastHandle == parent {
			at = h.lastRef
		} else if at = h.find(parent, mix(parent, x.seed)); at == noRef {
			partial := h.partial.Load()
			h.mu.Unlock()
			if partial {
				x.tidy.dropped.Add(int64(len(handles)))
				return nil
			}
			return fmt.Errorf("stored: %w: handle %#x of holder %d (want it stored before; else ask the worker again for all)", ErrUnknownParent, parent, id)
		}
	}
	all, lacking := len(handles), false
	for len(handles) > 0 {
		n := min(len(handles), slice)
		got := h.store(at, tier, handles[:n], locals[:n])
		if got < n {
			x.tidy.dropped.Add(int64(len(handles) - got))
			h.partial.Store(true)
			lacking = true
			break
		}
		at, handles, locals = h.lastRef, handles[n:], locals[n:]
	}
	h.mu.Unlock()
	if x.tidy.limited {
		x.keepBudget(all, lacking)
	}
	return nil
}

// store takes in up to one slice behind a block, or at the front, and gives how many found room.
func (h *holder) store(at uint32, tier Tier, handles, locals []uint64) int {
	h.keysFor(handles)
	h.stock(len(handles)/sheetBlocks + 2)
	var t *tree
	if at == noRef {
		t = h.x.treeFor(locals[0])
	} else {
		t = h.x.treeOf(h.x.mem.sheet(at / sheetBlocks).stem)
	}
	w := writer{holder: h, tree: t, tier: tier}
	t.lock.Lock()
	n := w.place(at, handles, locals)
	t.lock.Unlock()

	added := 0
	for _, f := range h.fresh[:w.fresh] {
		ref, key := h.refs[f], h.keys[f]
		if old, slot := h.locate(handles[f], key); old != noRef {
			// The handle has come back for other content. Twice in one list, its last place counts.
			if last := lastIndex(handles[:n], handles[f]); h.refs[last] == old {
				old = ref
			} else {
				*slot = ref
			}
			h.forget(old)
		} else if h.table.insert(key, ref, h.keysOf) {
			added++
		} else {
			h.forget(ref)
			n = min(n, int(f))
		}
	}
	if added > 0 {
		h.held.Add(int64(added))
	}
	if h.lastKnown = n == len(handles); h.lastKnown {
		h.lastHandle, h.lastRef = handles[n-1], h.refs[n-1]
	}
	return n
}

// keysFor fills h.keys and fetches the table's lines, so that their cache misses overlap with each other and with the
// tree's.
func (h *holder) keysFor(handles []uint64) {
	for i, handle := range handles {
		key := mix(handle, h.x.seed)
		if h.keys[i] = key; h.table.dir != nil {
			prefetch(h.table.lineOf(key), 1)
		}
	}
}

func lastIndex(list []uint64, v uint64) int {
	i := len(list) - 1
	for i > 0 && list[i] != v {
		i--
	}
	return i
}

// forget clears a sheet slot in all tiers; the table is the caller's matter.
func (h *holder) forget(ref uint32) {
	mem := h.x.mem
	s := mem.sheet(ref / sheetBlocks)
	if len(h.copies) > 0 {
		for t := range Tier(Tiers) {
			delete(h.copies, copyOf{s.handles[ref%sheetBlocks], t})
		}
	}
	t := h.x.treeOf(s.stem)
	refs := [1]uint32{ref}
	t.lock.Lock()
	t.release(h, refs[:], 1<<Tiers-1)
	t.lock.Unlock()
}

// Remove takes blocks away from a tier of a holder, in any order, and gives how many of them the holder did not have
// there. A block that a second handle or another tier still holds goes on counting. Cost: about 0.07 µs a block.
func (x *Index) Remove(id Holder, tier Tier, handles []uint64) (unknown int, err error) {
	if tier >= Tiers {
		return 0, fmt.Errorf("removed: %w: %v (want a known tier)", ErrMalformed, tier)
	}
	h, err := x.lockHolder(id)
	if err != nil {
		return 0, err
	}
	for some := range slices.Chunk(handles, slice) {
		unknown += h.remove(tier, some)
	}
	h.mu.Unlock()
	return unknown, nil
}

func (h *holder) remove(tier Tier, handles []uint64) (unknown int) {
	if h.table.dir == nil {
		return len(handles)
	}
	h.keysFor(handles)
	mem, n := h.x.mem, 0
	for i, handle := range handles {
		ref := h.find(handle, h.keys[i])
		if ref == noRef {
			unknown++
			continue
		}
		if len(h.copies) > 0 && h.dropCopy(handle, tier) {
			continue
		}
		h.refs[n], h.keys[n] = ref, h.keys[i]
		n++
	}
	for from := 0; from < n; { // a lock for each row of blocks on one stem
		stem, to := mem.sheet(h.refs[from]/sheetBlocks).stem, from+1
		if stem == noStem { // named twice, and gone already
			unknown++
			h.refs[from] = noRef
			from++
			continue
		}
		for to < n && mem.sheet(h.refs[to]/sheetBlocks).stem == stem {
			to++
		}
		t := h.x.treeOf(stem)
		t.lock.Lock()
		unknown += t.release(h, h.refs[from:to], 1<<tier)
		t.lock.Unlock()
		from = to
	}
	lost := 0
	for i, ref := range h.refs[:n] { // what is held nowhere any more; release struck out the others
		if ref != noRef && h.table.remove(h.keys[i], ref) {
			lost++
		}
	}
	h.returnSheets(2 * sheetStock)
	if lost > 0 {
		h.held.Add(-int64(lost))
		h.lastKnown = false
	}
	return unknown
}

// addCopy counts a further copy of a block.
func (h *holder) addCopy(handle uint64, tier Tier) {
	if !h.counting {
		return
	}
	if h.copies == nil {
		h.copies = map[copyOf]uint8{}
	}
	c := copyOf{handle, tier}
	h.copies[c] = min(h.copies[c], maxCopies-1) + 1
}

// dropCopy says whether a copy remains after one of several has gone.
func (h *holder) dropCopy(handle uint64, tier Tier) bool {
	c := copyOf{handle, tier}
	n, ok := h.copies[c]
	if n > 1 {
		h.copies[c] = n - 1
	} else if ok {
		delete(h.copies, c)
	}
	return ok
}

// Clear takes all blocks of a holder away, in all tiers, and its partial mark. Cost: 50 to 100 ns a held block; the
// shards are locked for one stem at a time.
func (x *Index) Clear(id Holder) error {
	h, err := x.lockHolder(id)
	if err != nil {
		return err
	}
	h.clear()
	h.layOut()
	h.mu.Unlock()
	return nil
}

// clear empties the holder by way of its table: each reference leads to a stem, where the holder's seat and all its
// sheets are taken away at once.
func (h *holder) clear() {
	mem := h.x.mem
	h.table.each(func(seg *segment) {
		for i := range seg {
			for k, tag := range seg[i].tags {
				if tag == 0 {
					continue
				}
				stem := mem.sheet(seg[i].refs[k] / sheetBlocks).stem
				if stem == noStem {
					continue // gone with another block of its stem
				}
				t := h.x.treeOf(stem)
				t.lock.Lock()
				t.evict(h, stem&(1<<stemBits-1))
				t.lock.Unlock()
			}
		}
	})
	h.table.reset()
	h.returnSheets(0)
	h.held.Store(0)
	h.partial.Store(false)
	h.copies, h.lastKnown = nil, false
}

// ClearTier takes all blocks of a holder away from one tier.
func (x *Index) ClearTier(id Holder, tier Tier) error {
	if tier >= Tiers {
		return fmt.Errorf("cleared: %w: %v (want a known tier)", ErrMalformed, tier)
	}
	h, err := x.lockHolder(id)
	if err != nil {
		return err
	}
	defer h.mu.Unlock()
	mem := h.x.mem
	for c := range h.copies {
		if c.tier == tier {
			delete(h.copies, c)
		}
	}
	var handles []uint64
	h.table.each(func(seg *segment) {
		handles = handles[:0]
		for i := range seg {
			for k, tag := range seg[i].tags {
				ref := seg[i].refs[k]
				if tag == 0 {
					continue
				}
				if s := mem.sheet(ref / sheetBlocks); s.held[tier]>>(ref%sheetBlocks)&1 != 0 {
					handles = append(handles, s.handles[ref%sheetBlocks])
				}
			}
		}
		for some := range slices.Chunk(handles, slice) {
			h.remove(tier, some)
		}
	})
	return nil
}
