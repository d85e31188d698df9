package indexer

import (
	"sync"
	"sync/atomic"
)

// budget keeps the index within Options.MaxBytes. What is least useful goes first: blocks at the end of their branch that
// no lookup and no store came by for the longest time. Time is counted in blocks stored: an epoch is a sixteenth of what
// the index can hold. A stem remembers the epoch of its last lookup or store (a lookup writes it only when it has
// changed). A hand walks over the holders' tables and gives up, holder by holder, the stems without children that have
// been idle for so many epochs: for sixteen at first, for fewer after each round in which nothing was found.
//
// A store that finds the index over 7/8 of its limit drops twice as many blocks as it brought. Should memory run out
// all the same, the blocks that found none are dropped. Either way the holder is marked partial. Bad at: one long stem of which only
// the front is ever asked for, which is kept whole.
type budget struct {
	limited          bool
	evicted, dropped atomic.Int64

	stored atomic.Int64 // blocks since the epoch began

	mu     sync.Mutex // one sweep at a time; others go on without
	holder int        // the hand: a holder,
	place  uint32     // and a place in its table, of 30 bits
	age    int        // epochs that make a stem old; below 0, stems with children too
	fruit  bool       // something was found in this round
}

const (
	oldest     = 16 // epochs in which the index takes in as much as it can hold
	blockBytes = 25 // about what a held block costs
	topPlace   = 1 << 30
)

// keepBudget is called after a store of n blocks, with no holder locked.
func (x *Index) keepBudget(n int, lacking bool) {
	b := &x.tidy
	limit := int64(x.mem.limit) * chunkBytes
	if epoch := limit / blockBytes / oldest; b.stored.Add(int64(n)) >= epoch {
		b.stored.Add(-epoch)
		x.epoch.Store((x.epoch.Load() + 1) & epochMask)
	}
	_, used := x.mem.usage()
	if !lacking && used < limit-limit/8 || !b.mu.TryLock() {
		return
	}
	defer b.mu.Unlock()
	want := 2*n + sheetBlocks
	if lacking {
		want += slice // free memory is in the wrong places: make more
	}
	// A bounded walk: a store must not pay for a whole round when everything is in use.
	for steps := 0; want > 0 && steps < 64; steps++ {
		want -= x.sweep()
	}
}

// sweep moves the hand over one segment of one holder's table and gives the number of blocks dropped.
func (x *Index) sweep() (dropped int) {
	b := &x.tidy
	list := *x.holders.Load()
	if b.holder >= len(list) {
		b.holder, b.place = 0, 0
		switch {
		case b.fruit:
			b.age = min(b.age+1, oldest)
		case b.age > 0:
			b.age /= 2
		default:
			b.age = -1
		}
		b.fruit = false
	}
	if len(list) == 0 {
		return 0
	}
	h := list[b.holder]
	if h == nil || !h.mu.TryLock() {
		b.holder, b.place = b.holder+1, 0
		return 0
	}
	defer h.mu.Unlock()
	t := &h.table
	if h.gone || len(t.dir) == 0 || b.place >= topPlace {
		b.holder, b.place = b.holder+1, 0
		return 0
	}
	seg := t.dir[b.place>>(30-t.depth)]
	width := uint32(topPlace) >> seg.depth()
	b.place = b.place&^(width-1) + width

	var refs [segmentLines * 12]uint32
	n := 0
	for i := range seg {
		for k, tag := range seg[i].tags {
			if tag != 0 {
				refs[n] = seg[i].refs[k]
				n++
			}
		}
	}
	for _, ref := range refs[:n] {
		if stem := x.mem.sheet(ref / sheetBlocks).stem; stem != noStem {
			dropped += h.giveUp(x.treeOf(stem), stem&(1<<stemBits-1), b.age)
		}
	}
	h.returnSheets(2 * sheetStock)
	if dropped > 0 {
		b.fruit = true
		b.evicted.Add(int64(dropped))
		h.held.Add(-int64(dropped))
		h.partial.Store(true)
		h.lastKnown = false
	}
	return dropped
}

// giveUp drops all of a holder's blocks of one stem, where it is old and at the end of its branch.
func (h *holder) giveUp(t *tree, id uint32, age int) (dropped int) {
	t.lock.RLock()
	st := t.stem(id)
	unused := int((t.epoch.Load() - st.epoch()) & epochMask)
	old := unused >= age && (st.children == 0 || age < 0)
	_, head := t.mem.seatOf(st, h.id)
	first := *head
	t.lock.RUnlock()
	if !old {
		return 0
	}
	for at := first; at != noSheet; { // only this holder's calls change its sheets
		s := t.mem.sheet(at)
		for k, any := 0, s.any(); any>>k != 0; k++ {
			if any>>k&1 == 0 {
				continue
			}
			for tier := range Tier(Tiers) {
				delete(h.copies, copyOf{s.handles[k], tier})
			}
			if h.table.remove(mix(s.handles[k], h.x.seed), at*sheetBlocks+uint32(k)) {
				dropped++
			}
		}
		at = s.next
	}
	t.lock.Lock()
	t.evict(h, id)
	t.lock.Unlock()
	return dropped
}
