package router

import (
	"fmt"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/workers/fleet"
)

// TestLowerTiers checks that what a worker has in a lower tier is worth computing less fetching: less than on a GPU, more than
// nothing, in whole units, and nothing if fetching takes longer than computing. It is shown, counted and booked.
func TestLowerTiers(t *testing.T) {
	body := chatBody("m", fmt.Sprintf("%q", text(4000, 7)))
	const unit = 1024
	serve := func(workers int) *world {
		w := newWorld(t, workers)
		models := w.opt.Models
		models[0].Unit = unit
		w.Serve(models, 0, w.opt.PredictedTTL)
		return w
	}
	w := serve(2)
	w.storesIn(indexer.CPU, 0, body, 1)
	d, told := w.Consider(t.Context(), &Request{ID: "c", Path: "/v1/chat/completions", Body: [][]byte{[]byte(body)}}, 2)
	best := told.Ranked[0]
	if d.Targets[0].Worker != "w0" || d.Reason != Exact || d.CachedTokens < 4000 || d.CachedTokens%unit != 0 ||
		d.OffloadedTokens != d.CachedTokens {
		t.Errorf(`in a lower tier: %+v, want d.Targets[0].Worker == "w0", d.Reason == Exact, d.CachedTokens >= 4000, `+
			`d.CachedTokens%%unit == 0, d.OffloadedTokens == %v`, d, d.CachedTokens)
	}
	if best.Offloaded != d.CachedTokens || best.Terms.Fetch <= 0 || best.Terms.Prefill != float64(d.PromptTokens-d.CachedTokens) ||
		best.Cost >= told.Ranked[1].Cost {
		t.Errorf("got %+v, want %d tokens fetched and the rest computed, for less than at the second", best, d.CachedTokens)
	}

	w.storesIn(indexer.GPU, 1, body, 1)
	d = w.decide(body)
	if d.Targets[0].Worker != "w1" || d.OffloadedTokens != 0 {
		t.Errorf("a GPU beside it: got %+v, want Targets[0].Worker %q, OffloadedTokens 0", d, "w1")
	}

	w = serve(1)
	w.storesIn(indexer.Disk, 0, body, 1)
	w.storesIn(indexer.GPU, 0, body, 0.5)
	d = w.decide(body)
	if d.OffloadedTokens == 0 || d.OffloadedTokens > d.CachedTokens*6/10 || d.CachedTokens%unit != 0 {
		t.Errorf("half of it on the GPU: %+v; got %d, want OffloadedTokens some, OffloadedTokens at most %d, 0",
			d, d.CachedTokens%unit, d.CachedTokens*6/10)
	}
	if b := w.slots[0].Load(w.now); b.Backlog != float64(d.PromptTokens-d.CachedTokens) {
		t.Errorf("%v tokens booked, want %v", b.Backlog, float64(d.PromptTokens-d.CachedTokens))
	}

	w = serve(2)
	w.slots[0].Worker.SetFetchRate(100)
	w.storesIn(indexer.Remote, 0, body, 1)
	_, told = w.Consider(t.Context(), &Request{ID: "c", Path: "/v1/chat/completions", Body: [][]byte{[]byte(body)}}, 2)
	if a, b := told.Ranked[0].Cost, told.Ranked[1].Cost; a != b {
		t.Errorf("slower than computing: costs %v and %v, want as much as where nothing is held", a, b)
	}
}

// TestLowerTierIsCorrected checks that an engine that finds up to a unit less than a lower tier promised has rounded, and that
// one that finds none of it has lost it: it is removed from the index, without affecting what the GPU has.
func TestLowerTierIsCorrected(t *testing.T) {
	body := chatBody("m", fmt.Sprintf("%q", text(4000, 7)))
	w := newWorld(t, 1)
	models := w.opt.Models
	models[0].Unit = 256
	w.Serve(models, 0, time.Second)
	resyncs := 0
	w.opt.Resync = func(*fleet.Slot) { resyncs++ }
	w.storesIn(indexer.GPU, 0, body, 0.5)
	whole := w.index.HeldBlocks(w.slots[0].ID)
	for range 20 {
		w.storesIn(indexer.CPU, 0, body, 1)
		all := w.index.HeldBlocks(w.slots[0].ID)
		d := w.decide(body)
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: "10.0.0.1:8000", Code: 200, Answered: true,
			CachedTokens: d.CachedTokens - 255, PromptTokens: d.PromptTokens})
		if n := w.index.HeldBlocks(w.slots[0].ID); n != all {
			t.Fatalf("%d blocks of %d after an answer that rounds, want %d", n, all, all)
		}
		w.now = w.now.Add(2 * time.Second) // no prediction is left
		d = w.decide(body)
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: "10.0.0.1:8000", Code: 200, Answered: true,
			CachedTokens: d.CachedTokens - d.OffloadedTokens, PromptTokens: d.PromptTokens})
		if n := w.index.HeldBlocks(w.slots[0].ID); n != whole {
			t.Fatalf("%d blocks, want the GPU's %d", n, whole)
		}
		w.now = w.now.Add(2 * time.Second)
	}
	if resyncs != 0 {
		t.Errorf("%d resyncs for what lower tiers lack, want 0", resyncs)
	}
}

// TestFetchesTravel checks that another replica that follows a request knows that it fetches, so that its time does not change
// the measured rate.
func TestFetchesTravel(t *testing.T) {
	body := chatBody("m", fmt.Sprintf("%q", text(4000, 7)))
	w, o := newWorld(t, 1), newWorld(t, 1)
	var told []*SharedBooking
	w.opt.Share = func(s *SharedBooking) { told = append(told, s) }
	w.storesIn(indexer.CPU, 0, body, 0.5)
	w.decide(body)
	if len(told) != 1 || told[0].Fetch == 0 {
		t.Fatalf("told %+v, want 1 of them, [0].Fetch some", told)
	}
	rate := func(fetch int) float64 {
		s := *told[0]
		s.Fetch = fetch
		o.Replicas().Apply("other", &s)
		o.now = o.now.Add(6 * time.Second)
		o.slots[0].Progress(func(locals []uint64) int { return len(locals) }, o.now)
		return o.slots[0].Load(o.now).Rate
	}
	if got := rate(told[0].Fetch); got != 0 {
		t.Errorf("it is taken to compute %v tokens a second, want 0", got)
	}
	if rate(0) == 0 {
		t.Error("got no rate of a request that fetches nothing, want one")
	}
}
