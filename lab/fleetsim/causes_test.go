package fleetsim

import (
	"fmt"
	"testing"
	"time"

	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/account"
)

// accounted is this repository's router, whose accounts are compared with what the simulation knows.
type accounted struct {
	*sightline
	t         *testing.T
	restarts  time.Duration            // how often a worker is restarted, once it is idle; 0: never
	restarted time.Duration            // when one was last
	owners    map[int32]int            // the worker that last served a prompt or answer with the block
	lost      map[int32]bool           // it has lost the block with all others since
	idle      map[int]time.Duration    // since when a worker has had nothing to do
	truth     map[*run][]account.Cause // by block, at the decision
	sums      [2]account.Sums          // as accounted, and in truth
	right     int                      // tokens under the right cause
	confused  map[[2]account.Cause]int // tokens by cause in truth and as accounted
	prompts   int
	settled   time.Duration // when the forecasts last took in what they were told
	kept      int           // evicted tokens that a cache a fifth larger would have kept, as accounted
	pushed    int           // evicted tokens of spans of which requests in flight took some of the room, as accounted
}

func (a *accounted) Pick(v *View, r *run) int {
	a.restart(v)
	at := make([]account.Cause, (r.input-1)/v.Size)
	to := a.sightline.Pick(v, r)
	others, here, computing := 0, 0, make(map[int32]bool)
	for i, w := range v.sim.workers {
		for _, c := range w.out { // of the step that runs now
			if c.stored {
				for _, b := range c.run.blocks[c.from:c.to] {
					computing[b] = true
				}
			}
		}
		hits := w.cache.hits(r.blocks, len(at))
		for k, b := range r.blocks[:hits] {
			if computing[b] {
				hits = k
				break
			}
		}
		if i == to {
			here = hits
		} else {
			others = max(others, hits)
		}
	}
	for _, w := range v.sim.workers {
		for _, list := range [][]*run{w.running, w.waiting} {
			for _, o := range list {
				for _, b := range o.prompt(v.Size) {
					computing[b] = true
				}
			}
		}
	}
	known := true // blocks behind one that nobody had are new
	for i := range at {
		b := r.blocks[i]
		_, had := a.owners[b]
		var first account.Cause
		switch {
		case i < others:
			first = account.Elsewhere
		case computing[b] && i >= here:
			first = account.Computing
		case i < here:
			first = account.Evicted // if it is not found: dropped since
		case had && known && a.lost[b]:
			first = account.Lost
		case had && known:
			first = account.Evicted
		default:
			first, known = account.New, false
		}
		at[i] = first
	}
	a.truth[r] = at
	return to
}

// restart empties a worker that has been idle for a while, so that no event of it is on its way.
func (a *accounted) restart(v *View) {
	for i, w := range v.sim.workers {
		if len(w.running)+len(w.waiting)+len(w.out) > 0 || w.busy {
			delete(a.idle, i)
			continue
		}
		since, known := a.idle[i]
		if !known {
			a.idle[i] = v.Now
			continue
		}
		if a.restarts == 0 || v.Now-a.restarted < a.restarts || v.Now-since < 50*time.Millisecond {
			continue
		}
		a.restarted = v.Now
		for c := range w.cache.cells {
			if b := w.cache.cells[c].block; b >= 0 {
				w.cache.at.set(b, 0)
				w.cache.cells[c].block = -1
				if a.owners[b] == i {
					a.lost[b] = true
				}
			}
		}
		_ = a.index.Clear(slotOf(i))
	}
}

func (a *accounted) Ended(v *View, r *run, failed bool) {
	a.now = v.Now
	if v.Now-a.settled > 250*time.Millisecond {
		a.settled = v.Now
		a.router.Removals()
	}
	d := r.booked.(router.Decision)
	a.router.Observe(router.Outcome{ID: d.ID, Phase: router.Ended, Addr: d.Targets[0].Addr, Code: 200, Answered: true,
		CachedTokens: r.cached, PromptTokens: r.input, OutputTokens: r.output})
	e, _ := a.router.Decision(d.ID)
	if e.Account == nil || e.Account.Tokens != r.input || e.Account.Cached != r.cached ||
		e.Account.Cached+e.Account.Uncached.Total() != r.input {
		a.t.Fatalf("%+v: got the account %+v, want %d tokens, %d of them cached", d, e.Account, r.input, r.cached)
	}
	a.prompts += r.input
	a.kept += e.Account.Kept
	at := a.truth[r]
	delete(a.truth, r)
	for _, s := range e.Account.Spans {
		a.sums[0][s.Cause] += s.To - s.From
		if s.Cause == account.Evicted && s.Why == account.PushedOut {
			a.pushed += s.To - s.From
		}
		for k := s.From; k < s.To; k++ {
			truth := account.Block
			if b := k / v.Size; b < len(at) {
				truth = at[b]
			}
			a.sums[1][truth]++
			a.confused[[2]account.Cause{truth, s.Cause}]++
			if truth == s.Cause {
				a.right++
			}
		}
	}
	for _, b := range r.blocks[:(r.input+r.output-1)/v.Size] {
		a.owners[b] = r.worker
		delete(a.lost, b)
	}
}

// TestCauses plants causes and checks that tokens are under the right one: small caches, restarts, requests at the same moment. What cannot
// be known, or not cheaply, is in the bound of the agents, whose long prompts wait at full workers: what a worker evicts in the step that
// runs at the decision is told at the step's end, and counts as held there; what a queued request had when it was sent and its worker
// evicts before its turn is computed again, and counts as evicted, since only what it lacked then is predicted. So does what preemption
// took from a request: nothing tells that it is computed again.
func TestCauses(t *testing.T) {
	for _, c := range []struct {
		name     string
		traffic  []*Request
		workers  int
		blocks   int
		restarts time.Duration
		least    float64 // % under the right cause
	}{
		{"chats, small caches", chats.traffic(1, 8, 60), 4, 3000, 0, 99},
		{"chats, restarts", chats.traffic(2, 3, 100), 4, 4000, 5 * time.Second, 99},
		{"agents, small caches and restarts", agents.traffic(3, 0.8, 60), 2, 6000, 5 * time.Second, 98.2},
		{"siblings at once", siblings(4, 0.5, 40), 4, 4000, 0, 99},
	} {
		t.Run(c.name, func(t *testing.T) {
			engine := defaultEngine()
			engine.Blocks = c.blocks
			var a *accounted
			Run(Setup{Workers: c.workers, Engine: engine, Delays: defaultDelays(), Seed: 1}, prepare(c.traffic, engine.BlockSize),
				func(v *View) Picker {
					a = &accounted{sightline: newSightline(v).(*sightline), t: t, restarts: c.restarts, owners: map[int32]int{},
						lost: map[int32]bool{}, idle: map[int]time.Duration{}, truth: map[*run][]account.Cause{},
						confused: map[[2]account.Cause]int{}}
					return a
				})
			uncached := a.sums[1].Total()
			for pair, n := range a.confused {
				if pair[0] != pair[1] && 1000*n > uncached {
					t.Logf("%d tokens are %s and accounted as %s", n, pair[0], pair[1])
				}
			}
			share := 100 * float64(a.right) / float64(uncached)
			t.Logf("%d requests, %.0f %% of %d tokens uncached, %.2f %% under the right cause; in truth %v", len(c.traffic),
				100*float64(uncached)/float64(a.prompts), a.prompts, share, says(a.sums[1]))
			if share < c.least {
				t.Errorf("got %.2f %% of the tokens under the right cause, want %g", share, c.least)
			}
		})
	}
}

// TestKeptByAFifth compares how many evicted tokens a fifth more cache would have kept at least, as accounts say, with a run that has it.
// It may be much more where requests in flight take the room, as those of the agents do, whose prompts are a fifth of a cache: with less
// preemption less is evicted, and accounts say that no size is known.
func TestKeptByAFifth(t *testing.T) {
	for name, c := range map[string]struct {
		traffic []*Request
		workers int
		blocks  int
	}{
		"chats":  {chats.traffic(1, 8, 60), 4, 3000},
		"agents": {agents.traffic(3, 0.8, 60), 2, 6000},
	} {
		t.Run(name, func(t *testing.T) {
			var a [2]*accounted
			for i, blocks := range []int{c.blocks, c.blocks * 6 / 5} {
				engine := defaultEngine()
				engine.Blocks = blocks
				Run(Setup{Workers: c.workers, Engine: engine, Delays: defaultDelays(), Seed: 1}, prepare(c.traffic, engine.BlockSize),
					func(v *View) Picker {
						a[i] = &accounted{sightline: newSightline(v).(*sightline), t: t, owners: map[int32]int{}, lost: map[int32]bool{},
							idle: map[int]time.Duration{}, truth: map[*run][]account.Cause{}, confused: map[[2]account.Cause]int{}}
						return a[i]
					})
			}
			points := func(n int) float64 { return 100 * float64(n) / float64(a[0].prompts) }
			less := a[0].sums[0][account.Evicted] - a[1].sums[0][account.Evicted]
			t.Logf("%.1f points evicted, of which a fifth more would keep %.1f, and %.1f pushed out by requests in flight; with it there are "+
				"%.1f less", points(a[0].sums[0][account.Evicted]), points(a[0].kept), points(a[0].pushed), points(less))
			if points(a[0].kept) > points(less)+0.5 || 4*(a[0].kept+a[0].pushed) < less {
				t.Errorf("got %.1f points, want no more than %.1f, nor with those pushed out less than a quarter", points(a[0].kept), points(less))
			}
		})
	}
}

func says(s account.Sums) (out string) {
	s.Each(func(c account.Cause, n int) { out += fmt.Sprint(n, " ", c, ", ") })
	return out
}
