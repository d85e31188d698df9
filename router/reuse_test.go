package router

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/workers/fleet"
)

// TestSkippedCacheIsNoLoss checks that a client cannot make the router forget what a worker holds: if one of its fields makes the
// engine read no cache, no hit is predicted, and a count of none does not affect the index.
func TestSkippedCacheIsNoLoss(t *testing.T) {
	w := newWorld(t, 2)
	w.opt.Resync = func(*fleet.Slot) { t.Error("got a resync, want none") }
	words := fmt.Sprintf("%q", text(300, 8))
	plain := chatBody("m", words)
	w.stores(1, plain)
	held := w.index.HeldBlocks(w.slots[1].ID)
	for _, c := range []struct {
		fields  string
		skipped bool
	}{
		{`"prompt_logprobs":1`, true},
		{`"prompt_logprobs":0`, true},
		{`"prompt_logprobs":null`, false},
		{`"echo":true`, true}, // top_logprobs is 0 if a chat does not set it
		{`"echo":true,"top_logprobs":null`, false},
		{`"echo":true,"logprobs":true,"top_logprobs":3`, true},
		{`"echo":false,"top_logprobs":3`, false},
		{`"logprobs":true,"top_logprobs":3`, false},
	} {
		body := strings.Replace(plain, "{", "{"+c.fields+",", 1)
		for range missesForResync + 1 {
			d := w.decide(body)
			if skipped := d.CachedTokens == 0 && d.Reason == Load &&
				d.Why == "the engine bypasses its cache for this request"; skipped != c.skipped || !c.skipped &&
				(d.Reason != Exact || d.Targets[0].Worker != "w1") {
				t.Errorf(`%s: %+v, want skipped == %v, c.skipped or (d.Reason == Exact, d.Targets[0].Worker == "w1")`,
					c.fields, d, c.skipped)
			}
			w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, CachedTokens: d.CachedTokens})
			w.now = w.now.Add(21 * time.Second) // the prediction has expired
		}
	}
	if n := w.index.HeldBlocks(w.slots[1].ID); n != held {
		t.Errorf("%d blocks known of %d, want %d", n, held, held)
	}
	if d := w.decide(plain); d.Reason != Exact || d.Targets[0].Worker != "w1" {
		t.Errorf("afterwards: got %+v, want Reason %q, Targets[0].Worker %q", d, Exact, "w1")
	}
}

// TestShortCountThatSaysNothing checks that a count for several prompts is ignored, since its prompt is not known; that a count
// short by one block is ignored, since the engine may have withheld the last one (a draft model of vLLM's); and that a failed
// request withdraws no more than it had promised.
func TestShortCountThatSaysNothing(t *testing.T) {
	w := newWorld(t, 1)
	w.opt.Resync = func(*fleet.Slot) { t.Error("got a resync, want none") }
	plain := chatBody("m", fmt.Sprintf("%q", text(300, 8)))
	w.stores(0, plain)
	held := w.index.HeldBlocks(w.slots[0].ID)
	for range missesForResync + 1 {
		d := w.decide(plain)
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, CachedTokens: d.CachedTokens - 16})
	}
	if n := w.index.HeldBlocks(w.slots[0].ID); n != held {
		t.Errorf("%d blocks known of %d, want %d", n, held, held)
	}
	batch := fmt.Sprintf(`{"model":"m","messages":[[{"role":"user","content":"Hello"}],[{"role":"user","content":%q}]]}`, text(300, 8))
	w.ids++
	d := w.Decide(t.Context(), &Request{ID: fmt.Sprint("d", w.ids), Path: "/v1/chat/completions/batch", Body: [][]byte{[]byte(batch)}})
	if d.Reason != Exact {
		t.Fatalf("got %+v, want Reason %q", d, Exact)
	}
	w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, CachedTokens: 0})
	if n := w.index.HeldBlocks(w.slots[0].ID); n != held {
		t.Errorf("after a batch %d blocks known of %d, want %d", n, held, held)
	}
}
