package indexer

import "math/bits"

// residency is what one slot holds of one node, in one word: all that a lookup needs. It summarizes the slot's pages of the node.
//
//	bits  0..31  owner: twice the slot's number, or one more
//	bits 32..44  front of the blocks held in any tier
//	bits 45..57  front of those held on the GPU
//	bit  58      the two differ in their number of leading blocks (while it is 0, lookups need nothing more)
//
// With one more it is not of blocks: it follows the slot's own residency and leads to the node's run of bits (groups.go), and its
// fronts are 0.
type residency uint64

// owner is the key of a residency among a node's.
type owner uint32

func blocksOf(id SlotID) owner { return owner(id) << 1 }
func bitsOf(id SlotID) owner   { return owner(id)<<1 | 1 }

// front is how many of a node's leading blocks are held.
//
//	bits  0..11  leading: their number
//	bit  12      beyond:  some later ones may be held too (only writers need this)
type front uint64

const (
	frontBits       = 13
	frontMask front = 1<<frontBits - 1
	beyond    front = 1 << 12
	anyTier         = 32
	gpuTier         = anyTier + frontBits
	offGPU          = residency(1) << (gpuTier + frontBits)
)

func newResidency(o owner, held, gpu front) residency {
	res := residency(o) | residency(held)<<anyTier | residency(gpu)<<gpuTier
	if held.leading() != gpu.leading() {
		res |= offGPU
	}
	return res
}

func (res residency) owner() owner { return owner(res) }
func (res residency) slot() SlotID { return SlotID(uint32(res) >> 1) }
func (res residency) isBits() bool { return res&1 != 0 }
func (res residency) held() front  { return front(res>>anyTier) & frontMask }
func (res residency) gpu() front   { return front(res>>gpuTier) & frontMask }

func (res residency) leading() int { return res.held().leading() }

// stored returns the residency after blocks [from, to) were stored; false if it must be computed from the pages.
func (res residency) stored(tier Tier, from, to int) (residency, bool) {
	held, ok := res.held().stored(from, to)
	gpu := res.gpu()
	if tier == GPU && ok {
		gpu, ok = gpu.stored(from, to)
	}
	return newResidency(res.owner(), held, gpu), ok
}

func (f front) leading() int { return int(f &^ beyond) }

func (f front) stored(from, to int) (front, bool) {
	switch leading := f.leading(); {
	case to <= leading:
		return f, true
	case from > leading:
		return f | beyond, true
	}
	return front(to), f&beyond == 0
}

// removed summarizes the blocks that were removed from a front: the first one's offset, and how many were leading.
type removed struct{ low, leading int }

// add records that the block at an offset was removed from a front.
func (r *removed) add(f front, offset int) {
	r.low = min(r.low, offset)
	if offset < f.leading() {
		r.leading++
	}
}

// cut returns the front after blocks were removed.
func (f front) cut(r removed) front {
	leading := f.leading()
	if r.low >= leading {
		return f
	}
	after := front(r.low) | f&beyond
	if r.leading != leading-r.low {
		after |= beyond
	}
	return after
}

// residencyFrom computes the residency from a slot's pages: exact, at one cache miss a page.
func (m *space) residencyFrom(o owner, first uint32) residency {
	var held, gpu front
	for at := first; at != noPage; {
		all, onGPU, base, next := m.heldAt(at)
		held, gpu = held.page(base, all), gpu.page(base, onGPU)
		if held&beyond != 0 {
			return newResidency(o, held, gpu) // later blocks can enter a front only when held is computed again
		}
		at = next
	}
	return newResidency(o, held, gpu)
}

// page returns the front extended by the blocks of the next page.
func (f front) page(base int, blocks uint16) front {
	leading := f.leading()
	switch n := bits.TrailingZeros16(^blocks); {
	case f&beyond != 0 || blocks == 0:
		return f
	case base != leading:
		return f | beyond
	case blocks>>n != 0:
		return front(leading+n) | beyond
	default:
		return front(leading + n)
	}
}

// lastHeld returns one more than the last offset that the pages hold; 0 if they hold nothing.
func (m *space) lastHeld(id uint32) (end int) {
	for id != noPage {
		held, _, base, next := m.heldAt(id)
		if held != 0 {
			end = base + bits.Len16(held)
		}
		id = next
	}
	return end
}
