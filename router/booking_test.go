package router

import (
	"fmt"
	"testing"
)

// TestAnswersCount checks that n answers to one prompt count as n requests that are prefilled once, as engines handle them.
func TestAnswersCount(t *testing.T) {
	for n, want := range map[string]int{"1": 1, "4": 4, "0": 1, "-7": 1, "1e99": 128, `"5"`: 5, /* as pydantic reads it */
		"null": 1, "2.5": 2} {
		w := newWorld(t, 1)
		d := w.decide(fmt.Sprintf(`{"model":"m","n":%s,"messages":[{"role":"user","content":%q}]}`, n, text(100, 1)))
		if got := w.slots[0].Load(w.now); got.Inflight != want || int(got.Context) != want*d.PromptTokens || int(got.Backlog) != d.PromptTokens {
			t.Errorf("n=%s: %+v for a prompt of %d tokens", n, got, d.PromptTokens)
		}
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200, CachedTokens: -1})
		if got := w.slots[0].Load(w.now); got.Inflight != 0 || got.Context != 0 {
			t.Errorf("n=%s, ended: %+v", n, got)
		}
	}
}

// TestAnswersBeyondTheLimit checks that a request takes no more places than its worker has: it runs no more answers at a time.
func TestAnswersBeyondTheLimit(t *testing.T) {
	w := newWorld(t, 1)
	w.Serve(w.opt.Models, 8, 0)
	d := w.decide(`{"model":"m","n":128,"messages":[{"role":"user","content":"hi"}]}`)
	if got := w.slots[0].Load(w.now); got.Places() != 8 {
		t.Errorf("%d places, want 8", got.Places())
	}
	w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: d.Targets[0].Addr})
	w.Observe(Outcome{ID: d.ID, Phase: Done, Addr: d.Targets[0].Addr, Code: 200})
	if got := w.slots[0].Load(w.now); got.Places() != 0 {
		t.Errorf("%d places once the worker has answered, want 0", got.Places())
	}
}
