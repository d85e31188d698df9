package indexer

import (
	"sync/atomic"
	"unsafe"
)

// node is a run of local hashes that were stored one after the other. It grows at its end. A prompt that departs in the
// middle does not split it: the other continuation becomes a new node, whose parent is this one at that offset. So (node,
// offset) names a block for as long as it is held, no reference goes stale, and a lookup compares a whole run in one memory
// comparison: 512 blocks in about 60 ns.
//
// Cost: 64 bytes for the record, 8 bytes a block, rounded up to 64, and some 8 bytes in the table of children. The record
// stands in front of its hashes in one run, so one fetch brings both. Up to three residencies lie in the record, more in a
// list of runs of the same shard. Bad at: prompts that branch every block or two (about 140 bytes a node), and finding one
// residency among thousands, which is a scan.
type node struct {
	residencies    [3]residency
	pages          [3]uint32 // first page of each residency
	list           uint32    // run of the residencies if there are more than three; else 0
	residents      uint32    // number of residencies
	id             uint32    // its number in the shard: the run may move, the number stays
	parent         uint32    // root if the node begins a prompt
	childCount     uint32
	packed         uint32 // atomic: epoch of the last lookup or store, capacity of the run in units, length in blocks
	parentOffset   uint16 // number of the parent's blocks that stand before this node
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

// touch sets the epoch in which a lookup last passed. Lookups at the same time write the same value.
func (nd *node) touch(epoch uint32) {
	if packed := atomic.LoadUint32(&nd.packed); packed>>epochShift != epoch {
		atomic.StoreUint32(&nd.packed, packed&(1<<epochShift-1)|epoch<<epochShift)
	}
}

// node returns the node whose record is at a run's address.
func (m *memory) node(run uint32) *node {
	return (*node)(unsafe.Pointer(&m.run(run, nodeWords)[0]))
}

// locals returns the first local hashes of a node's run.
func (m *memory) locals(run uint32, blocks int) []uint64 {
	return m.run(run, nodeWords+blocks)[nodeWords:]
}

const (
	maxNodeBlocks     = 2048 // a longer prompt goes on in a child at the end
	numbersPerSlab    = slabWords * 2
	nodeBits          = 26 // of a full node number; the bits above are the shard's
	root              = 0
	inlineResidencies = 3
)

// residencyList heads a run with residencies that do not fit into the node's record; behind it lie its residencies, then
// the first page of each.
type residencyList struct {
	next  uint32 // further run, 0 at the end
	count uint16
	units uint16
}

const maxListUnits = 64 // 340 residencies; more go to further runs

func (l *residencyList) capacity() int { return (int(l.units)*unitWords - 1) * 2 / 3 }

// arrays returns the list's residencies and the first page of each.
func (l *residencyList) arrays() ([]residency, []uint32) {
	n := l.capacity()
	first := unsafe.Add(unsafe.Pointer(l), unsafe.Sizeof(*l))
	return unsafe.Slice((*residency)(first), n)[:l.count], unsafe.Slice((*uint32)(unsafe.Add(first, n*8)), n)[:l.count]
}

func (m *memory) residencyList(at uint32) *residencyList {
	return (*residencyList)(unsafe.Pointer(&m.run(at, 1)[0]))
}

// residenciesOf returns a node's residencies and their first pages, list by list: call it with at = 0, then with next until
// that is 0.
func (m *memory) residenciesOf(nd *node, at uint32) (residencies []residency, pages []uint32, next uint32) {
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

// residencyOf finds a slot's residency and its first page; nil if the slot holds nothing of the node.
func (m *memory) residencyOf(nd *node, id SlotID) (*residency, *uint32) {
	for at := uint32(0); ; {
		residencies, pages, next := m.residenciesOf(nd, at)
		for i := range residencies {
			if residencies[i].slot() == id {
				return &residencies[i], &pages[i]
			}
		}
		if at = next; at == 0 {
			return nil, nil
		}
	}
}

// addResidency adds an empty residency for a slot; nil if there is no memory left.
func (r *runs) addResidency(nd *node, id SlotID) (*residency, *uint32) {
	if nd.list == 0 && nd.residents < inlineResidencies {
		i := nd.residents
		nd.residencies[i], nd.pages[i] = newResidency(id, 0, 0), noPage
		nd.residents++
		return &nd.residencies[i], &nd.pages[i]
	}
	if !r.growList(nd) {
		return nil, nil
	}
	l := r.mem.residencyList(nd.list)
	l.count++
	residencies, pages := l.arrays()
	i := len(residencies) - 1
	residencies[i], pages[i] = newResidency(id, 0, 0), noPage
	nd.residents++
	return &residencies[i], &pages[i]
}

// growList makes room for one more residency in the first run of the list.
func (r *runs) growList(nd *node) bool {
	old := nd.list
	var l *residencyList
	n := 1
	if old != 0 {
		if l = r.mem.residencyList(old); int(l.count) < l.capacity() {
			return true
		}
		n = min(int(l.units)*2, maxListUnits)
	}
	at := r.alloc(n)
	if at == 0 {
		return false
	}
	w := r.mem.residencyList(at)
	*w = residencyList{units: uint16(n)}
	switch {
	case old == 0:
		w.count = inlineResidencies
		residencies, pages := w.arrays()
		copy(residencies, nd.residencies[:])
		copy(pages, nd.pages[:])
	case n > int(l.units): // the longer run replaces the shorter one
		w.count, w.next = l.count, l.next
		residencies, pages := w.arrays()
		oldSeats, oldHeads := l.arrays()
		copy(residencies, oldSeats)
		copy(pages, oldHeads)
		r.free(old, int(l.units))
	default: // the run has its full length: put another in front
		w.next = old
	}
	nd.list = at
	return true
}

// dropResidency removes a slot's residency.
func (r *runs) dropResidency(nd *node, id SlotID) {
	before := uint32(0)
	for at := uint32(0); ; {
		if at == 0 {
			at = nd.list
		}
		residencies, pages, next := r.mem.residenciesOf(nd, at)
		for i := range residencies {
			if residencies[i].slot() != id {
				continue
			}
			last := len(residencies) - 1
			residencies[i], pages[i] = residencies[last], pages[last]
			nd.residents--
			if nd.list != 0 {
				r.shrinkList(nd, before, at)
			}
			return
		}
		if before, at = at, next; at == 0 {
			return
		}
	}
}

// shrinkList takes the last residency off one run of the list, frees a run that is empty, and moves the residencies back
// into the record when few are left.
func (r *runs) shrinkList(nd *node, before, at uint32) {
	l := r.mem.residencyList(at)
	l.count--
	if l.count == 0 {
		if before == 0 {
			nd.list = l.next
		} else {
			r.mem.residencyList(before).next = l.next
		}
		r.free(at, int(l.units))
	}
	if nd.residents > inlineResidencies-1 { // one below the record's capacity, so that a residency that comes and goes moves nothing
		return
	}
	k := 0
	for at := nd.list; at != 0; {
		l := r.mem.residencyList(at)
		residencies, pages := l.arrays()
		for i := range residencies {
			nd.residencies[k], nd.pages[k] = residencies[i], pages[i]
			k++
		}
		next := l.next
		r.free(at, int(l.units))
		at = next
	}
	nd.list = 0
}

// freeResidencies gives the list's memory back.
func (r *runs) freeResidencies(nd *node) {
	for at := nd.list; at != 0; {
		l := r.mem.residencyList(at)
		next := l.next
		r.free(at, int(l.units))
		at = next
	}
	nd.list, nd.residents = 0, 0
}
