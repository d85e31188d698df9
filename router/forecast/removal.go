package forecast

import (
	"math"
	"time"
)

// Removal is what would be lost if a worker left now, in prompt tokens.
type Removal struct {
	Alone float64 `json:"only_here_tokens"` // that its cache has, and no other one
	Again float64 `json:"again_tokens"`     // of these, those that will be asked for again before they would be evicted, as is expected
	Load  float64 `json:"load_tokens"`      // work of the next ten minutes for which the other workers would have no time
}

// Cost is what others would have to compute, or would not get to.
func (r Removal) Cost() float64 { return r.Again + r.Load }

const (
	removalWindow = 15 * time.Minute // of the load
	removalAhead  = 10 * time.Minute // work that is looked ahead
	reuseFades    = 15 * time.Minute
	fullLoad      = 0.9            // share of the time from which on workers are full
	shared        = math.MaxUint32 // more than one worker has it
)

// Removals returns what would be lost with each worker, by Cache.Worker; only those whose caches are known. It takes some 0.1 µs for each
// sampled block that is held.
//
// How likely a block is asked for again follows from how long ago it was used, and from how long ago such blocks were that were found in a
// cache (reuse): of those that were not used for so long, the share that was later. Depths do not tell workers apart: caches of equal sizes
// have as many blocks at each depth, also where these are old since the worker has had little to do. Each block is computed again once,
// however often it is used after that. What two workers hold is lost with neither. With a worker that is leaving goes what none of those
// that stay holds.
func (m *Forecaster) Removals(now time.Time) map[uint32]Removal {
	m.Settle()
	m.mu.Lock()
	defer m.mu.Unlock()
	of := make(map[uint64]uint32) // sampled block → the worker that has it
	for _, s := range m.slots {
		if s.leaves {
			continue
		}
		s.each(m.shift, func(_ int, key uint64) {
			if by, has := of[key]; has && by != s.worker {
				of[key] = shared
			} else {
				of[key] = s.worker
			}
		})
	}
	recent, all, known := m.spans.of(removalWindow, now), 0.0, true // what each can compute
	used := m.reuse.cumulated()
	out := make(map[uint32]Removal)
	for _, s := range m.slots {
		if !s.leaves {
			all += s.rate
		}
		if s.size == 0 {
			continue
		}
		r, end := out[s.worker], used[len(used)-1]
		s.each(m.shift, func(at int, key uint64) {
			if by, has := of[key]; has && by != s.worker {
				return
			}
			if !s.leaves {
				of[key] = shared // the copy of another of its ranks is computed again once, with this one
			}
			tokens := float64(s.tokens << m.shift)
			r.Alone += tokens
			if by := shareBelow(&used, m.since(now)-min(s.when[at], m.since(now))); by < 1 {
				r.Again += tokens * max(0, end-by) / (1 - by)
			}
		})
		out[s.worker] = r
	}
	rates := make(map[uint32]float64)
	for _, s := range m.slots {
		if !s.leaves {
			rates[s.worker] += s.rate
			known = known && s.rate > 0
		}
	}
	work := recent.busy() * all
	for worker, r := range out {
		if known && rates[worker] > 0 {
			r.Load = removalAhead.Seconds() * max(0, min(work-fullLoad*(all-rates[worker]), work))
		}
		out[worker] = r
	}
	return out
}

// each calls do with the sampled blocks that the slot's cache holds, the most recently used first, and their positions.
func (s *slot) each(shift uint8, do func(at int, key uint64)) {
	depth := 0
	for i := len(s.keys) - 1; i >= 0 && depth < s.held>>shift; i-- {
		if s.keys[i] != 0 {
			do(i, s.keys[i])
			depth++
		}
	}
}

// reuse is a histogram of the times after which blocks that one worker alone has used were used again, and found in its cache, beside the
// number of all uses. What many have, such as instructions, comes back far more often, and is lost with none.
type reuse struct {
	by  [ages]float64
	all float64
}

// ages are four buckets for each doubling of a tenth of a second, up to four days.
const ages = 4 * 25

// age is a time's position among the buckets.
func age(passed tenths) float64 { return min(4*math.Log2(1+float64(passed)), ages) }

// severalBit marks in Forecaster.last what more than one slot has used.
const severalBit = 1 << 31

// fade halves what was counted every reuseFades.
func (r *reuse) fade(passed time.Duration) {
	share := math.Exp2(-max(0, passed.Seconds()) / reuseFades.Seconds())
	r.all *= share
	for i := range r.by {
		r.by[i] *= share
	}
}

// count counts a use of a block that has the depth in the slot's stack; ok is false if it is in none.
func (m *Forecaster) count(s *slot, key uint64, depth int, ok bool) {
	if m.last[key]&severalBit != 0 {
		return
	}
	m.reuse.all++
	if ok {
		m.reused(s, key, depth)
	}
}

// reused counts that a block of a slot's stack is used again, if its cache still has it.
func (m *Forecaster) reused(s *slot, key uint64, depth int) {
	if depth<<m.shift < s.size {
		m.reuse.by[min(ages-1, int(age(m.now-min(m.now, s.when[s.at[key]]))))]++
	}
}

// cumulated returns the share of the uses that was used again below each bucket.
func (r *reuse) cumulated() (sum [ages + 1]float64) {
	for i, n := range r.by {
		sum[i+1] = sum[i] + n/max(1, r.all)
	}
	return sum
}

// shareBelow returns the share up to an age, by what cumulated returned.
func shareBelow(sum *[ages + 1]float64, passed tenths) float64 {
	x := age(passed)
	i := min(int(x), ages-1)
	return sum[i] + (x-float64(i))*(sum[i+1]-sum[i])
}

// busy returns the share of the time that the workers computed prompts; 0: their rates are not known.
func (s *span) busy() float64 {
	if s.capacity == 0 {
		return 0
	}
	hits := s.below(math.MaxInt32, 1)
	if s.measured > 0 {
		hits = s.cached / s.measured
	}
	return s.all * (1 - hits) / s.capacity
}
