package indexer

import (
	"sync"
	"sync/atomic"

	"github.com/sightline-router/sightline/internal/fair"
)

// budget keeps the index within Options.MaxBytes by evicting the nodes that no lookup or store has touched for the longest time,
// leaves first. Time is counted in stored blocks: an epoch is a sixteenth of what the index can hold. A node has the epoch of its
// last lookup or store (a lookup writes it only if it has changed). Like a clock's hand, a sweep goes over the slots' tables and
// evicts, slot by slot, the nodes without children that were idle for idleEpochs: sixteen at first, fewer after each round that
// found nothing. While one of several owners holds more than half of all blocks, only its own are evicted, and it may not use
// the last 1/16 of the memory: a worker that reports without end takes no room from the others.
//
// A store that leaves the index above 7/8 of its limit evicts twice as many blocks as it brought. If memory runs out
// nevertheless, the blocks that do not fit are dropped. Both make the slot partial. Bad at: a long node of which only the
// beginning is ever looked up, because nodes are evicted whole.
type budget struct {
	limited          bool
	evicted, dropped atomic.Int64

	stored atomic.Int64 // blocks stored since the epoch began

	mu          sync.Mutex // one sweep at a time; a store that finds it taken skips its own
	slot        int        // the hand: a slot's number
	position    uint32     // and a 30-bit position in its table
	idleEpochs  int        // nodes idle for that long are evicted; below 0: any node, even with children
	evictedSome bool       // in the current round over all slots
	steps       int
}

const (
	maxIdleEpochs = 16 // in this many epochs the index stores as much as it can hold
	blockBytes    = 25 // approximate memory of a held block
	positions     = 1 << 30
)

// keepBudget is called after a store of n blocks, while no slot is locked. noRoom: some of them found no memory.
func (x *Index) keepBudget(n int, noRoom bool) {
	b := &x.budget
	limit := int64(x.mem.allowed()) * chunkBytes
	if epoch := limit / blockBytes / maxIdleEpochs; b.stored.Add(int64(n)) >= epoch {
		b.stored.Add(-epoch)
		x.epoch.Store((x.epoch.Load() + 1) & epochMask)
	}
	enough := limit - limit/8
	if !noRoom && int64(x.mem.count.Load())*chunkBytes < enough { // without the memory's lock, which all slots share
		return
	}
	if _, used := x.mem.usage(); !noRoom && used < enough || !b.mu.TryLock() {
		return
	}
	defer b.mu.Unlock()
	want := 2*n + pageBlocks
	if noRoom {
		want += sliceBlocks // the free memory may be on other free lists: evict more
	}
	// Bounded: a store must not pay for a whole round if everything is in use.
	for steps := 0; want > 0 && steps < 64; steps++ {
		want -= x.sweep()
	}
}

// ownersEvery is the number of sweeps after which the owners are compared again.
const ownersEvery = 256

// largest returns the owner that holds more than half of all blocks, if there are slots of others; 0: none.
func largest(slots []*slot) (owner fair.Client) {
	lead, held, all := int64(0), int64(0), int64(0) // of the candidate in a vote of majority, then of the candidate and of all
	others := false
	for _, s := range slots {
		if s == nil {
			continue
		}
		n := s.heldBlocks.Load()
		switch all += n; {
		case s.table.payer == owner:
			lead += n
		case n > lead:
			owner, lead = s.table.payer, n-lead
		default:
			lead -= n
		}
	}
	for _, s := range slots {
		switch {
		case s == nil:
		case s.table.payer == owner:
			held += s.heldBlocks.Load()
		default:
			others = true
		}
	}
	if 2*held <= all || !others {
		return 0
	}
	return owner
}

// sweep moves the hand over one segment of one slot's table and returns the number of blocks evicted.
func (x *Index) sweep() (dropped int) {
	b := &x.budget
	list := *x.slots.Load()
	if b.steps%ownersEvery == 0 {
		x.mem.greedy.Store(uint64(largest(list)))
	}
	b.steps++
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
	only := fair.Client(x.mem.greedy.Load())
	for b.slot < len(list) && only != 0 && (list[b.slot] == nil || list[b.slot].table.payer != only) {
		b.slot, b.position = b.slot+1, 0
	}
	if b.slot >= len(list) {
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
			dropped += s.evictIdle(node, b.idleEpochs)
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

// evictIdle evicts all of a slot's blocks of one node, if the node was idle for age epochs and has no children. A negative age
// evicts any node.
func (s *slot) evictIdle(id uint32, age int) (dropped int) {
	sh := s.x.shardOfNode(id)
	sh.lock.RLock()
	nd := sh.node(id)
	unused := int((sh.epoch.Load() - nd.epoch()) & epochMask)
	old := unused >= age && (nd.childCount == 0 || age < 0)
	_, head := sh.mem.residencyOf(nd, blocksOf(s.id))
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
				s.forgetCopies(copyKey{pg.engineHashes[k], tier})
			}
			if s.table.remove(mix(pg.engineHashes[k], s.x.seed), at*pageBlocks+uint32(k)) {
				dropped++
			}
		}
		at = pg.next
	}
	s.evictNode(id)
	return dropped
}
