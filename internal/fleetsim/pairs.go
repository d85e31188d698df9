package fleetsim

import "math"

// The rules of routers that choose a pair: who prefills, and who decodes. Only the first workers prefill for others, the others
// also do all of a request.

// pairRules are those that scenarios with prefill workers are played under.
func pairRules() []Rival {
	return []Rival{{"sightline", newSightline},
		{"round robin", pairInTurn}, {"least request", pairByRequests}, {"decode only", leastRequest},
		{"Dynamo", dynamoApart}, {"Dynamo conditional", dynamoConditional}, {"llm-d", llmdPair},
		{"oracle", pairOracle},
	}
}

// pair makes a rule of a function that names a worker that prefills and one that decodes.
func pair(pick func(v *View, r *run) (first, worker int)) func(*View) Rule {
	return func(*View) Rule {
		return pickBy{pick: func(v *View, r *run) (w int) {
			r.first, w = pick(v, r)
			return w
		}}
	}
}

func pairInTurn(*View) Rule {
	turn := -1
	return pickBy{pick: func(v *View, r *run) int {
		turn++
		r.first = v.First[turn%len(v.First)]
		return v.Alive[turn%len(v.Alive)]
	}}
}

func pairByRequests(v *View) Rule {
	return pair(func(v *View, r *run) (int, int) { return v.leastLoaded(v.First), v.leastLoaded(v.Alive) })(v)
}

// pairOracle sees true queues and caches, and picks the pair, or the worker alone, that gives the first token soonest.
func pairOracle(v *View) Rule {
	return pair(func(v *View, r *run) (first, worker int) {
		least, workers := math.Inf(1), v.sim.workers
		for _, w := range v.Alive {
			if alone := workers[w].alone(r); alone < least {
				first, worker, least = -1, w, alone
			}
			for _, f := range v.First {
				if apart := workers[w].behind(workers[f], r); apart < least {
					first, worker, least = f, w, apart
				}
			}
		}
		return first, worker
	})(v)
}

// dynamoPair is Dynamo 1.6's PrefillRouter before its decode router (lib/llm/src/kv_router/prefill_router/mod.rs, activation.rs).
// Each chooses for itself by the selector above: who prefills without counting blocks in use (activation.rs has
// router_track_active_blocks false), who decodes by blocks in use alone, each request's counted whole: the override for decode
// has overlap_score_credit 0, assume_kv_reuse and track_prefill_tokens false. It is never left out who prefills.
//
// With --router-conditional-disagg (experimental, off by default; conditional_bypass.rs) the decode router is asked first, as
// where nobody prefills; a request of which the worker that it names lacks fewer than 2,048 tokens and less than 0.7 is
// prefilled there. The decode router then keeps its credit for what is held.
type dynamoPair struct {
	dynamo
	conditional bool
	blocks      []int // by worker: of running requests
}

func dynamoApart(v *View) Rule {
	return &dynamoPair{dynamo: dynamo{overlapCredit: 1, prefillScale: 1}, blocks: make([]int, len(v.Loads))}
}

func dynamoConditional(v *View) Rule {
	d := dynamoApart(v).(*dynamoPair)
	d.conditional = true
	return d
}

func (d *dynamoPair) Pick(v *View, r *run) int {
	hits, size := v.Overlap(r), float64(v.Size)
	request := math.Ceil(float64(r.input) / size)
	whole := func(w int) dynamoInput {
		return dynamoInput{request: request, prefill: float64(v.Loads[w].Prefill+r.input) / size, device: float64(hits[w]) / size}
	}
	used := func(w int) dynamoInput {
		return dynamoInput{request: request, device: float64(hits[w]) / size, decode: float64(d.blocks[w]) + request}
	}
	w := -1
	if d.conditional {
		near := v.cheapest(v.Alive, func(w int) float64 {
			in := whole(w)
			in.decode = used(w).decode
			return d.cost(in)
		})
		if lacks := float64(r.input - hits[near]); lacks < 2048 && lacks < 0.7*float64(r.input) {
			w = near
		}
	}
	if w < 0 {
		r.first = v.cheapest(v.First, func(w int) float64 { return d.cost(whole(w)) })
		decode := d.dynamo
		decode.decodeOnly = true
		if !d.conditional {
			decode.overlapCredit = 0
		}
		w = v.cheapest(v.Alive, func(w int) float64 { return decode.cost(used(w)) })
	}
	d.blocks[w] += int(request)
	return w
}

func (d *dynamoPair) Began(*View, *run) {}

func (d *dynamoPair) Ended(v *View, r *run, failed bool) {
	d.blocks[r.worker] -= int(math.Ceil(float64(r.input) / float64(v.Size)))
}

// llmdPair is llm-d-router 0.9.0 with its sample for prefill and decode (deploy/config/pd-epp-config.yaml): a profile each, of
// prefix-cache-scorer 2 and queue-scorer 1. Who decodes is chosen first; where that one lacks 16 tokens or more, by what was sent
// there (prefix_based_pd_decider.go, nonCachedTokens), another prefills. Of a prompt 16,384 tokens are matched, and what goes
// to either is remembered for both (approximateprefix/plugin.go).
func llmdPair(v *View) Rule {
	const mostMatched, lacking = 16384, 16
	h := newHistory(v, v.sim.setup.Engine.Blocks)
	return pair(func(v *View, r *run) (first, worker int) {
		hits := h.overlap(v, r)
		best := func(among []int) int {
			queued := v.queues(among)
			return v.cheapest(among, func(w int) float64 {
				return -(2*float64(min(hits[w], mostMatched))/float64(r.input) + queued(w))
			})
		}
		first, worker = -1, best(v.Alive)
		if r.input-min(hits[worker], mostMatched) >= lacking {
			first = best(v.First)
			h.add(v, r, first)
		}
		h.add(v, r, worker)
		return first, worker
	})(v)
}
