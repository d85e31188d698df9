package indexer

import (
	"sync/atomic"
	"unsafe"
)

// node is a run of local hashes that were stored one after the other. It grows at its end. A prompt that branches off in the
// middle does not split it: the other continuation becomes a new node, whose parent is this one at that offset. So (node, offset)
// names a block for as long as it is held, no reference goes stale, and a lookup compares a whole run in one memory comparison:
// 512 blocks in about 60 ns.
//
// Cost: 64 bytes for the record, 8 bytes a block, rounded up to 64, and some 8 bytes in the table of children. The record
// precedes its hashes in one run, so one fetch brings both. Up to three residencies are in the record, more in a list of runs of
// the same shard, both sorted by slot. Bad at: prompts that branch every block or two (about 140 bytes a node).
type node struct {
	residencies    [3]residency
	pages          [3]uint32 // first page of each residency
	list           uint32    // run of the residencies if there are more than three; else 0
	residents      uint32    // number of residencies
	id             uint32    // number in the shard: the run may move, the number does not change
	parent         uint32    // root if the node begins a prompt
	childCount     uint32
	packed         uint32 // atomic: epoch of the last lookup or store, capacity of the run in units, length in blocks
	parentOffset   uint16 // number of the parent's blocks that precede this node
	maxChildOffset uint16 // upper bound of the children's offsets; not lowered when a child is freed
}

const (
	lengthBits   = 12
	capacityBits = 9
	epochShift   = lengthBits + capacityBits
	epochMask    = 1<<(32-epochShift) - 1
	nodeWords    = 8
)

func (nd *node) length() int { return int(atomic.LoadUint32(&nd.packed) & (1<<lengthBits - 1)) }
func (nd *node) capacity() int {
	return int(atomic.LoadUint32(&nd.packed)>>lengthBits) & (1<<capacityBits - 1)
}
func (nd *node) epoch() uint32 { return atomic.LoadUint32(&nd.packed) >> epochShift }

func (nd *node) set(length, capacity int, epoch uint32) {
	atomic.StoreUint32(&nd.packed, epoch<<epochShift|uint32(capacity)<<lengthBits|uint32(length))
}

// touch sets the epoch of the last lookup. Concurrent lookups write the same value.
func (nd *node) touch(epoch uint32) {
	if packed := atomic.LoadUint32(&nd.packed); packed>>epochShift != epoch {
		atomic.StoreUint32(&nd.packed, packed&(1<<epochShift-1)|epoch<<epochShift)
	}
}

// node returns the node whose record is at a run's address.
func (m *space) node(run uint32) *node {
	return (*node)(unsafe.Pointer(&m.run(run, nodeWords)[0]))
}

// locals returns the first local hashes of a node's run.
func (m *space) locals(run uint32, blocks int) []uint64 {
	return m.run(run, nodeWords+blocks)[nodeWords:]
}

const (
	maxNodeBlocks     = 2048 // a longer prompt continues in a child at the end
	numbersPerSlab    = slabWords * 2
	nodeBits          = 26 // of a full node number; the bits above are the shard's
	root              = 0
	inlineResidencies = 3
)

// residencyList heads a run with residencies that do not fit into the node's record. It is followed by its residencies, sorted by
// slot across all runs of a list, then the first page of each.
type residencyList struct {
	next  uint32 // next run; 0 at the end
	count uint16
	units uint16
}

const maxListUnits = 128 // 682 residencies; more go to further runs

func (l *residencyList) capacity() int { return (int(l.units)*unitWords - 1) * 2 / 3 }

// arrays returns the list's residencies and the first page of each.
func (l *residencyList) arrays() ([]residency, []uint32) {
	n := l.capacity()
	first := unsafe.Add(unsafe.Pointer(l), unsafe.Sizeof(*l))
	return unsafe.Slice((*residency)(first), n)[:l.count], unsafe.Slice((*uint32)(unsafe.Add(first, n*8)), n)[:l.count]
}

func (m *space) residencyList(at uint32) *residencyList {
	return (*residencyList)(unsafe.Pointer(&m.run(at, 1)[0]))
}

// residenciesOf returns a node's residencies and their first pages, run by run: call it with at = 0, then with next until that is
// 0.
func (m *space) residenciesOf(nd *node, at uint32) (residencies []residency, pages []uint32, next uint32) {
	if at == 0 {
		if nd.list == 0 {
			return nd.residencies[:nd.residents], nd.pages[:nd.residents], 0
		}
		at = nd.list
	}
	l := m.residencyList(at)
	residencies, pages = l.arrays()
	return residencies, pages, l.next
}

// position is that of a slot's residency among a node's, or where it would be inserted.
type position struct {
	list, before uint32 // run of the list, and the previous run; 0: none
	i            int    // index in it
}

// find finds an owner's residency; false if there is none. Cost: a step for each run of the list, then binary search.
func (m *space) find(nd *node, o owner) (p position, found bool) {
	residencies, _, next := m.residenciesOf(nd, 0)
	for p.list = nd.list; next != 0 && residencies[len(residencies)-1].owner() < o; {
		p.before, p.list = p.list, next
		residencies, _, next = m.residenciesOf(nd, next)
	}
	end := len(residencies)
	for p.i < end {
		if mid := (p.i + end) / 2; residencies[mid].owner() < o {
			p.i = mid + 1
		} else {
			end = mid
		}
	}
	return p, p.i < len(residencies) && residencies[p.i].owner() == o
}

// residencyOf returns an owner's residency and its first page, or run of bits; nil if it has nothing of the node.
func (m *space) residencyOf(nd *node, o owner) (*residency, *uint32) {
	p, found := m.find(nd, o)
	if !found {
		return nil, nil
	}
	residencies, pages, _ := m.residenciesOf(nd, p.list)
	return &residencies[p.i], &pages[p.i]
}

// addResidency adds an empty residency for an owner that has none; nil if there is no memory left.
func (r *runs) addResidency(nd *node, o owner) (*residency, *uint32) {
	full := int(nd.residents) == inlineResidencies
	p, _ := r.mem.find(nd, o)
	if p.list != 0 {
		l := r.mem.residencyList(p.list)
		full = int(l.count) == l.capacity()
	}
	if full {
		if !r.growList(nd, p) {
			return nil, nil
		}
		p, _ = r.mem.find(nd, o)
	}
	nd.residents++
	if p.list != 0 {
		r.mem.residencyList(p.list).count++
	}
	residencies, pages, _ := r.mem.residenciesOf(nd, p.list)
	copy(residencies[p.i+1:], residencies[p.i:])
	copy(pages[p.i+1:], pages[p.i:])
	residencies[p.i], pages[p.i] = newResidency(o, 0, 0), noPage
	return &residencies[p.i], &pages[p.i]
}

// growList makes room for one more residency at a position whose run, or record, is full. A run of twice the size replaces it. If it
// has the maximum size, a new run after it takes half of it, or nothing if the position is at the very end.
func (r *runs) growList(nd *node, p position) bool {
	old, oldPages, next := r.mem.residenciesOf(nd, p.list)
	n, split := 1, 0
	if p.list != 0 {
		n = 2 * int(r.mem.residencyList(p.list).units)
		if n > maxListUnits {
			n, split = maxListUnits, len(old)/2
			if next == 0 && p.i == len(old) {
				n, split = 1, len(old)
			}
		}
	}
	at := r.alloc(n)
	if at == 0 {
		return false
	}
	w := r.mem.residencyList(at)
	*w = residencyList{units: uint16(n), next: next, count: uint16(len(old) - split)}
	residencies, pages := w.arrays()
	copy(residencies, old[split:])
	copy(pages, oldPages[split:])
	switch {
	case split > 0:
		l := r.mem.residencyList(p.list)
		l.next, l.count = at, uint16(split)
		return true
	case p.before != 0:
		r.mem.residencyList(p.before).next = at
	default:
		nd.list = at
	}
	if p.list != 0 {
		r.free(p.list, int(r.mem.residencyList(p.list).units))
	}
	return true
}

// dropResidency removes an owner's residency, frees a run of the list that becomes empty, and moves the residencies back into the
// record when few are left.
func (r *runs) dropResidency(nd *node, o owner) {
	p, _ := r.mem.find(nd, o)
	residencies, pages, next := r.mem.residenciesOf(nd, p.list)
	copy(residencies[p.i:], residencies[p.i+1:])
	copy(pages[p.i:], pages[p.i+1:])
	nd.residents--
	if p.list == 0 {
		return
	}
	l := r.mem.residencyList(p.list)
	l.count--
	if l.count == 0 {
		if p.before == 0 {
			nd.list = next
		} else {
			r.mem.residencyList(p.before).next = next
		}
		r.free(p.list, int(l.units))
	}
	if nd.residents > inlineResidencies-1 { // one below the record's capacity, so that a residency that comes and goes moves nothing
		return
	}
	k := 0
	for at := nd.list; at != 0; {
		residencies, pages, next := r.mem.residenciesOf(nd, at)
		k += copy(nd.residencies[k:], residencies)
		copy(nd.pages[k-len(residencies):], pages)
		r.free(at, int(r.mem.residencyList(at).units))
		at = next
	}
	nd.list = 0
}

// freeResidencies frees the list's memory.
func (r *runs) freeResidencies(nd *node) {
	for at := nd.list; at != 0; {
		l := r.mem.residencyList(at)
		next := l.next
		r.free(at, int(l.units))
		at = next
	}
	nd.list, nd.residents = 0, 0
}
