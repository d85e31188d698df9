package router

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/router/forecast"
)

// TestForecasting: a model's forecast knows what was decided, where requests ended and what engines counted there, whether requests are
// steered or not; what it cannot know it says.
func TestForecasting(t *testing.T) {
	text := strings.Repeat("In the beginning the router was created. ", 12)
	for _, unsteered := range []float64{0, 1} {
		w := newWorld(t, 2)
		w.SetUnsteered(unsteered)
		say := func(i int) string { return chatBody("m", fmt.Sprintf("%q", fmt.Sprint(i, text))) }
		w.stores(0, say(0))
		w.stores(1, say(0))
		w.Forecasts() // sees the caches
		blocks := w.index.HeldBlocks(w.slots[0].ID) + w.index.HeldBlocks(w.slots[1].ID)
		end := func(d *Decision, code, cached int) {
			to := d.UnsteeredChoice
			if len(d.Targets) > 0 {
				to = d.Targets[0]
			}
			w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: to.Addr})
			w.now = w.now.Add(time.Second)
			w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: to.Addr, Code: code, Answered: true, CachedTokens: cached, PromptTokens: d.PromptTokens})
		}
		tokens := 0
		for i := range 6 {
			d := w.decide(say(i % 3))
			tokens = d.PromptTokens
			switch i {
			case 4:
				end(&d, 503, -1)
			default:
				end(&d, 200, tokens/2)
			}
		}
		list := w.Forecasts()
		if len(list) != 1 || list[0].Model != "m" {
			t.Fatalf("forecasts of %+v, want of m", list)
		}
		f := list[0].Hour
		if f.Covered != 1 || f.Tokens != float64(6*tokens) || f.Workers != 2 || f.Blocks != blocks {
			t.Errorf("unsteered %v: %v covered, %v tokens, %d workers with %d blocks; want 6 prompts of %d tokens at 2 with %d", unsteered,
				f.Covered, f.Tokens, f.Workers, f.Blocks, tokens, blocks)
		}
		if half := float64(tokens/2) / float64(tokens); math.Abs(f.Today.HitRate-half) > 1e-9 || len(f.Marks) != 4 {
			t.Errorf("unsteered %v: at %v with %d marks, want %v as the engines counted, and 4", unsteered, f.Today.HitRate, len(f.Marks), half)
		}
		if got := w.counted(t, "sightline_forecast_hit_rate"); !strings.Contains(got, "today") || !strings.Contains(got, "worker_fewer") {
			t.Errorf("unsteered %v: gauges %q, want one of each mark", unsteered, got)
		}
		w.stores(0, say(2)) // which slot 1 does not have
		w.now = w.now.Add(judgeEvery)
		removals := w.Removals()
		zero, one := removals[w.slots[0].Worker], removals[w.slots[1].Worker]
		if len(removals) != 2 || zero.Alone+one.Alone == 0 {
			t.Errorf("unsteered %v: removals %+v, want of both workers, and some tokens held by one alone", unsteered, removals)
		}
		if got := w.counted(t, "sightline_worker_removal_cost_tokens"); !strings.Contains(got, "w0") || !strings.Contains(got, "w1") {
			t.Errorf("unsteered %v: gauge %q, want one for each worker", unsteered, got)
		}
		unread := w.decide(`{"model":"m"}`)
		if unread.Reason != Load {
			t.Fatalf("got an unread body decided by %s: %s, want %s", unread.Reason, unread.Why, Load)
		}
		w.Observe(Outcome{ID: unread.ID, Phase: Started, Addr: w.slots[0].Worker.Addr})
		w.Observe(Outcome{ID: unread.ID, Phase: Ended, Addr: w.slots[0].Worker.Addr, Code: 200, Answered: true, CachedTokens: -1,
			PromptTokens: 6 * tokens})
		if f := w.Forecasts()[0].Hour; f.Covered != 0.5 {
			t.Errorf("unsteered %v: %v is covered, want half: as many tokens were not read", unsteered, f.Covered)
		}
	}
}

// TestNeededWorkers: how many workers are needed is told in workers, of which each rank has a cache of its own, also if the cache of one is
// not known.
func TestNeededWorkers(t *testing.T) {
	for _, c := range []struct{ ranks, known, half, first int }{{1, 2, 3, 2}, {4, 8, 3, 8}, {1, 1, 4, 2}, {4, 4, 3, 8}} {
		// half: for half of the time; first: for two seconds to the first token, where a prompt takes 1.1 s a rank
		r, _, workers := onSGLang(t, c.ranks, c.ranks)
		m, now := r.forecasting.of("m"), time.Now()
		var caches []forecast.Cache
		for i := range 2 * c.ranks {
			one := forecast.Cache{Slot: uint32(workers[i/c.ranks].Slots[i%c.ranks].ID), Worker: uint32(i / c.ranks), Rate: 100, Used: -1}
			if i < c.known {
				one.Blocks, one.Held = 1000, 1000
			}
			caches = append(caches, one)
		}
		for i := range 200 { // 1.1 workers' work; no prompt comes twice
			at := now.Add(time.Duration(i-200) * time.Second)
			m.Resize(caches, at)
			chain := make([]uint64, 10)
			for k := range chain {
				chain[k] = rand.Uint64()
			}
			m.Decided(forecast.Request{Slot: caches[i%c.known].Slot, Chain: chain, Size: 11 * c.ranks, Tokens: 110 * c.ranks, Whole: true,
				Compute: 110 * c.ranks}, at)
			m.Settle()
		}
		if got, want := r.forecasting.needed("m"), []int{c.half, 2, 2, 2, 2, 8, 8, 8, c.first, 2}; !slices.Equal(got, want) {
			t.Errorf("2 workers of %d ranks, %d caches known: got %d workers needed, want %d", c.ranks, c.known, got, want)
		}
	}
}

// TestForecastQueue: decisions that find the queue full are counted, and nothing else happens to them.
func TestForecastQueue(t *testing.T) {
	w := newWorld(t, 1)
	dropped := 0
	w.opt.NoRoom = func(what string) {
		if what == "forecasts" {
			dropped++
		}
	}
	for range 4096 + 3 {
		if d := w.decide(chatBody("m", `"hello"`)); len(d.Targets) == 0 {
			t.Fatalf("got no worker: %s, want one", d.Why)
		}
	}
	if dropped != 3 {
		t.Errorf("%d decisions are counted as dropped, want 3", dropped)
	}
}

// TestCountedOnceByReplicas: two replicas that share their decisions forecast from the requests of both, and count their tenants' work,
// once each, though each is retried at another worker after the first one seemed to have answered.
func TestCountedOnceByReplicas(t *testing.T) {
	text := strings.Repeat("In the beginning the router was created. ", 12)
	one, other := newWorld(t, 2), newWorld(t, 2)
	join := func(w, to *world) {
		w.opt.Share = func(s *SharedBooking) { copied := *s; to.Replicas().Apply("r", &copied) }
	}
	say := func(i int) string { return chatBody("m", fmt.Sprintf("%q", fmt.Sprint(i, text))) }
	for _, w := range []*world{one, other} {
		w.opt.Fair = true
		for slot := range w.slots {
			w.stores(slot, say(0))
		}
		w.Forecasts() // sees the caches
		for at := range w.slots {
			w.decide(say(0)) // and how large blocks are
			w.stores(at, say(0))
		}
		w.Forecasts()
	}
	join(one, other)
	join(other, one)
	tokens := 0
	for i := range 12 {
		w := []*world{one, other}[i%2]
		d := w.Decide(t.Context(), &Request{ID: fmt.Sprint(i), Path: "/v1/chat/completions", Tenant: fmt.Sprint("t", i/9),
			Body: [][]byte{[]byte(say(i % 3))}})
		tokens = d.PromptTokens
		w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: d.Targets[0].Addr})
		if i%3 > 0 {
			w.Observe(Outcome{ID: d.ID, Phase: Done, Addr: d.Targets[0].Addr, Code: 503})
		}
		for _, slot := range w.slots {
			if slot.Worker.Addr != d.Targets[0].Addr {
				w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: slot.Worker.Addr})
			}
		}
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200, Answered: true, CachedTokens: -1, PromptTokens: tokens})
	}
	a, b := one.Forecasts()[0].Hour, other.Forecasts()[0].Hour
	if a.Tokens != float64(14*tokens) || a.Covered != 1 || a.Tokens != b.Tokens || math.Abs(a.Today.HitRate-b.Today.HitRate) > 0.01 {
		t.Errorf("got %v and %v tokens, %v and %v covered, hit rates %.3f and %.3f; want one forecast of 14 prompts of %d tokens",
			a.Tokens, b.Tokens, a.Covered, b.Covered, a.Today.HitRate, b.Today.HitRate, tokens)
	}
	if a, b := one.opt.Ledger.Ahead("m", "t0"), other.opt.Ledger.Ahead("m", "t0"); a != b || a == 0 {
		t.Errorf("got a tenant ahead by %d and %d tokens of work, want as many in both", a, b)
	}
}
