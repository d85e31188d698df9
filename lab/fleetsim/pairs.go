package fleetsim

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"
)

// The pickers of routers that choose a pair of workers, one to prefill and one to decode. Only the first workers prefill for others;
// the others can also serve whole requests.

// pairPickers are the pickers for scenarios with prefill workers.
func pairPickers() []Rival {
	return []Rival{{"sightline", newSightline},
		{"round robin", pairInTurn}, {"least request", pairByRequests}, {"decode only", leastRequest},
		{"Dynamo", dynamoApart}, {"Dynamo conditional", dynamoConditional}, {"llm-d", llmdPair},
		{"oracle", pairOracle},
	}
}

// pair makes a picker of a function that returns a worker that prefills and one that decodes.
func pair(pick func(v *View, r *run) (first, worker int)) func(*View) Picker {
	return func(*View) Picker {
		return pickBy{pick: func(v *View, r *run) (w int) {
			r.first, w = pick(v, r)
			return w
		}}
	}
}

func pairInTurn(*View) Picker {
	turn := -1
	return pickBy{pick: func(v *View, r *run) int {
		turn++
		r.first = v.First[turn%len(v.First)]
		return v.Alive[turn%len(v.Alive)]
	}}
}

func pairByRequests(v *View) Picker {
	return pair(func(v *View, r *run) (int, int) { return v.leastLoaded(v.First), v.leastLoaded(v.Alive) })(v)
}

// pairOracle sees true queues and caches, and picks the pair, or the single worker, that gives the first token soonest.
func pairOracle(v *View) Picker {
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
// Each chooses independently by the selector above. The prefill choice does not count blocks in use (activation.rs has
// router_track_active_blocks false). The decode choice counts only blocks in use, each request's in full: the override for decode
// has overlap_score_credit 0, assume_kv_reuse and track_prefill_tokens false. A separate worker always prefills.
//
// With --router-conditional-disagg (experimental, off by default; conditional_bypass.rs) the decode router is asked first, as in a
// deployment without prefill workers. If the worker that it selects lacks fewer than 2,048 tokens and less than 0.7 of the request,
// that worker prefills. The decode router then keeps its credit for cached blocks.
type dynamoPair struct {
	dynamo
	conditional bool
	blocks      []int // by worker: of running requests
}

func dynamoApart(v *View) Picker {
	return &dynamoPair{dynamo: dynamo{overlapCredit: 1, prefillScale: 1}, blocks: make([]int, len(v.Loads))}
}

func dynamoConditional(v *View) Picker {
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

// llmdPair is llm-d-router 0.9.0 with its sample for prefill and decode (deploy/config/pd-epp-config.yaml): one profile each, of
// prefix-cache-scorer 2 and queue-scorer 1. The decode worker is chosen first. If it lacks 16 tokens or more, by what was sent
// there (prefix_based_pd_decider.go, nonCachedTokens), another worker prefills. Matching covers 16,384 tokens of a prompt, and what
// goes to either worker is recorded for both (approximateprefix/plugin.go).
func llmdPair(v *View) Picker {
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

// forced is a Picker that places requests as another run has placed them, but one of them is prefilled where it is decoded.
type forced struct {
	idle
	at    map[*Request]*Served
	local *Request
}

func (f forced) Pick(_ *View, r *run) int {
	s := f.at[r.req]
	if r.req != f.local {
		r.first = s.First
	}
	return s.Worker
}

// flip is the effect of one separate prefill, compared with prefilling where the request is decoded; below 0: it saved time.
type flip struct {
	own time.Duration // on the request's own time to its first token
	all time.Duration // the same plus the effect on the end of every other request present: what the prefill delayed
}

// flips replays a run for some of its separate prefills, evenly spread over it, each twice: as it was, and with that request
// prefilled where it is decoded. Everything else is unchanged, and later requests are left out, because they would have been placed
// differently.
func (r *Result) flips(some int) []flip {
	setup, at := r.setup, make(map[*Request]*Served, len(r.Served))
	setup.NoEvents, setup.Replicas, setup.Sharing = true, 0, Sharing{}
	var apart []*Served
	for i := range r.Served {
		s := &r.Served[i]
		at[s.Req] = s
		if s.First >= 0 && s.At >= warmUp {
			apart = append(apart, s)
		}
	}
	list := make([]flip, min(some, len(apart)))
	var all sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range list {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			one := apart[i*len(apart)/len(list)]
			there := &Trace{chain: r.trace.chain}
			for _, q := range r.trace.Requests {
				if at[q].At <= one.At {
					there.Requests = append(there.Requests, q)
				}
			}
			for sign, local := range map[time.Duration]*Request{1: nil, -1: one.Req} {
				for _, s := range Run(setup, there, func(*View) Picker { return forced{at: at, local: local} }).Served {
					took := s.E2E
					if s.Req == one.Req {
						took = s.TTFT
						list[i].own += sign * took
					}
					list[i].all += sign * took
				}
			}
		})
	}
	all.Wait()
	return list
}

// flipped is how many prefills a scenario's goal replays.
const flipped = 60

// costlier judges the separate prefills of a run: how many of those replayed cost more, and what all of them together saved.
func (r *Result) costlier() (measured string, share, lost float64) {
	list, n := r.flips(flipped), 0
	var more, own, all time.Duration
	for _, f := range list {
		own, all = own+f.own, all+f.all
		if f.all > 0 {
			n++
			more += f.all
		}
	}
	if len(list) == 0 {
		return "none apart", 0, 0
	}
	some := time.Duration(len(list))
	share, lost = float64(n)/float64(some), float64(more)/float64(more-all)
	return fmt.Sprintf("%.3f, %.3f: own %+d, all %+d ms", share, lost, ms(own/some), ms(all/some)), share, lost
}
