package indexer

import (
	"sync"
	"sync/atomic"
)

// budget keeps the index within Options.MaxBytes. What is least useful goes first: blocks at the end of their branch that
// no lookup and no store came by for the longest time. Time is counted in blocks stored: an epoch is a sixteenth of what
// the index can hold. A node remembers the epoch of its last lookup or store (a lookup writes it only when it has
// changed). A hand walks over the slots' tables and gives up, slot by slot, the nodes without children that have
// been idle for so many epochs: for sixteen at first, for fewer after each round in which nothing was found.
//
// A store that finds the index over 7/8 of its limit drops twice as many blocks as it brought. Should memory run out
// all the same, the blocks that found none are dropped. Either way the slot is marked partial. Bad at: one long node of which only
// the front is ever asked for, which is kept whole.
type budget struct {
	limited          bool
	evicted, dropped atomic.Int64

	stored atomic.Int64 // blocks since the epoch began

	mu          sync.Mutex // one sweep at a time; others go on without
	slot        int        // the hand: a slot,
	position    uint32     // and a place in its table, of 30 bits
	idleEpochs  int        // epochs that make a node old; below 0, nodes with children too
	evictedSome bool       // something was found in this round
}

const (
	maxIdleEpochs = 16 // epochs in which the index takes in as much as it can hold
	blockBytes    = 25 // about what a held block costs
	positions     = 1 << 30
)

// keepBudget is called after a store of n blocks, with no slot locked.
func (x *Index) keepBudget(n int, lacking bool) {
	b := &x.budget
	limit := int64(x.mem.limit) * chunkBytes
	if epoch := limit / blockBytes / maxIdleEpochs; b.stored.Add(int64(n)) >= epoch {
		b.stored.Add(-epoch)
		x.epoch.Store((x.epoch.Load() + 1) & epochMask)
	}
	_, used := x.mem.usage()
	if !lacking && used < limit-limit/8 || !b.mu.TryLock() {
		return
	}
	defer b.mu.Unlock()
	want := 2*n + pageBlocks
	if lacking {
		want += sliceBlocks // free memory is in the wrong places: make more
	}
	// A bounded walk: a store must not pay for a whole round when everything is in use.
	for steps := 0; want > 0 && steps < 64; steps++ {
		want -= x.sweep()
	}
}

// sweep moves the hand over one segment of one slot's table and gives the number of blocks dropped.
func (x *Index) sweep() (dropped int) {
	b := &x.budget
	list := *x.slots.Load()
	if b.slot >= len(list) {
		b.slot, b.position = 0, 0
		switch {
		case b.evictedSome:
			b.idleEpochs = min(b.idleEpochs+1, maxIdleEpochs)
		case b.idleEpochs > 0:
			b.idleEpochs /= 2
		default:
			b.idleEpochs = -1
		}
		b.evictedSome = false
	}
	if len(list) == 0 {
		return 0
	}
	s := list[b.slot]
	if s == nil || !s.mu.TryLock() {
		b.slot, b.position = b.slot+1, 0
		return 0
	}
	defer s.mu.Unlock()
	t := &s.table
	if s.gone || len(t.dir) == 0 || b.position >= positions {
		b.slot, b.position = b.slot+1, 0
		return 0
	}
	seg := t.dir[b.position>>(30-t.depth)]
	width := uint32(positions) >> seg.depth()
	b.position = b.position&^(width-1) + width

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
		if node := x.mem.page(ref / pageBlocks).node; node != noNode {
			dropped += s.evictIdle(x.shardOfNode(node), node&(1<<nodeBits-1), b.idleEpochs)
		}
	}
	s.returnPages(2 * pageStock)
	if dropped > 0 {
		b.evictedSome = true
		b.evicted.Add(int64(dropped))
		s.heldBlocks.Add(-int64(dropped))
		s.partial.Store(true)
		s.lastKnown = false
	}
	return dropped
}

// giveUp drops all of a slot's blocks of one node, where it is old and at the end of its branch.
func (s *slot) evictIdle(sh *shard, id uint32, age int) (dropped int) {
	sh.lock.RLock()
	nd := sh.node(id)
	unused := int((sh.epoch.Load() - nd.epoch()) & epochMask)
	old := unused >= age && (nd.childCount == 0 || age < 0)
	_, head := sh.mem.residencyOf(nd, s.id)
	first := *head
	sh.lock.RUnlock()
	if !old {
		return 0
	}
	for at := first; at != noPage; { // only this slot's calls change its pages
		pg := sh.mem.page(at)
		for k, any := 0, pg.any(); any>>k != 0; k++ {
			if any>>k&1 == 0 {
				continue
			}
			for tier := range Tier(Tiers) {
				delete(s.copies, copyKey{pg.engineHashes[k], tier})
			}
			if s.table.remove(mix(pg.engineHashes[k], s.x.seed), at*pageBlocks+uint32(k)) {
				dropped++
			}
		}
		at = pg.next
	}
	sh.lock.Lock()
	sh.evictNode(s, id)
	sh.lock.Unlock()
	return dropped
}
