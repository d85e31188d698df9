package fleetsim

import (
	"math"
	"slices"
)

// The rules of other routers, as their sources have them (interop notes of 2026-11: Dynamo 1.6, llm-d-router, SGLang's
// gateway, vLLM's router, AIBrix, production-stack). All see the same index, counts and scrapes.

// idle are the parts of a Rule that a stateless rule leaves out.
type idle struct{}

func (idle) Began(*View, *run)       {}
func (idle) Ended(*View, *run, bool) {}

// byCost makes a rule of a cost: the cheapest worker, ties at random.
type byCost struct {
	idle
	cost func(v *View, r *run, w, hit int) float64
}

func (c byCost) Pick(v *View, r *run) int {
	hits := v.Overlap(r)
	return v.cheapest(v.Alive, func(w int) float64 { return c.cost(v, r, w, hits[w]) })
}

// cheapest is the worker of the lowest cost, one of several at random.
func (v *View) cheapest(among []int, cost func(w int) float64) int {
	best, least, ties := among[0], math.Inf(1), 0
	for _, w := range among {
		switch c := cost(w); {
		case c < least:
			best, least, ties = w, c, 1
		case c == least:
			if ties++; v.rand.IntN(ties) == 0 {
				best = w
			}
		}
	}
	return best
}

// pickBy makes a rule of a function.
type pickBy struct {
	idle
	pick func(v *View, r *run) int
}

func (p pickBy) Pick(v *View, r *run) int { return p.pick(v, r) }

func (v *View) leastLoaded(among []int) int {
	return v.cheapest(among, func(w int) float64 { return float64(v.Loads[w].Inflight) })
}

func roundRobin() Rule {
	turn := -1
	return pickBy{pick: func(v *View, r *run) int { turn++; return v.Alive[turn%len(v.Alive)] }}
}

func leastRequest() Rule {
	return pickBy{pick: func(v *View, r *run) int { return v.leastLoaded(v.Alive) }}
}

func powerOfTwo() Rule {
	return pickBy{pick: func(v *View, r *run) int {
		return v.leastLoaded([]int{v.Alive[v.rand.IntN(len(v.Alive))], v.Alive[v.rand.IntN(len(v.Alive))]})
	}}
}

// prefixHash hashes the first 256 tokens to a worker (rendezvous).
func prefixHash() Rule {
	return pickBy{pick: func(v *View, r *run) int {
		n := min(len(r.blocks)-1, 16)
		h := uint64(0)
		if n > 0 {
			h = v.sim.trace.chain[r.blocks[n-1]]
		}
		return rendezvous(v.Alive, h)
	}}
}

func rendezvous(among []int, key uint64) int {
	return slices.MaxFunc(among, func(a, b int) int {
		x, y := mix(key, uint64(a)+1), mix(key, uint64(b)+1)
		if x < y {
			return -1
		}
		return 1
	})
}

// sessionSticky binds a session to the worker with the fewest requests at its first turn.
func sessionSticky() Rule {
	bound := make(map[uint64]int)
	return pickBy{pick: func(v *View, r *run) int {
		if w, ok := bound[r.req.Session]; ok && r.req.Session != 0 {
			return w
		}
		w := v.leastLoaded(v.Alive)
		bound[r.req.Session] = w
		return w
	}}
}

// dynamo: prefill blocks of what is active and of this prompt, less the overlap, and the blocks of running prompts.
func dynamoLinear() Rule {
	return byCost{cost: func(v *View, r *run, w, hit int) float64 {
		size := float64(v.Size)
		return math.Max(0, float64(v.Loads[w].Prefill+r.input-hit)/size) + float64(v.Loads[w].Context)/size
	}}
}

func dynamoLmetric() Rule {
	return byCost{cost: func(v *View, r *run, w, hit int) float64 {
		size := float64(v.Size)
		return math.Max(0, float64(v.Loads[w].Prefill+r.input-hit)/size) * (float64(v.Loads[w].Context)/size + 1)
	}}
}

// llmdScorers: prefix 3, queue 2, KV use 2; the queue by the scrape.
func llmdScorers() Rule {
	return byCost{cost: func(v *View, r *run, w, hit int) float64 {
		lo, hi := math.MaxInt, 0
		for _, o := range v.Alive {
			lo, hi = min(lo, v.Loads[o].Waiting), max(hi, v.Loads[o].Waiting)
		}
		queue := 1.0
		if hi > lo {
			queue = float64(hi-v.Loads[w].Waiting) / float64(hi-lo)
		}
		return -(3*float64(hit)/float64(r.input) + 2*queue + 2*(1-v.Loads[w].Usage))
	}}
}

// llmdFilter: those that hold 0.8 of the prompt, unless they have much more to do than the others, by tokens in flight.
func llmdFilter() Rule {
	const most = 286720 // tokens: 18 s at 15,928 a second
	return pickBy{pick: func(v *View, r *run) int {
		hits := v.Overlap(r)
		var sticky []int
		least, leastSticky := math.MaxInt, math.MaxInt
		for _, w := range v.Alive {
			least = min(least, v.Loads[w].Tokens)
			if float64(hits[w]) >= 0.8*float64(r.input) {
				sticky = append(sticky, w)
				leastSticky = min(leastSticky, v.Loads[w].Tokens)
			}
		}
		among := sticky
		if len(sticky) == 0 || leastSticky-least > most {
			among = v.Alive
		}
		return v.cheapest(among, func(w int) float64 { return float64(v.Loads[w].Tokens + r.input - hits[w]) })
	}}
}

// sglang: least loaded when counts diverge (64, 1.5), else the best prefix above 0.3, else the smallest tree.
func sglangCacheAware() Rule {
	return pickBy{pick: func(v *View, r *run) int {
		lo, hi := math.MaxInt, 0
		for _, w := range v.Alive {
			lo, hi = min(lo, v.Loads[w].Inflight), max(hi, v.Loads[w].Inflight)
		}
		if hi-lo > 64 && float64(hi) > 1.5*float64(lo) {
			return v.leastLoaded(v.Alive)
		}
		hits := v.Overlap(r)
		best := v.cheapest(v.Alive, func(w int) float64 { return -float64(hits[w]) })
		if float64(hits[best]) > 0.3*float64(r.input) {
			return best
		}
		return v.cheapest(v.Alive, func(w int) float64 { return float64(v.held.counts[w]) })
	}}
}

// vllmKVAware: the most blocks; nothing held: the least loaded.
func vllmKVAware() Rule {
	return pickBy{pick: func(v *View, r *run) int {
		hits := v.Overlap(r)
		best := v.cheapest(v.Alive, func(w int) float64 { return -float64(hits[w]) })
		if hits[best] == 0 {
			return v.leastLoaded(v.Alive)
		}
		return best
	}}
}

// smetric: vLLM's router; queued work in prefill cost with quadratic attention, times the requests there.
func smetric() Rule {
	const lin, att = 1.0, 1.1e-5
	return byCost{cost: func(v *View, r *run, w, hit int) float64 {
		n := float64(r.input - hit)
		queued := float64(v.Loads[w].Prefill) + lin*n + att*n*(float64(r.input)-n/2)
		return queued * float64(v.Loads[w].Inflight+1)
	}}
}

// aibrixPrefix: least loaded where counts spread by more than 8; else the highest match among those with no more than
// the mean and a deviation.
func aibrixPrefix() Rule {
	return pickBy{pick: func(v *View, r *run) int {
		lo, hi, sum, sq := math.MaxInt, 0, 0.0, 0.0
		for _, w := range v.Alive {
			n := v.Loads[w].Inflight
			lo, hi, sum, sq = min(lo, n), max(hi, n), sum+float64(n), sq+float64(n)*float64(n)
		}
		if hi-lo > 8 {
			return v.leastLoaded(v.Alive)
		}
		mean := sum / float64(len(v.Alive))
		limit := mean + math.Sqrt(math.Max(0, sq/float64(len(v.Alive))-mean*mean))
		hits := v.Overlap(r)
		return v.cheapest(v.Alive, func(w int) float64 {
			if hits[w] == 0 || float64(v.Loads[w].Inflight) > limit {
				return 1e9 + float64(v.Loads[w].Inflight)
			}
			return -1000*math.Floor(100*float64(hits[w])/float64(r.input)) + float64(v.Loads[w].Inflight)
		})
	}}
}

// aibrixTokens: active tokens, 0.3 of resident ones and 3,500 a request, up to half off by the match.
func aibrixTokens() Rule {
	return byCost{cost: func(v *View, r *run, w, hit int) float64 {
		l := v.Loads[w]
		return (float64(l.Prefill+r.input-hit) + 0.3*float64(l.Context) + 3500*float64(l.Inflight)) * (1 - 0.5*float64(hit)/float64(r.input))
	}}
}

// productionStack: the match less how far the worker's load is above the mean.
func productionStack() Rule {
	return byCost{cost: func(v *View, r *run, w, hit int) float64 {
		mean := 0.0
		for _, o := range v.Alive {
			mean += float64(v.Loads[o].Inflight) / float64(len(v.Alive))
		}
		return -(float64(hit)/float64(r.input) - (float64(v.Loads[w].Inflight)-mean)/math.Max(1, mean))
	}}
}

// oracle sees true queues and caches, and picks what gives the first token soonest.
func oracle() Rule {
	return pickBy{pick: func(v *View, r *run) int {
		return v.cheapest(v.Alive, func(i int) float64 {
			w := v.sim.workers[i]
			hit := w.cache.hits(r.blocks, (r.input-1)/v.Size) * v.Size
			n := float64(r.input - hit)
			encode := 0.0
			for _, m := range r.req.Images {
				if _, ok := w.encoder.at[m.ID]; !ok && m.Offset+m.Tokens > hit {
					encode += w.Encode * float64(m.Tokens)
				}
			}
			queued := float64(w.outstanding())
			return (w.Prefill*(queued+n) + w.Pair*n*(float64(hit)+n/2) + encode + w.step(queued+n)) / w.speed
		})
	}}
}

// step is what decoding costs the steps in which so many tokens are prefilled.
func (w *worker) step(tokens float64) float64 {
	each := w.Step
	for _, r := range w.running {
		if r.computed == r.input {
			each += w.Decode + w.Context*float64(r.input+r.made)
		}
	}
	return each * math.Ceil(tokens/float64(w.Budget))
}
