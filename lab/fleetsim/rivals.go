package fleetsim

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// The pickers of other routers by their sources (read in November 2026: Dynamo 1.6, llm-d-router, SGLang's gateway, vLLM's router,
// AIBrix, production-stack), each with its defaults. A picker sees what its router sees: events if the router follows events, else
// what it sent itself, at once. If a source leaves equal workers in a fixed order, one is drawn at random, unless the picker is known
// for that order. All proxies see the first token.

// Rival is a picker with its name.
type Rival struct {
	Name string
	Make func(*View) Picker
}

// Pickers lists the router of this repository first, then the others, and the oracle last.
func Pickers() []Rival {
	return []Rival{{"sightline", newSightline},
		{"round robin", roundRobin}, {"least request", leastRequest}, {"power of two", powerOfTwo}, {"prefix hash", prefixHash},
		{"session sticky", sessionSticky},
		{"Dynamo linear", dynamoLinear}, {"Dynamo lmetric", dynamoLmetric}, {"llm-d 3:2:2", llmdScorers},
		{"llm-d filter", llmdFilter}, {"SGLang", sglangCacheAware},
		{"vLLM kv_aware", vllmKVAware}, {"vLLM smetric", vllmSmetric}, {"AIBrix prefix", aibrixPrefix},
		{"AIBrix tokens", aibrixTokens}, {"production-stack", productionStack},
		{"oracle", oracle},
	}
}

// idle supplies the methods of a Picker that a stateless picker does not need.
type idle struct{}

func (idle) Began(*View, *run)       {}
func (idle) Ended(*View, *run, bool) {}

// cheapest returns the worker of the lowest cost; ties are broken at random.
func (v *View) cheapest(among []int, cost func(w int) float64) int {
	best, least, ties := among[0], math.Inf(1), 0
	for _, w := range among {
		switch c := cost(w); {
		case c < least:
			best, least, ties = w, c, 1
		case c == least:
			ties++
			if v.rand.IntN(ties) == 0 {
				best = w
			}
		}
	}
	return best
}

// pickBy makes a picker of a function.
type pickBy struct {
	idle
	pick func(v *View, r *run) int
}

func (p pickBy) Pick(v *View, r *run) int { return p.pick(v, r) }

func (v *View) leastLoaded(among []int) int {
	return v.cheapest(among, func(w int) float64 { return float64(v.Loads[w].Inflight) })
}

func roundRobin(*View) Picker {
	turn := -1
	return pickBy{pick: func(v *View, r *run) int { turn++; return v.Alive[turn%len(v.Alive)] }}
}

func leastRequest(*View) Picker {
	return pickBy{pick: func(v *View, r *run) int { return v.leastLoaded(v.Alive) }}
}

func powerOfTwo(*View) Picker {
	return pickBy{pick: func(v *View, r *run) int {
		return v.leastLoaded([]int{v.Alive[v.rand.IntN(len(v.Alive))], v.Alive[v.rand.IntN(len(v.Alive))]})
	}}
}

// prefixHash hashes the first 256 tokens to a worker (rendezvous).
func prefixHash(*View) Picker {
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
func sessionSticky(*View) Picker {
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

// dynamo is DefaultWorkerSelector of Dynamo 1.6 (lib/kv-router/src/scheduling) at temperature 0, with its names. The caller passes
// the credits for tiers below the GPU, taints and shared caches.
type dynamo struct {
	overlapCredit, creditDecay float64
	prefillScale               float64
	activeRequest              float64
	lmetric                    bool // the policy of that name
	decodeOnly                 bool // a decode router that does not track prefills
}

// dynamoInput holds the inputs of its cost of one worker, in blocks except for the requests.
type dynamoInput struct {
	request       float64 // the whole prompt
	prefill       float64 // tokens to prefill, active and of this prompt, in fractions of a block; 0 if it does not track them
	excess        float64 // of them, above the minimum over all workers
	device, below float64 // overlap on the GPU; credit for blocks elsewhere
	decode        float64 // of running requests and of this one, common blocks counted once
	requests      float64
}

func (d dynamo) cost(in dynamoInput) float64 {
	credit := d.overlapCredit/(1+d.creditDecay*in.excess/math.Max(1, in.request))*in.device + in.below
	prefill := math.Max(0, in.prefill-credit)
	switch {
	case d.lmetric:
		return prefill * (in.decode + 1)
	case d.decodeOnly && d.overlapCredit > 0:
		return math.Max(0, in.decode-credit) + d.activeRequest*in.requests
	}
	return d.prefillScale*prefill + in.decode + d.activeRequest*in.requests
}

// dynamoPicker is the selector with the state that its router tracks: tokens until the first one of the answer is out, and the blocks
// of running prompts, common ones counted once.
type dynamoPicker struct {
	dynamo
	active []tally // by worker: running requests by block
}

func dynamoLinear(v *View) Picker {
	return &dynamoPicker{dynamo: dynamo{overlapCredit: 1, prefillScale: 1}, active: make([]tally, len(v.Loads))}
}

func dynamoLmetric(v *View) Picker {
	d := dynamoLinear(v).(*dynamoPicker)
	d.lmetric = true
	return d
}

func (d *dynamoPicker) Pick(v *View, r *run) int {
	hits, size, prompt := v.Overlap(r), float64(v.Size), r.prompt(v.Size)
	w := v.cheapest(v.Alive, func(w int) float64 {
		more := 0
		for _, b := range prompt {
			if d.active[w].times.get(b) == 0 {
				more++
			}
		}
		return d.cost(dynamoInput{request: math.Ceil(float64(r.input) / size), prefill: float64(v.Loads[w].Prefill+r.input) / size,
			device: float64(hits[w]) / size,
			decode: float64(d.active[w].blocks + more), requests: float64(v.Loads[w].Inflight)})
	})
	for _, b := range prompt {
		d.active[w].add(b, 1)
	}
	return w
}

func (d *dynamoPicker) Began(*View, *run) {}

func (d *dynamoPicker) Ended(v *View, r *run, failed bool) {
	for _, b := range r.prompt(v.Size) {
		d.active[r.worker].add(b, -1)
	}
}

// tally counts how often each block is in use.
type tally struct {
	times  sparseArray
	blocks int // in use
}

// add adds to a block's count and returns the new one.
func (t *tally) add(block, by int32) int32 {
	had := t.times.get(block)
	t.times.set(block, had+by)
	switch {
	case had == 0:
		t.blocks++
	case had+by == 0:
		t.blocks--
	}
	return had + by
}

// history is what a router without events knows of caches: what it sent there, least recently sent evicted first.
type history struct {
	holders
	sent []*blocks // by worker
	gone []change
}

// newHistory returns a history that keeps at most this many blocks per worker.
func newHistory(v *View, most int) *history {
	h := &history{holders: newHolders(len(v.Loads), len(v.sim.trace.chain))}
	for range v.Loads {
		h.sent = append(h.sent, newBlocks(most))
	}
	return h
}

// endless is the size of a history that never evicts within a simulation.
const endless = 1 << 30

// overlap is like View.Overlap.
func (h *history) overlap(v *View, r *run) []int { return v.lookUp(r, &h.holders) }

func (h *history) add(v *View, r *run, w int) {
	h.gone = h.gone[:0]
	for _, b := range slices.Backward(r.prompt(v.Size)) { // the last block of a prompt is evicted first
		h.sent[w].touch(b, &h.gone)
		h.set(b, w, true)
	}
	for _, c := range h.gone {
		h.set(c.block, w, false)
	}
}

// known makes a picker with a history of a function that gets the history's overlaps.
func known(most int, pick func(v *View, r *run, hits []int) int) func(*View) Picker {
	return func(v *View) Picker {
		h := newHistory(v, most)
		return pickBy{pick: func(v *View, r *run) int {
			w := pick(v, r, h.overlap(v, r))
			h.add(v, r, w)
			return w
		}}
	}
}

// llmdScorers is the built-in profile of llm-d-router: prefix 3, queue 2, KV use 2, highest score wins. Its prefix scorer records
// what was sent, as many blocks as the engine reports to have; queues and KV use are scraped.
func llmdScorers(v *View) Picker {
	return known(v.sim.setup.Engine.Blocks, func(v *View, r *run, hits []int) int {
		queued := v.queues(v.Alive)
		return v.cheapest(v.Alive, func(w int) float64 {
			return -(3*float64(hits[w])/float64(r.input) + 2*queued(w) + 2*(1-v.Loads[w].Usage))
		})
	})(v)
}

// queues is llm-d's queue-scorer: 1 for the shortest queue, 0 for the longest, and 1 if all are equal.
func (v *View) queues(among []int) func(w int) float64 {
	lo, hi := math.MaxInt, 0
	for _, o := range among {
		lo, hi = min(lo, v.Loads[o].Waiting), max(hi, v.Loads[o].Waiting)
	}
	return func(w int) float64 {
		if hi == lo {
			return 1
		}
		return float64(hi-v.Loads[w].Waiting) / float64(hi-lo)
	}
}

// llmdFilter is its optimised baseline (llm-d #1651): the workers that hold 0.8 of the prompt, unless they have 18 s more work than
// the others at 15,928 tokens a second; of them the one with the fewest tokens in flight.
func llmdFilter(v *View) Picker {
	const most = 286720 // tokens
	return known(v.sim.setup.Engine.Blocks, func(v *View, r *run, hits []int) int {
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
	})(v)
}

// sglangCacheAware is cache_aware of SGLang's gateway with its launcher's figures: the least loaded worker if counts diverge (64,
// 1.5), else the best prefix above 0.3 of what was sent, else the least loaded (originally the smallest tree).
func sglangCacheAware(v *View) Picker {
	return known(endless, func(v *View, r *run, hits []int) int {
		lo, hi := math.MaxInt, 0
		for _, w := range v.Alive {
			lo, hi = min(lo, v.Loads[w].Inflight), max(hi, v.Loads[w].Inflight)
		}
		best := v.cheapest(v.Alive, func(w int) float64 { return -float64(hits[w]) })
		if hi-lo > 64 && float64(hi) > 1.5*float64(lo) || float64(hits[best]) <= 0.3*float64(r.input) {
			return v.leastLoaded(v.Alive)
		}
		return best
	})(v)
}

// kvAware is kv_aware of vLLM's router: the most blocks by events or sent within 2 s, the last worker among equals; if nothing is
// held, the least loaded. Otherwise load is ignored.
type kvAware struct {
	idle
	promised holders
	times    []tally // by worker
	recent   []sent
}

type sent struct {
	until time.Duration
	r     *run
}

func vllmKVAware(v *View) Picker {
	return &kvAware{promised: newHolders(len(v.Loads), len(v.sim.trace.chain)), times: make([]tally, len(v.Loads))}
}

func (k *kvAware) Pick(v *View, r *run) int {
	for len(k.recent) > 0 && k.recent[0].until <= v.Now {
		k.promise(v, k.recent[0].r, -1)
		k.recent = k.recent[1:]
	}
	hits := v.lookUp(r, &v.held, &k.promised)
	r.worker = v.Alive[0]
	for _, w := range v.Alive {
		if hits[w] >= hits[r.worker] {
			r.worker = w
		}
	}
	if hits[r.worker] == 0 {
		r.worker = v.leastLoaded(v.Alive)
	}
	k.promise(v, r, 1)
	k.recent = append(k.recent, sent{v.Now + 2*time.Second, r})
	return r.worker
}

func (k *kvAware) promise(v *View, r *run, by int32) {
	for _, b := range r.prompt(v.Size) {
		k.promised.set(b, r.worker, k.times[r.worker].add(b, by) > 0)
	}
}

// smetric is that of vLLM's router, colocated: work before the first token (without its quadratic term, which is off) times the
// requests there. A later turn goes to the longest history, if that is more than half of what the previous turn sent, unless only
// others give the first token within 1 s + 62.5 ms per thousand tokens, by the observed rates.
type smetric struct {
	*history
	queued []float64
	rates  []rates
}

type rates struct {
	last []float64 // of the last 64
	rate float64   // tokens per second, their 90 % quantile; 0: fewer than eight samples
}

func vllmSmetric(v *View) Picker {
	return &smetric{history: newHistory(v, endless), queued: make([]float64, len(v.Loads)), rates: make([]rates, len(v.Loads))}
}

func (s *smetric) Pick(v *View, r *run) int {
	hits := s.overlap(v, r)
	work := func(w int) float64 { return s.queued[w] + float64(r.input-hits[w]) }
	soon := func(w int) bool {
		return s.rates[w].rate == 0 || work(w)/s.rates[w].rate <= 1+0.0625*float64(r.input)/1000
	}
	home := slices.MaxFunc(v.Alive, func(a, b int) int {
		return cmp.Or(cmp.Compare(hits[a], hits[b]), cmp.Compare(work(b), work(a)))
	})
	w := home
	if r.req.History == 0 || float64(hits[home]) <= 0.5*float64(r.req.History) || !soon(home) && slices.ContainsFunc(v.Alive, soon) {
		w = v.cheapest(v.Alive, func(w int) float64 { return work(w) * float64(v.Loads[w].Inflight) })
	}
	cost := float64(r.input - hits[w])
	s.queued[w] += cost
	r.booked = cost
	s.add(v, r, w)
	return w
}

func (s *smetric) Began(v *View, r *run) {
	cost, took, of := r.booked.(float64), v.Now-r.arrived, &s.rates[r.worker]
	s.queued[r.worker] -= cost
	r.booked = 0.0
	if cost == 0 || took == 0 {
		return
	}
	if len(of.last) == 64 {
		of.last = of.last[1:]
	}
	of.last = append(of.last, cost/took.Seconds())
	if len(of.last) >= 8 {
		sorted := slices.Sorted(slices.Values(of.last))
		of.rate = sorted[int(math.Round(0.9*float64(len(sorted)-1)))]
	}
}

func (s *smetric) Ended(v *View, r *run, failed bool) { s.queued[r.worker] -= r.booked.(float64) }

// aibrixPrefix is prefix-cache of AIBrix: the highest match in percent among workers with no more requests than the mean plus a
// standard deviation, else the fewest requests. If the busiest has more than twice the mean and one, and eight more than the least,
// only the least busy are considered.
func aibrixPrefix(v *View) Picker {
	return known(endless, func(v *View, r *run, hits []int) int {
		lo, hi, sum, sq := math.MaxInt, 0, 0.0, 0.0
		for _, w := range v.Alive {
			n := v.Loads[w].Inflight
			lo, hi, sum, sq = min(lo, n), max(hi, n), sum+float64(n), sq+float64(n)*float64(n)
		}
		mean := sum / float64(len(v.Alive))
		limit := mean + math.Sqrt(math.Max(0, sq/float64(len(v.Alive))-mean*mean))
		if float64(hi) > 2*(mean+1) && hi-lo >= 8 {
			limit = float64(lo)
		}
		return v.cheapest(v.Alive, func(w int) float64 {
			if hits[w] == 0 || float64(v.Loads[w].Inflight) > limit {
				return 1e9 + float64(v.Loads[w].Inflight)
			}
			return -1000*math.Floor(100*float64(hits[w])/float64(r.input)) + float64(v.Loads[w].Inflight)
		})
	})(v)
}

// aibrixTokens is its hybrid_cache_load: tokens to prefill, 0.3 of those resident and 3,500 per request, less half of that times
// the square of the match.
func aibrixTokens(v *View) Picker {
	return known(endless, func(v *View, r *run, hits []int) int {
		return v.cheapest(v.Alive, func(w int) float64 {
			l, match := v.Loads[w], float64(hits[w])/float64(r.input)
			return math.Max(1, float64(l.Prefill)+0.3*float64(l.Context)+3500*float64(l.Inflight)) * (1 - 0.5*match*match)
		})
	})(v)
}

// productionStack is loadaware of the production stack: the match minus the worker's load above the mean; if nothing is held, the
// least loaded.
func productionStack(*View) Picker {
	return pickBy{pick: func(v *View, r *run) int {
		hits, mean, most := v.Overlap(r), 0.0, 0
		for _, o := range v.Alive {
			mean += float64(v.Loads[o].Inflight) / float64(len(v.Alive))
			most = max(most, hits[o])
		}
		if most == 0 {
			return v.leastLoaded(v.Alive)
		}
		return v.cheapest(v.Alive, func(w int) float64 {
			return -(float64(hits[w])/float64(r.input) - (float64(v.Loads[w].Inflight)-mean)/math.Max(1, mean))
		})
	}}
}

// oracle sees true queues and caches, and picks the worker that gives the first token soonest.
func oracle(*View) Picker {
	return pickBy{pick: func(v *View, r *run) int {
		return v.cheapest(v.Alive, func(w int) float64 { return v.sim.workers[w].alone(r) })
	}}
}

// alone estimates the seconds until a new run's first token, from true queues and caches.
func (w *worker) alone(r *run) float64 {
	hit, encode := w.found(r)
	n := float64(r.input - hit)
	for _, m := range r.req.Images {
		if _, ok := w.encoder.at[m.ID]; !ok && m.Offset+m.Tokens > hit {
			encode += w.Encode * float64(m.Tokens)
		}
	}
	queued := float64(w.outstanding())
	return (w.Prefill*(queued+n) + w.Pair*n*(float64(hit)+n/2) + encode + w.loading(r) + w.step(queued+n)) / w.speed
}

// behind is the same if another worker prefills for it.
func (w *worker) behind(first *worker, r *run) float64 {
	hit := w.hits(r)
	chunk := float64(min(w.Budget, w.outstanding())) // its share of a step in which it prefills itself
	return first.alone(r) + w.Handover + w.Fetch*float64(r.input-hit) + (w.loading(r)+w.Prefill*chunk+w.step(1))/w.speed
}

// loading returns how long the run's adapter takes to load.
func (w *worker) loading(r *run) float64 {
	if _, ok := w.adapters.at[r.req.Adapter]; ok || r.req.Adapter == 0 {
		return 0
	}
	return w.Load
}

// step returns what decoding adds to the steps in which this many tokens are prefilled.
func (w *worker) step(tokens float64) float64 {
	each := w.Step
	for _, r := range w.running {
		if r.computed == r.known() {
			each += w.Decode + w.Context*float64(r.input+r.made)
		}
	}
	return each * math.Ceil(tokens/float64(w.Budget))
}
