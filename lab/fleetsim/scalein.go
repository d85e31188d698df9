package fleetsim

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

// A departure takes workers out of a fleet, some time after they were chosen. They end what they have begun.
type departure struct {
	at    time.Duration
	which func(v *View) []int // is called then, and may have the picker spare them
	after time.Duration       // until they leave
}

// lost are the blocks that workers which leave hold and no other one does, and what others compute of them. A nil lost has none.
type lost struct {
	blocks []bool // by number
	again  int    // blocks
	until  time.Duration
	now    *time.Duration
}

// recomputedWithin is how long after a departure tokens that are computed again count.
const recomputedWithin = 10 * time.Minute

func (s *sim) leave(d departure) {
	gone := make(map[int]bool)
	for _, w := range d.which(s.views[0]) {
		gone[w], s.workers[w].left = true, true
	}
	s.after(d.after, func() {
		for _, v := range s.views {
			v.Alive = slices.DeleteFunc(slices.Clone(v.Alive), func(w int) bool { return gone[w] })
		}
	})
	s.lost = &lost{blocks: make([]bool, len(s.trace.chain)), until: s.now + d.after + recomputedWithin, now: &s.now}
	for b := range s.lost.blocks {
		held, kept := false, false
		for _, w := range s.workers {
			if w.cache.at.get(int32(b)) != 0 {
				held, kept = held || w.left, kept || !w.left
			}
		}
		s.lost.blocks[b] = held && !kept
	}
	for _, w := range s.workers {
		w.lost = s.lost
	}
}

// computed is told of blocks that a worker has computed. One that has left takes them along.
func (l *lost) computed(w *worker, blocks []int32) {
	if l == nil || *l.now > l.until {
		return
	}
	for _, b := range blocks {
		if l.blocks[b] && !w.left {
			l.again++
		}
		l.blocks[b] = w.left
	}
}

// stock says which of the blocks that workers held at a moment were asked for again within recomputedWithin, and who held them: from one
// run it is known what would have been computed again without any workers. A nil stock takes in nothing.
type stock struct {
	at    time.Duration
	now   *time.Duration
	held  []uint32       // by block: bits of the workers that held it then; 0: it was asked for
	asked map[uint32]int // blocks that were asked for, by who held them
}

func (s *sim) takeStock(o *stock) {
	o.now, o.held, o.asked = &s.now, make([]uint32, len(s.trace.chain)), make(map[uint32]int)
	for _, w := range s.workers {
		w.stock = o
		for b := range o.held {
			if w.cache.at.get(int32(b)) != 0 {
				o.held[b] |= 1 << w.id
			}
		}
	}
}

// used is told of blocks that a worker has found in its cache, or has computed.
func (o *stock) used(blocks []int32) {
	if o == nil || *o.now > o.at+recomputedWithin {
		return
	}
	for _, b := range blocks {
		if by := o.held[b]; by != 0 {
			o.asked[by]++
			o.held[b] = 0
		}
	}
}

// lostWith returns how many blocks would have been computed again without some workers, given as bits.
func (o *stock) lostWith(workers uint32) (n int) {
	for by, blocks := range o.asked {
		if by&^workers == 0 {
			n += blocks
		}
	}
	return n
}

// choices returns what the best and an average choice of so many of all workers would lose.
func (o *stock) choices(all, leave int) (best, mean float64) {
	best = math.Inf(1)
	n := 0
	for set := uint32(0); set < 1<<all; set++ {
		if bits.OnesCount32(set) == leave {
			lost := float64(o.lostWith(set))
			best, mean, n = min(best, lost), mean+lost, n+1
		}
	}
	return best, mean / float64(n)
}
