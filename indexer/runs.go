package indexer

import (
	"math/bits"

	"github.com/sightline-router/sightline/internal/fair"
)

// runs allocates contiguous runs of 64-byte units for the nodes of one shard: for a node's record with its local hashes, and for
// a list of residencies that does not fit into the record. A run is contiguous because a lookup compares it in one go.
//
// A free run is on the list of its size; a missing size is cut from a larger one. Neighbours are not merged, but a slab whose
// runs are all free is returned whole. The newest run of a slab grows in place, which is the case while one prompt is stored. Bad
// at: long-lived runs of mixed sizes, which can pin slabs that are mostly free.
//
// A slab's first unit is its header, whose word 0 counts the units in use. A free run's word 0 links the next (low half) and the
// previous (high half) free run of its size, word 1 is its size.
type runs struct {
	mem        *memory
	payer      fair.Client            // whose store takes memory, under the shard's lock
	freeBySize [slabUnits]uint32      // free runs by size in units; 0 = none
	nonEmpty   [slabUnits / 64]uint64 // bitmap of the sizes with free runs
	next       uint32                 // first unused unit of the newest slab
	end        uint32                 // end of the newest slab
}

func units(words int) int { return (words + unitWords - 1) / unitWords }

func (r *runs) header(unit uint32) *uint64 { return &r.mem.run(unit&^(slabUnits-1), 1)[0] }

// alloc returns the address of a run of n units, 0 if the limit is reached.
func (r *runs) alloc(n int) uint32 {
	var at uint32
	switch {
	case r.freeBySize[n] != 0:
		at = r.freeBySize[n]
		r.unlink(at)
	case int(r.end-r.next) >= n:
		at = r.next
		r.next += uint32(n)
	default:
		at = r.cut(n)
		if at != 0 {
			break
		}
		slab, ok := r.mem.slab(r.payer)
		if !ok {
			return 0
		}
		if r.end > r.next {
			r.link(r.next, int(r.end-r.next))
		}
		first := slab * slabUnits
		*r.header(first) = 0
		at = first + 1
		r.next, r.end = at+uint32(n), first+slabUnits
	}
	*r.header(at) += uint64(n)
	return at
}

// cut takes n units from the smallest free run with at least as many.
func (r *runs) cut(n int) uint32 {
	for w, size := n/64, 0; w < len(r.nonEmpty); w++ {
		m := r.nonEmpty[w]
		if w == n/64 {
			m &= ^uint64(0) << (n % 64)
		}
		if m == 0 {
			continue
		}
		size = w*64 + bits.TrailingZeros64(m)
		at := r.freeBySize[size]
		r.unlink(at)
		if size > n {
			r.link(at+uint32(n), size-n)
		}
		return at
	}
	return 0
}

// extend grows a run in place from n to want units, if it is the newest of its slab.
func (r *runs) extend(at uint32, n, want int) bool {
	if at+uint32(n) != r.next || int(r.end-r.next) < want-n {
		return false
	}
	r.next += uint32(want - n)
	*r.header(at) += uint64(want - n)
	return true
}

// free frees n units at an address: a run, or the tail of one.
func (r *runs) free(at uint32, n int) {
	head := r.header(at)
	*head -= uint64(n)
	if at+uint32(n) == r.next {
		r.next = at
		return
	}
	r.link(at, n)
	if first := at &^ (slabUnits - 1); *head == 0 && first+slabUnits != r.end {
		for u := first + 1; u < first+slabUnits; {
			size := uint32(r.mem.run(u, 2)[1])
			r.unlink(u)
			u += size
		}
		r.mem.freeSlab(first / slabUnits)
	}
}

func (r *runs) link(at uint32, n int) {
	w := r.mem.run(at, 2)
	next := r.freeBySize[n]
	w[0], w[1] = uint64(next), uint64(n)
	if next != 0 {
		nw := r.mem.run(next, 1)
		nw[0] = nw[0]&0xFFFFFFFF | uint64(at)<<32
	}
	r.freeBySize[n] = at
	r.mem.idleUnits.Add(int64(n))
	r.nonEmpty[n/64] |= 1 << (n % 64)
}

func (r *runs) unlink(at uint32) {
	w := r.mem.run(at, 2)
	next, prev, n := uint32(w[0]), uint32(w[0]>>32), int(w[1])
	r.mem.idleUnits.Add(-int64(n))
	if next != 0 {
		nw := r.mem.run(next, 1)
		nw[0] = nw[0]&0xFFFFFFFF | uint64(prev)<<32
	}
	if prev != 0 {
		pw := r.mem.run(prev, 1)
		pw[0] = pw[0]&^0xFFFFFFFF | uint64(next)
		return
	}
	r.freeBySize[n] = next
	if next == 0 {
		r.nonEmpty[n/64] &^= 1 << (n % 64)
	}
}
