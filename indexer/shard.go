package indexer

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/sightline-router/sightline/internal/fair"
)

// shard holds a part of the nodes, selected by a hash of the node's position (parent and offset) and its first block. So a
// beginning that all prompts share is in one shard, which lookups read and stores hardly ever write, while the nodes after it are
// spread over all shards. lock guards everything here: lookups read, and stores and removals write for a fraction of a
// microsecond.
//
// A call holds one shard's lock at a time and may not wait for a second one, so there is no deadlock; it goes from a node to its
// child or back with no lock held in between. That is sound because
//   - a child is counted in its parent from before it can be found until after it is gone (addChild, childGone), and a node that counts a
//     child at an offset is neither freed nor cut before that offset, nor does it grow there. So the parent that a node names is always the
//     one that it was stored after;
//   - a store or removal goes only through nodes in which it has reserved a child, or of which its slot holds a block, which no other call
//     removes;
//   - a lookup, which reserves nothing, takes the child's lock before it releases the parent's if that one is free. Otherwise it releases
//     first, waits, and starts over if blocks of the parent's shard were cut meanwhile (follow): the parent's number or offset may then
//     stand for other content.
type shard struct {
	lock        spinLock
	cuts        atomic.Uint64 // number of times that blocks were cut off a node, or a node was freed
	mem         *memory
	seed        uint64
	first       uint32 // number of the shard's first node, which is not used
	runs        runs
	children    table                     // (parent, offset in it, first local hash) → run
	nodeRuns    []*[numbersPerSlab]uint32 // run of each node, by its number in the shard
	freeNumbers []uint32                  // freed numbers
	numbersUsed uint32                    // numbers ever used, including 0
	epoch       *atomic.Uint32
}

// lockFor locks the shard for a store of an owner's slot, which takes memory.
func (sh *shard) lockFor(payer fair.Client) {
	sh.lock.Lock()
	sh.runs.payer, sh.children.payer = payer, payer
}

// runOf returns the run of a node; it changes when the node grows.
func (sh *shard) runOf(id uint32) *uint32 {
	n := id & (1<<nodeBits - 1)
	return &sh.nodeRuns[n/numbersPerSlab][n%numbersPerSlab]
}

func (sh *shard) node(id uint32) *node { return sh.mem.node(*sh.runOf(id)) }

// childKey returns the hash of a node's position and its first block.
func childKey(parent uint32, offset int, local, seed uint64) uint64 {
	return mix(local^(uint64(parent)<<lengthBits|uint64(offset))*0x9E3779B97F4A7C15, seed)
}

// keyOf returns the key of a run in children.
func (sh *shard) keyOf(run uint32) uint64 {
	nd := sh.mem.node(run)
	return childKey(nd.parent, int(nd.parentOffset), sh.mem.locals(run, 1)[0], sh.seed)
}

// keysOf computes keyOf of many runs, for table.insert.
func (sh *shard) keysOf(runs []uint32, keys []uint64) {
	for i, run := range runs {
		keys[i] = sh.keyOf(run)
	}
}

// follow passes a lookup's read lock from one shard to the next. It returns false if what the lookup knows of a parent in the
// first may no longer be true.
func (sh *shard) follow(next *shard) bool {
	if sh == next {
		return true
	}
	cuts := sh.cuts.Load()
	sh.lock.RUnlock()
	next.lock.RLock()
	return sh.cuts.Load() == cuts
}

// child finds the node at an offset of a parent that begins with the first of the local hashes, which have that childKey. It
// returns the node's run, 0 if there is none.
func (sh *shard) child(key uint64, parent uint32, offset int, locals []uint64) uint32 {
	if sh.children.dir == nil {
		return 0
	}
	seg, home, tag := sh.children.segmentOf(key), homeOf(key), tagOf(key)
	for d := uint32(0); d < segmentLines; d++ {
		l := seg.line(home + d)
		lo, hi := l.match(tag)
		for ; lo|hi != 0; lo, hi = dropLow(lo, hi) {
			run := l.refs[lowEntry(lo, hi)]
			prefetch(unsafe.Pointer(sh.mem.node(run)), lines(locals))
			if nd := sh.mem.node(run); sh.mem.locals(run, 1)[0] == locals[0] && nd.parent == parent && int(nd.parentOffset) == offset {
				return run
			}
		}
		if l.overflow == 0 {
			break
		}
	}
	return 0
}

// prefetchChild prefetches the cache lines of the node that child will most likely find.
func (sh *shard) prefetchChild(key uint64, locals []uint64) {
	if sh.children.dir == nil {
		return
	}
	l := sh.children.segmentOf(key).line(homeOf(key))
	if lo, hi := l.match(tagOf(key)); lo|hi != 0 {
		prefetch(unsafe.Pointer(sh.mem.node(l.refs[lowEntry(lo, hi)])), lines(locals))
	}
}

// lowEntry returns the lowest entry that line.match marked; dropLow unmarks it.
func lowEntry(lo, hi uint64) int {
	if lo != 0 {
		return bits.TrailingZeros64(lo) >> 3
	}
	return (8 + bits.TrailingZeros64(hi)>>3) % 12
}

func dropLow(lo, hi uint64) (uint64, uint64) {
	if lo != 0 {
		return lo & (lo - 1), hi
	}
	return 0, hi & (hi - 1)
}

// common returns the length of the common prefix of two runs of hashes.
func common(a, b []uint64) int {
	n := min(len(a), len(b))
	a, b = a[:n], b[:n]
	if string(bytesOf(a)) == string(bytesOf(b)) {
		return n
	}
	i := 0
	for i+16 <= n && *(*[16]uint64)(a[i:]) == *(*[16]uint64)(b[i:]) {
		i += 16
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

func bytesOf(a []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(a))), len(a)*8)
}

// newNode adds a node of one or more blocks at an offset of a parent, for which addChild was called, and returns its run; 0 if
// there is no memory left.
func (sh *shard) newNode(key uint64, parent uint32, offset int, locals []uint64) uint32 {
	id := sh.takeNumber()
	if id == root {
		return 0
	}
	n := units(nodeWords + len(locals))
	run := sh.runs.alloc(n)
	if run == 0 {
		sh.freeNumbers = append(sh.freeNumbers, id)
		return 0
	}
	nd := sh.mem.node(run)
	*nd = node{id: id, parent: parent, parentOffset: uint16(offset)}
	nd.set(len(locals), n, sh.epoch.Load())
	copy(sh.mem.locals(run, len(locals)), locals)
	if !sh.children.insert(key, run, sh.keysOf) {
		sh.runs.free(run, n)
		sh.freeNumbers = append(sh.freeNumbers, id)
		return 0
	}
	*sh.runOf(id) = run
	return run
}

// addChild counts a child that will be added at an offset of a node.
func (nd *node) addChild(offset int) {
	nd.childCount++
	nd.maxChildOffset = max(nd.maxChildOffset, uint16(offset))
}

// childGone uncounts a removed child of a node, and frees the node and its ancestors if they become empty. No lock may be held.
// The root is never freed.
func (x *Index) childGone(id uint32) {
	for id != root {
		sh := x.shardOfNode(id)
		sh.lock.Lock()
		nd, parent := sh.node(id), uint32(root)
		nd.childCount--
		if nd.childCount == 0 {
			nd.maxChildOffset = 0
			parent = sh.trim(id)
		}
		sh.lock.Unlock()
		id = parent
	}
}

// takeNumber returns a free node number; root if there is none.
func (sh *shard) takeNumber() uint32 {
	if id, ok := pop(&sh.freeNumbers); ok {
		return id
	}
	sh.numbersUsed = max(sh.numbersUsed, 1)
	if sh.numbersUsed == 1<<nodeBits-1 { // the last number of the last shard is noNode
		return root
	}
	if int(sh.numbersUsed) >= len(sh.nodeRuns)*numbersPerSlab {
		slab, ok := sh.mem.slab(sh.runs.payer)
		if !ok {
			return root
		}
		sh.nodeRuns = append(sh.nodeRuns, (*[numbersPerSlab]uint32)(sh.mem.slabWords(slab)))
	}
	sh.numbersUsed++
	return sh.first + sh.numbersUsed - 1
}

// append adds blocks at the end of a node and returns how many fit. The node's run may move.
func (sh *shard) append(id uint32, locals []uint64) int {
	have := sh.node(id).length()
	n := min(len(locals), maxNodeBlocks-have)
	if n == 0 {
		return 0
	}
	if !sh.growRun(id, nodeWords+have+n) {
		n = min(n, sh.node(id).capacity()*unitWords-nodeWords-have)
		if n == 0 {
			return 0
		}
	}
	run := *sh.runOf(id)
	copy(sh.mem.locals(run, have+n)[have:], locals[:n])
	nd := sh.mem.node(run)
	nd.set(have+n, nd.capacity(), sh.epoch.Load())
	return n
}

// growRun makes room for that many words in a node's run, and moves the run if necessary.
func (sh *shard) growRun(id uint32, words int) bool {
	run := *sh.runOf(id)
	nd := sh.mem.node(run)
	want, have := units(words), nd.capacity()
	if want <= have {
		return true
	}
	if sh.runs.extend(run, have, want) {
		nd.set(nd.length(), want, nd.epoch())
		return true
	}
	if want > 16 { // allocate an eighth more than asked: copying stays linear in the final length
		want = min(want+want/8, units(nodeWords+maxNodeBlocks))
	}
	to := sh.runs.alloc(want)
	if to == 0 {
		return false
	}
	used := nodeWords + nd.length()
	copy(sh.mem.run(to, used), sh.mem.run(run, used))
	sh.children.replace(sh.keyOf(run), run, to)
	sh.runs.free(run, have)
	*sh.runOf(id) = to
	nd = sh.mem.node(to)
	nd.set(nd.length(), want, nd.epoch())
	return true
}

// trim cuts blocks off the end of a node that no slot holds and that have no child after them. A node that becomes empty is
// freed: then trim returns its parent, for childGone, else root.
func (sh *shard) trim(id uint32) (parent uint32) {
	run := *sh.runOf(id)
	nd := sh.mem.node(run)
	top, length := int(nd.maxChildOffset), nd.length()
	if top >= length {
		return root
	}
	for at := uint32(0); ; {
		residencies, pages, next := sh.mem.residenciesOf(nd, at)
		for i, res := range residencies {
			end := res.leading()
			if res.held()&beyond != 0 {
				end = sh.mem.lastHeld(pages[i])
			}
			top = max(top, end)
			if top >= length {
				return root
			}
		}
		at = next
		if at == 0 {
			break
		}
	}
	sh.cuts.Add(1)
	capacity := nd.capacity()
	if top > 0 {
		if keep := units(nodeWords + top); keep*2 <= capacity {
			sh.runs.free(run+uint32(keep), capacity-keep)
			capacity = keep
		}
		nd.set(top, capacity, nd.epoch())
		return root
	}
	parent = nd.parent
	sh.children.remove(sh.keyOf(run), run)
	sh.runs.freeResidencies(nd)
	sh.runs.free(run, capacity)
	sh.freeNumbers = append(sh.freeNumbers, id)
	return parent
}
