package indexer

import (
	"sync/atomic"
	"unsafe"
)

// node is a run of local hashes that somebody stored one after the other. It grows at its end. A prompt that departs in
// the middle does not split it: the other continuation is a new node that hangs at that place of the old one. So (node,
// place) names a block for as long as it is held, no reference ever goes stale, and a lookup compares a whole run with
// one memory comparison instead of hashing block by block: 512 blocks in about 60 ns.
//
// It costs 64 bytes and 8 bytes a block, in multiples of 64, and some 8 bytes in the children table. The record stands in
// front of its hashes in one run, so that a lookup fetches both at once. Up to three residencies lie in the record; more move
// to a list in runs of the same shard. Bad at: prompts that branch every block or two (some 140 bytes a node), and
// finding one residency among thousands, which is a scan.
type node struct {
	residencies    [3]residency
	pages          [3]uint32 // of each residency, the first page
	list           uint32    // where the residencies lie when there are more than three; else 0
	residents      uint32    // number of residencies
	id             uint32    // its number in the shard: the run may move, the number stays
	parent         uint32    // root: hangs at the front of all prompts
	childCount     uint32
	packed         uint32 // atomic: epoch in which a lookup or store last came by, units of the run, blocks
	parentOffset   uint16 // place in the parent at which it hangs: the number of blocks before it there
	maxChildOffset uint16 // no child hangs behind this place (it may be less when the furthest child is gone)
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

// use notes that a lookup came by. Lookups at the same time write the same.
func (nd *node) touch(epoch uint32) {
	if mark := atomic.LoadUint32(&nd.packed); mark>>epochShift != epoch {
		atomic.StoreUint32(&nd.packed, mark&(1<<epochShift-1)|epoch<<epochShift)
	}
}

// record is the node of a run.
func (m *memory) node(run uint32) *node {
	return (*node)(unsafe.Pointer(&m.run(run, nodeWords)[0]))
}

// hashes is the local hashes of a run of so many blocks.
func (m *memory) locals(run uint32, blocks int) []uint64 {
	return m.run(run, nodeWords+blocks)[nodeWords:]
}

const (
	maxNodeBlocks     = 2048 // blocks; a longer prompt goes on in a child at the end
	numbersPerSlab    = slabWords * 2
	nodeBits          = 26 // of a node's full number; the shard stands above
	root              = 0
	inlineResidencies = 3
)

// seatList is the head of a run that holds further residencies: residencies first, then their first pages.
type residencyList struct {
	next  uint32 // further run, 0 at the end
	count uint16
	units uint16
}

const maxListUnits = 64 // 340 residencies; more hang behind in further runs

func (l *residencyList) capacity() int { return (int(l.units)*unitWords - 1) * 2 / 3 }

// arrays gives the list's residencies and heads.
func (l *residencyList) arrays() ([]residency, []uint32) {
	n := l.capacity()
	first := unsafe.Add(unsafe.Pointer(l), unsafe.Sizeof(*l))
	return unsafe.Slice((*residency)(first), n)[:l.count], unsafe.Slice((*uint32)(unsafe.Add(first, n*8)), n)[:l.count]
}

func (m *memory) residencyList(at uint32) *residencyList {
	return (*residencyList)(unsafe.Pointer(&m.run(at, 1)[0]))
}

// seatsOf gives the residencies in pieces: call with at = 0 first, then with the value returned until it is 0 again.
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

// seatOf finds a slot's residency, nil where it has none.
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

// addSeat gives a slot an empty residency; nil when there is no memory left.
func (r *runs) addResidency(nd *node, id SlotID) (*residency, *uint32) {
	if nd.list == 0 && nd.residents < inlineResidencies {
		i := nd.residents
		nd.residencies[i], nd.pages[i] = newResidency(id, 0, 0, 0, 0, 0), noPage
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
	residencies[i], pages[i] = newResidency(id, 0, 0, 0, 0, 0), noPage
	nd.residents++
	return &residencies[i], &pages[i]
}

// widen makes room for one more in the first run of the list.
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
	case n > int(l.units): // a longer run takes the shorter one's place
		w.count, w.next = l.count, l.next
		residencies, pages := w.arrays()
		oldSeats, oldHeads := l.arrays()
		copy(residencies, oldSeats)
		copy(pages, oldHeads)
		r.free(old, int(l.units))
	default: // full length: a further run, in front
		w.next = old
	}
	nd.list = at
	return true
}

// dropSeat takes a slot's residency away.
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

// narrow shortens the list by the last residency of one run, and moves three residencies back into the record.
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
	if nd.residents > inlineResidencies-1 { // one below the record's room, so that a residency coming and going costs nothing
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

// freeSeats gives the list's memory back.
func (r *runs) freeResidencies(nd *node) {
	for at := nd.list; at != 0; {
		l := r.mem.residencyList(at)
		next := l.next
		r.free(at, int(l.units))
		at = next
	}
	nd.list, nd.residents = 0, 0
}
