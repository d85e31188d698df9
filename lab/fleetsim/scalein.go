package fleetsim

import "time"

// A departure takes workers out of a fleet. They end what they have begun.
type departure struct {
	at    time.Duration
	which func(v *View) []int
}

// lost are the blocks that workers which left hold and no other one does, and what is computed of them again. A nil lost has none.
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
	for _, v := range s.views {
		var stay []int
		for _, w := range v.Alive {
			if !gone[w] {
				stay = append(stay, w)
			}
		}
		v.Alive = stay
	}
	s.lost = &lost{blocks: make([]bool, len(s.trace.chain)), until: s.now + recomputedWithin, now: &s.now}
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
