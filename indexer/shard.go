package indexer

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// shard holds the nodes of all prompts whose first local hash falls to it, so a prompt lies in one shard together with
// every prompt that shares its front. lock guards everything here: lookups read, and stores and removals write for a
// fraction of a microsecond.
//
// Shards are picked by the first block alone: if all prompts of a fleet begin with one system prompt, one shard does all
// the work and its writers take turns.
type shard struct {
	lock        spinLock
	mem         *memory
	seed        uint64
	id          uint32
	runs        runs
	children    table                     // (parent, offset in it, first local hash) → run
	root        node                      // parent of the nodes at the front of a prompt; has no blocks
	nodeRuns    []*[numbersPerSlab]uint32 // run of each node, by its number
	freeNumbers []uint32                  // free for reuse
	numbersUsed uint32                    // numbers ever given, the root's included
	epoch       *atomic.Uint32
}

// runOf returns the run of a node; it changes when the node grows.
func (sh *shard) runOf(id uint32) *uint32 { return &sh.nodeRuns[id/numbersPerSlab][id%numbersPerSlab] }

func (sh *shard) node(id uint32) *node {
	if id == root {
		return &sh.root
	}
	return sh.mem.node(*sh.runOf(id))
}

func (sh *shard) childKey(parent uint32, offset int, local uint64) uint64 {
	return mix(local^(uint64(parent)<<lengthBits|uint64(offset))*0x9E3779B97F4A7C15, sh.seed)
}

// keyOf is the key under which a run stands in children.
func (sh *shard) keyOf(run uint32) uint64 {
	nd := sh.mem.node(run)
	return sh.childKey(nd.parent, int(nd.parentOffset), sh.mem.locals(run, 1)[0])
}

// keysOf is keyOf of many runs, for table.insert.
func (sh *shard) keysOf(runs []uint32, keys []uint64) {
	for i, run := range runs {
		keys[i] = sh.keyOf(run)
	}
}

// child finds the node that hangs at an offset of a parent and begins with the first of the local hashes. It returns the
// node's run, 0 if there is none.
func (sh *shard) child(parent uint32, offset int, locals []uint64) uint32 {
	if sh.children.dir == nil {
		return 0
	}
	local := locals[0]
	key := sh.childKey(parent, offset, local)
	seg, home, tag := sh.children.segmentOf(key), homeOf(key), tagOf(key)
	for d := uint32(0); d < segmentLines; d++ {
		l := seg.line(home + d)
		lo, hi := l.match(tag)
		for ; lo|hi != 0; lo, hi = dropLow(lo, hi) {
			run := l.refs[lowEntry(lo, hi)]
			prefetch(unsafe.Pointer(sh.mem.node(run)), lines(locals))
			if nd := sh.mem.node(run); sh.mem.locals(run, 1)[0] == local && nd.parent == parent && int(nd.parentOffset) == offset {
				return run
			}
		}
		if l.overflow == 0 {
			break
		}
	}
	return 0
}

// prefetchChild asks for the cache lines of the node that child will most likely find.
func (sh *shard) prefetchChild(parent uint32, offset int, locals []uint64) {
	key := sh.childKey(parent, offset, locals[0])
	l := sh.children.segmentOf(key).line(homeOf(key))
	if lo, hi := l.match(tagOf(key)); lo|hi != 0 {
		prefetch(unsafe.Pointer(sh.mem.node(l.refs[lowEntry(lo, hi)])), lines(locals))
	}
}

// lowEntry returns the lowest entry of those that line.match marked; dropLow strikes it out.
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

// common is the length of the common prefix of two runs of hashes.
func common(a, b []uint64) int {
	n := min(len(a), len(b))
	a, b = a[:n], b[:n]
	if equal(a, b) {
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

func equal(a, b []uint64) bool {
	return len(a) == len(b) && string(bytesOf(a)) == string(bytesOf(b))
}

func bytesOf(a []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(a))), len(a)*8)
}

// newNode adds a node of one or more blocks at an offset of a parent and returns its number; root if there is no memory
// left.
func (sh *shard) newNode(parent uint32, offset int, locals []uint64) uint32 {
	id := sh.takeNumber()
	if id == root {
		return root
	}
	n := units(nodeWords + len(locals))
	run := sh.runs.alloc(n)
	if run == 0 {
		sh.freeNumbers = append(sh.freeNumbers, id)
		return root
	}
	nd := sh.mem.node(run)
	*nd = node{id: id, parent: parent, parentOffset: uint16(offset)}
	nd.set(len(locals), n, sh.epoch.Load())
	copy(sh.mem.locals(run, len(locals)), locals)
	if !sh.children.insert(sh.childKey(parent, offset, locals[0]), run, sh.keysOf) {
		sh.runs.free(run, n)
		sh.freeNumbers = append(sh.freeNumbers, id)
		return root
	}
	*sh.runOf(id) = run
	p := sh.node(parent)
	p.childCount++
	p.maxChildOffset = max(p.maxChildOffset, uint16(offset))
	return id
}

// takeNumber returns a free node number; root if there is none.
func (sh *shard) takeNumber() uint32 {
	if id, ok := pop(&sh.freeNumbers); ok {
		return id
	}
	sh.numbersUsed = max(sh.numbersUsed, root+1)
	if sh.numbersUsed == 1<<nodeBits {
		return root
	}
	if int(sh.numbersUsed) >= len(sh.nodeRuns)*numbersPerSlab {
		slab, ok := sh.mem.slab()
		if !ok {
			return root
		}
		sh.nodeRuns = append(sh.nodeRuns, (*[numbersPerSlab]uint32)(sh.mem.slabWords(slab)))
	}
	sh.numbersUsed++
	return sh.numbersUsed - 1
}

// append adds blocks at the end of a node and returns how many found room. The node's run may move.
func (sh *shard) append(id uint32, locals []uint64) int {
	have := sh.node(id).length()
	n := min(len(locals), maxNodeBlocks-have)
	if n == 0 {
		return 0
	}
	if !sh.growRun(id, nodeWords+have+n) {
		if n = min(n, sh.node(id).capacity()*unitWords-nodeWords-have); n == 0 {
			return 0
		}
	}
	run := *sh.runOf(id)
	copy(sh.mem.locals(run, have+n)[have:], locals[:n])
	nd := sh.mem.node(run)
	nd.set(have+n, nd.capacity(), sh.epoch.Load())
	return n
}

// growRun makes room for that many words in a node's run, and moves the run if it must.
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
	if want > 16 { // take an eighth more than asked: copying stays linear in the final length
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

// trim cuts blocks off the end of a node that no slot holds and no child hangs behind. A node that becomes empty is freed,
// and its parent is trimmed in turn.
func (sh *shard) trim(id uint32) {
	for id != root {
		run := *sh.runOf(id)
		nd := sh.mem.node(run)
		top, length := int(nd.maxChildOffset), nd.length()
		for at := uint32(0); top < length; {
			residencies, pages, next := sh.mem.residenciesOf(nd, at)
			for i, res := range residencies {
				end := res.leading()
				if res&residencyBeyond != 0 {
					end = sh.mem.lastHeld(pages[i])
				}
				top = max(top, end)
			}
			if at = next; at == 0 {
				break
			}
		}
		if top >= length {
			return
		}
		capacity := nd.capacity()
		if top > 0 {
			if keep := units(nodeWords + top); keep*2 <= capacity {
				sh.runs.free(run+uint32(keep), capacity-keep)
				capacity = keep
			}
			nd.set(top, capacity, nd.epoch())
			return
		}
		parent := nd.parent
		sh.children.remove(sh.keyOf(run), run)
		sh.runs.freeResidencies(nd)
		sh.runs.free(run, capacity)
		sh.freeNumbers = append(sh.freeNumbers, id)
		p := sh.node(parent)
		if p.childCount--; p.childCount == 0 {
			p.maxChildOffset = 0
		}
		id = parent
	}
}
