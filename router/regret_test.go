package router

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/ledger"
	"github.com/sightline-router/sightline/workers/fleet"
)

// TestRegret decides one prompt that w0 holds while something keeps it from w0, and checks that the loss is counted, by why.
func TestRegret(t *testing.T) {
	for why, keep := range map[string]func(w *world){
		"": func(*world) {},
		hasQueue: func(w *world) {
			w.opt.Ledger.Book("other", ledger.Booking{Slot: w.slots[0], Work: fleet.Work{Tokens: 1 << 20}})
		},
		isFull: func(w *world) {
			w.limit(1)
			w.opt.Ledger.Book("other", ledger.Booking{Slot: w.slots[0]})
		},
		isOut: func(w *world) {
			for range 3 {
				w.slots[0].Worker.RecordFailure("reset", w.now)
			}
		},
		forTrial: func(w *world) {
			for range 3 {
				w.slots[1].Worker.RecordFailure("reset", w.now)
			}
			w.now = w.now.Add(2 * time.Second)
		},
		isDistant: func(w *world) { w.slots[0].Worker.ZoneDelay = time.Second },
		isLate: func(w *world) {
			w.opt.Ledger.Book("other", ledger.Booking{Slot: w.slots[0], Work: fleet.Work{Tokens: 3000}})
			w.firstToken = 150 * time.Millisecond
		},
		isDoubtful: func(w *world) {
			w.slots[0].EventAge = func(time.Time) time.Duration { return time.Minute }
			w.opt.Ledger.Book("other", ledger.Booking{Slot: w.slots[0], Work: fleet.Work{Tokens: 1 << 20}})
		},
	} {
		t.Run(why, func(t *testing.T) {
			w := newWorld(t, 3)
			body := chatBody("m", fmt.Sprintf("%q", text(300, 8)))
			w.stores(0, body)
			keep(w)
			d := w.decide(body)
			lost := d.HeldTokens - d.CachedTokens
			if d.Regret != why || (lost > 0) != (why != "") || d.HeldTokens == 0 || d.HeldTokens >= d.PromptTokens {
				t.Errorf(`%d of %d tokens held, %d cached, not the best for %q, want d.Regret == %v, (lost > 0) == (why != ""), `+
					`d.HeldTokens != 0, d.HeldTokens < %v`,
					d.HeldTokens, d.PromptTokens, d.CachedTokens, d.Regret, why, d.PromptTokens)
			}
			want := ""
			if why != "" {
				want = fmt.Sprintf("m,%s=%d ", why, lost)
			}
			if got := w.counted(t, "sightline_regret_tokens_total"); got != want {
				t.Errorf("counted %q, want %q", got, want)
			}
			if got := w.counted(t, "sightline_held_tokens_total"); got != fmt.Sprintf("m=%d ", d.HeldTokens) {
				t.Errorf("held: got %q, want %q", got, fmt.Sprintf("m=%d ", d.HeldTokens))
			}
			if r := w.Recent(1)[0]; r.HeldTokens != d.HeldTokens || r.Regret != why {
				t.Errorf("remembered %+v, want HeldTokens %d, Regret %q", r, d.HeldTokens, why)
			}
		})
	}
}

// TestEngineTokens checks that both of the engine's counts are summed up, or none, so that their quotient is a hit rate.
func TestEngineTokens(t *testing.T) {
	w := newWorld(t, 2)
	body := chatBody("m", fmt.Sprintf("%q", text(300, 8)))
	for _, o := range []Outcome{
		{Code: 200, CachedTokens: 0, PromptTokens: 1000},
		{Code: 200, CachedTokens: 600, PromptTokens: 1000, Addr: "10.0.0.2:8000"}, // wherever it went
		{Code: 200, CachedTokens: 600, PromptTokens: 1000, Addr: "10.0.0.1:8000"},
		{Code: 200, CachedTokens: -1, PromptTokens: 1000},
		{Code: 200, CachedTokens: 500},
		{Code: 500, CachedTokens: 500, PromptTokens: 1000},
	} {
		o.ID, o.Phase = w.decide(body).ID, Ended
		w.Observe(o)
	}
	got := w.counted(t, "sightline_engine_prompt_tokens_total") + w.counted(t, "sightline_engine_cached_tokens_total")
	if strings.TrimSpace(got) != "m=3000 m=1200" {
		t.Errorf("%q: got %q, want %q", got, strings.TrimSpace(got), "m=3000 m=1200")
	}
}

// TestMostHeld checks the reason why the candidate that holds most was not chosen.
func TestMostHeld(t *testing.T) {
	for want, c := range map[string][]choose.Candidate{
		"":         {{Overlap: choose.Overlap{Predicted: 500}}, {Overlap: choose.Overlap{Predicted: 400}}},
		forTrial:   {{First: true}, {Overlap: choose.Overlap{Predicted: 500}}},
		isDoubtful: {{}, {Overlap: choose.Overlap{Predicted: 500, Doubtful: true}, Backlog: 5000}},
		isEqual:    {{Overlap: choose.Overlap{Predicted: 480}}, {Overlap: choose.Overlap{Predicted: 500}, Recent: 100}},
		isSlower:   {{Rate: 10000}, {Overlap: choose.Overlap{Predicted: 500}, Rate: 2000}, {Rate: 10000}},
		hasQueue:   {{Inflight: 1}, {Overlap: choose.Overlap{Predicted: 500}, Backlog: 5000, Inflight: 3}},
		hasMore:    {{}, {Overlap: choose.Overlap{Predicted: 500}, Inflight: 20, Context: 9000, Backlog: 1000}},
		encodes:    {{Overlap: choose.Overlap{Predicted: 480, Seen: 1000}}, {Overlap: choose.Overlap{Predicted: 500, Encode: 1000}}},
		fetches: {{Overlap: choose.Overlap{Predicted: 400}},
			{Overlap: choose.Overlap{Predicted: 500, Offloaded: 500}, FetchRate: 12000}},
	} {
		for i := range c {
			c[i].Slot, c[i].Tokens = i, 1000
		}
		choose.Rank(c, 3, 0)
		overlap, why := mostHeld(c)
		if c[0].Slot != 0 || why != want || overlap != 500 {
			t.Errorf("%q: slot %d is chosen, the best holds %d, not chosen for %q, want 0, %q, 500", want, c[0].Slot, overlap, why, want)
		}
	}
	c := []choose.Candidate{{Overlap: choose.Overlap{Slot: 0, Tokens: 400, Predicted: 900}},
		{Overlap: choose.Overlap{Slot: 1, Tokens: 400, Predicted: 400}, Backlog: 100}}
	choose.Rank(c, 2, 0)
	if c[0].Slot != 0 {
		t.Fatalf("another one is chosen: got %d, want 0", c[0].Slot)
	}
	if n, why := mostHeld(c); n != 400 || why != "" {
		t.Errorf("of 400 tokens %d are held, and another one was better for %q, want 400, %q", n, why, "")
	}
}
