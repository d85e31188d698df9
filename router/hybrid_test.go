package router

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/workers/fleet"
)

// TestHybridWorker: of two workers that hold a prompt in the group that sees all tokens, the one that also holds the window at its end
// is chosen, and its prediction is exact; the other's is nothing, and not repaired by the predictions of earlier requests.
func TestHybridWorker(t *testing.T) {
	w := newWorld(t, 2)
	w.opt.Resync = func(*fleet.Slot) { t.Error("got a resync, want none") }
	body := chatBody("m", fmt.Sprintf("%q", text(300, 8)))
	w.stores(0, body)
	w.stores(1, body)
	for i, s := range w.slots {
		list, err := w.index.Blocks(s.ID)
		if err != nil || len(list) < 8 {
			t.Fatalf("%d blocks, %v, want no error, at least 8", len(list), err)
		}
		e := kvevent.Event{Kind: kvevent.GroupStored, Group: 1, Spec: kvevent.Spec{Need: kvevent.NeedWindow, Window: 33, BlockSize: 16}}
		if i == 1 {
			e.EngineHashes = []uint64{list[len(list)-3].EngineHash, list[len(list)-2].EngineHash}
		}
		if _, err := w.index.StoreGroup(s.ID, 16, &e); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		held := w.index.HeldBlocks(w.slots[1].ID)
		d := w.decide(body)
		if d.Reason != Exact || d.Targets[0].Worker != "w1" || d.CachedTokens != 16*(held-1) || d.UpperBound {
			t.Fatalf("got %+v, want Reason %q, Targets[0].Worker %q, CachedTokens %d, UpperBound false", d, Exact, "w1", 16*(held-1))
		}
		_, list := w.Consider(t.Context(), &Request{ID: "q", Path: "/v1/chat/completions", Body: [][]byte{[]byte(body)}}, 2)
		if len(list.Ranked) != 2 || list.Ranked[0].Predicted+list.Ranked[1].Predicted != d.CachedTokens {
			t.Errorf("got %+v, want two ranked that are predicted to have %d tokens together", list.Ranked, d.CachedTokens)
		}
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, CachedTokens: d.CachedTokens})
		if got := w.index.HeldBlocks(w.slots[1].ID); got != held {
			t.Errorf("%d blocks of %d, want %d", got, held, held)
		}
	}
}

// TestHybridBounds: a worker that finds parts of blocks has a lower bound, one that withholds a block and has windows an upper bound.
// Answers within the bound neither correct the index nor have it asked anew, and the withheld block is unlearned as it was learned.
func TestHybridBounds(t *testing.T) {
	for _, c := range []struct {
		name           string
		needs          []kvevent.Spec
		withholds      bool
		off            int // tokens that the engine finds more
		why, counted   string
		partial, upper bool
	}{
		{"parts", []kvevent.Spec{{Need: kvevent.NeedLast, BlockSize: 16}, {Need: kvevent.NeedLast, BlockSize: 4}}, false, 12,
			"a lower bound: the engine also finds parts of blocks", "more_than_bound", true, false},
		{"windows", []kvevent.Spec{{Need: kvevent.NeedWindow, Window: 33, BlockSize: 16}}, true, -16,
			"an upper bound: the events do not say all that a hit needs", "fewer_than_bound", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 1)
			w.opt.Resync = func(*fleet.Slot) { t.Error("got a resync, want none") }
			body := chatBody("m", fmt.Sprintf("%q", text(300, 8)))
			w.stores(0, body)
			id := w.slots[0].ID
			list, err := w.index.Blocks(id)
			if err != nil {
				t.Fatal(err)
			}
			for i, spec := range c.needs {
				e := kvevent.Event{Kind: kvevent.GroupStored, Group: 1, Spec: spec}
				for _, b := range list {
					if i == 0 {
						e.EngineHashes = append(e.EngineHashes, b.EngineHash)
					}
				}
				if _, err := w.index.StoreGroup(id, 16, &e); err != nil {
					t.Fatal(err)
				}
			}
			w.index.SetWithholds(id, c.withholds)
			held := w.index.HeldBlocks(id)
			answer := func(off int) {
				t.Helper()
				d := w.decide(body)
				if d.Reason != Exact || d.CachedTokens == 0 || d.Partial != c.partial || d.UpperBound != c.upper || d.Why != c.why {
					t.Fatalf("got %+v, want a lower bound %t, an upper bound %t, %q", d, c.partial, c.upper, c.why)
				}
				w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, CachedTokens: d.CachedTokens + off})
			}
			for range 2 * missesForResync {
				answer(c.off)
			}
			if got := w.index.HeldBlocks(id); got != held {
				t.Errorf("%d blocks known, want %d", got, held)
			}
			if got := w.labels(t, "sightline_cached_tokens_reported_total", 1); got != c.counted {
				t.Errorf("counted as %s, want %s", got, c.counted)
			}
			if c.withholds {
				for range answersForWithheld {
					answer(16)
				}
				if w.index.Withholds(id) || w.index.UpperBound(id) {
					t.Error("three answers with the withheld block did not unlearn it, want !w.index.Withholds(id), " +
						"!w.index.UpperBound(id)")
				}
			}
		})
	}
}

// TestJunction: where no worker can resume within a prompt, it goes to the one that holds it in the group that sees all tokens: that
// one's engine then keeps what the next prompt with the same beginning needs. Once a worker can resume there, the other's copy is
// worth nothing.
func TestJunction(t *testing.T) {
	w := newWorld(t, 4)
	body := chatBody("m", fmt.Sprintf("%q", text(300, 8)))
	w.stores(2, body)
	spec := kvevent.Spec{Need: kvevent.NeedLast, BlockSize: 16}
	if _, err := w.index.StoreGroup(w.slots[2].ID, 16, &kvevent.Event{Kind: kvevent.GroupStored, Group: 1, Spec: spec}); err != nil {
		t.Fatal(err)
	}
	chosen := func() string {
		d := w.decide(body)
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 500})
		return d.Targets[0].Worker
	}
	for range 8 {
		if got := chosen(); got != "w2" {
			t.Fatalf("%s was chosen, want %q", got, "w2")
		}
		w.now = w.now.Add(time.Minute)
	}
	w.stores(1, body)
	w.now = w.now.Add(time.Minute)
	if got := chosen(); got != "w1" {
		t.Errorf("%s was chosen, where w1 can resume, want %q", got, "w1")
	}
}

// TestWithheldBlock: after three answers that found one block less, a block less is predicted; after as many that found one more,
// all of them again.
func TestWithheldBlock(t *testing.T) {
	w := newWorld(t, 1)
	body := chatBody("m", fmt.Sprintf("%q", text(300, 8)))
	w.stores(0, body)
	all := w.decide(body).CachedTokens
	for _, c := range []struct{ found, next int }{{all - 16, all}, {all, all}, {all - 16, all}, {all - 16, all}, {all - 16, all - 16},
		{all - 16, all - 16}, {all, all - 16}, {all, all - 16}, {all, all}} {
		d := w.decide(body)
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, CachedTokens: c.found})
		if d := w.decide(body); d.Reason != Exact || d.CachedTokens != c.next {
			t.Fatalf("after %d found: %d predicted, want %d (%s)", c.found, d.CachedTokens, c.next, d.Reason)
		}
	}
}

// TestFormsOfBlocks: workers of one class whose events show blocks of different forms are each found by their own, and one that has
// stored nothing is expected to be like the first of the others.
func TestFormsOfBlocks(t *testing.T) {
	w := newWorld(t, 4)
	body := func(last string) string { return chatBody("m", fmt.Sprintf("%q", text(300, 8)+last)) }
	for i, form := range []block.Form{{}, {Size: 16, Lookahead: 1}, {Size: 32}, {Size: 16}} {
		if i > 0 {
			w.index.SetForm(w.slots[i].ID, form)
			w.stores(i, body(""))
		}
	}
	predicted := func(request string) (by [4]int) {
		d, list := w.Consider(t.Context(), &Request{ID: "q", Path: "/v1/chat/completions", Body: [][]byte{[]byte(request)}}, 4)
		for _, c := range list.Ranked {
			at, _ := strconv.Atoi(c.Worker[1:])
			by[at] = c.Predicted
		}
		if d.PromptTokens < 400 || len(list.Ranked) != 4 {
			t.Fatalf("%+v: got %d, want PromptTokens at least 400, 4", d, len(list.Ranked))
		}
		return by
	}
	tokens := w.decide(body("")).PromptTokens
	if got, want := predicted(body("")), [4]int{0, (tokens - 1) / 16 * 16, tokens / 32 * 32, tokens / 16 * 16}; got != want {
		t.Errorf("%d tokens: %v, want %v", tokens, got, want)
	}
	// Another prompt with the same tokens up to the end of a block: only a hash that covers the next token differs.
	for cut := range 32 {
		request := chatBody("m", fmt.Sprintf("%q", text(300, 8)[:1200+cut]))
		if got := predicted(request); got[3] != got[1] && (got[3] != got[1]+16 || got[1] == 0) {
			t.Errorf("got %v tokens, want the fourth as the second, or one block more", got)
		} else if got[3] != got[1] {
			return
		}
	}
	t.Error("got no prompt whose beginning ends with a block, want one of 32")
}
