package router

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/decisionlog"
	"github.com/sightline-router/sightline/router/ledger"
)

// accountOf ends a request with the engine's counts, and returns its account; each token must be in it once.
func (w *world) accountOf(t *testing.T, d Decision, tokens, cached int) *account.Account {
	t.Helper()
	before := w.counted(t, "sightline_uncached_tokens_total")
	w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, CachedTokens: cached, PromptTokens: tokens})
	r, _ := w.Decision(d.ID)
	a := r.Account
	if a == nil {
		t.Fatalf("%+v has no account: got %+v, want one", d, a)
	}
	at := a.Cached
	for _, s := range a.Spans {
		if s.From != at || s.To <= at {
			t.Errorf("a span from %d to %d, want it from %d", s.From, s.To, at)
		}
		at = s.To
	}
	if at != a.Tokens || a.Uncached.Total() != a.Tokens-a.Cached || tokens > 0 && a.Tokens != tokens || cached >= 0 && a.Cached != cached {
		t.Errorf("%+v; want %d tokens, %d of them cached, and spans up to the end", a, tokens, cached)
	}
	if a.Tokens > a.Cached && w.counted(t, "sightline_uncached_tokens_total") == before {
		t.Errorf(`sightline_uncached_tokens_total counts nothing, want a.Tokens <= %v or w.counted(t, `+
			`"sightline_uncached_tokens_total") != %v`, a.Cached, before)
	}
	return a
}

// says returns an account in few words: the causes in blocks, with what is known besides.
func says(a *account.Account) string {
	var out []string
	if a.Cached > 0 {
		out = append(out, fmt.Sprint(a.Cached/16, " cached"))
	}
	for _, s := range a.Spans {
		line := fmt.Sprint((s.To-s.From)/16, " ", s.Cause)
		for _, word := range []string{s.Worker, s.Why} {
			if word != "" {
				line += " " + word
			}
		}
		if s.Ago > 0 {
			line += " " + s.Ago.String()
		}
		out = append(out, line)
	}
	return strings.Join(out, ", ")
}

// removes removes a slot's blocks from one on.
func (w *world) removes(t *testing.T, worker, from int) {
	t.Helper()
	list, err := w.index.Blocks(w.slots[worker].ID)
	if err != nil || len(list) <= from {
		t.Fatalf("%d blocks, %v, want no error, more than %d", len(list), err, from)
	}
	var gone []uint64
	for _, b := range list[from:] {
		gone = append(gone, b.EngineHash)
	}
	if _, err := w.index.Remove(w.slots[worker].ID, indexer.GPU, gone); err != nil {
		t.Fatal(err)
	}
}

// TestAccount checks the cause of each token. The prompt has 74 whole blocks and 6 tokens more.
func TestAccount(t *testing.T) {
	body := chatBody("m", fmt.Sprintf("%q", text(300, 5)))
	const tokens = 74*16 + 6
	served := func(t *testing.T, w *world) { // it was served by w0 a minute ago
		for i := 1; i < len(w.slots); i++ {
			w.load(i, 40)
		}
		d := w.decide(body)
		w.stores(0, body)
		w.accountOf(t, d, tokens, 0)
		for i := range 40 {
			w.opt.Ledger.End(fmt.Sprint("1 other ", i), 0)
		}
		w.now = w.now.Add(time.Minute)
	}
	for name, c := range map[string]struct {
		workers int
		run     func(t *testing.T, w *world) *account.Account
		want    string
	}{
		"a first sighting": {1, func(t *testing.T, w *world) *account.Account {
			return w.accountOf(t, w.decide(body), tokens, -1)
		}, "74 new, 0 block"},
		"as predicted": {1, func(t *testing.T, w *world) *account.Account {
			w.stores(0, body)
			return w.accountOf(t, w.decide(body), -1, -1)
		}, "74 cached, 0 block"},
		"another worker holds it": {2, func(t *testing.T, w *world) *account.Account {
			w.stores(0, body)
			w.load(0, 40)
			return w.accountOf(t, w.decide(body), tokens, 0)
		}, "74 elsewhere requests, 0 block"},
		"another worker holds a part of it": {2, func(t *testing.T, w *world) *account.Account {
			w.storesIn(indexer.GPU, 0, body, 0.5)
			w.load(0, 40)
			return w.accountOf(t, w.decide(body), tokens, 0)
		}, "37 elsewhere requests, 37 new, 0 block"},
		"Envoy sent it to another worker": {2, func(t *testing.T, w *world) *account.Account {
			w.stores(0, body)
			d := w.decide(body)
			w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: "10.0.0.2:8000", CachedTokens: -1})
			return w.accountOf(t, d, tokens, 32)
		}, "2 cached, 72 elsewhere moved, 0 block"},
		"not steered": {2, func(t *testing.T, w *world) *account.Account {
			w.SetUnsteered(1)
			w.stores(0, body)
			d := w.decide(body)
			w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: "10.0.0.2:8000", CachedTokens: -1})
			return w.accountOf(t, d, tokens, 0)
		}, "74 elsewhere not steered, 0 block"},
		"another request was computing it": {1, func(t *testing.T, w *world) *account.Account {
			w.decide(body)
			return w.accountOf(t, w.decide(body), tokens, 0)
		}, "74 computing, 0 block"},
		"another worker was computing it": {2, func(t *testing.T, w *world) *account.Account {
			w.load(1, 9)
			w.decide(body)
			w.load(0, 90)
			return w.accountOf(t, w.decide(body), tokens, 0)
		}, "74 computing, 0 block"},
		"evicted": {1, func(t *testing.T, w *world) *account.Account {
			served(t, w)
			w.removes(t, 0, 20)
			return w.accountOf(t, w.decide(body), tokens, 20*16)
		}, "20 cached, 54 evicted w0 requests in flight took the room 1m0s, 0 block"},
		"its worker was restarted": {1, func(t *testing.T, w *world) *account.Account {
			served(t, w)
			if err := w.index.Clear(w.slots[0].ID); err != nil {
				t.Fatal(err)
			}
			return w.accountOf(t, w.decide(body), tokens, 0)
		}, "74 lost w0 1m0s, 0 block"},
		"its worker left": {2, func(t *testing.T, w *world) *account.Account {
			served(t, w)
			if err := w.index.Clear(w.slots[0].ID); err != nil {
				t.Fatal(err)
			}
			w.opt.Fleet.Set(w.opt.Fleet.Workers()[1:])
			return w.accountOf(t, w.decide(body), tokens, 0)
		}, "74 lost w0 it left 1m0s, 0 block"},
		"evicted before the restart, in part": {1, func(t *testing.T, w *world) *account.Account {
			served(t, w)
			w.removes(t, 0, 50)
			if err := w.index.Clear(w.slots[0].ID); err != nil {
				t.Fatal(err)
			}
			return w.accountOf(t, w.decide(body), tokens, 0)
		}, "50 lost w0 1m0s, 24 evicted w0 requests in flight took the room 1m0s, 0 block"},
		"evicted since the decision": {1, func(t *testing.T, w *world) *account.Account {
			served(t, w)
			d := w.decide(body)
			w.removes(t, 0, 30)
			w.stores(0, body)
			return w.accountOf(t, d, tokens, 30*16)
		}, "30 cached, 44 evicted since the decision, 0 block"},
		"another replica's request was served, then evicted": {1, func(t *testing.T, w *world) *account.Account {
			w.stores(0, body)
			list, _ := w.index.Blocks(w.slots[0].ID)
			open := SharedBooking{Number: 1, Worker: "w0", Rank: -1}
			for _, b := range list {
				open.Locals = append(open.Locals, b.Local)
			}
			w.Replicas().Apply("other", &open)
			w.Replicas().Apply("other", &SharedBooking{Kind: BookingEnded, Number: 1})
			w.removes(t, 0, 70)
			return w.accountOf(t, w.decide(body), tokens, 70*16)
		}, "70 cached, 4 evicted w0, 0 block"},
		"evicted while its prediction lasts": {1, func(t *testing.T, w *world) *account.Account {
			served(t, w)
			w.now = w.now.Add(-time.Minute)
			w.removes(t, 0, 40)
			return w.accountOf(t, w.decide(body), tokens, 40*16)
		}, "40 cached, 34 evicted w0, 0 block"},
		"not found, and no event says why": {1, func(t *testing.T, w *world) *account.Account {
			served(t, w)
			return w.accountOf(t, w.decide(body), tokens, 30*16)
		}, "30 cached, 44 unknown its events say that it held them, 0 block"},
		"more found than expected": {1, func(t *testing.T, w *world) *account.Account {
			return w.accountOf(t, w.decide(body), tokens, 10*16)
		}, "10 cached, 64 new, 0 block"},
		"a worker without events": {1, func(t *testing.T, w *world) *account.Account {
			w.accountOf(t, w.decide(body), tokens, 0)
			w.now = w.now.Add(time.Minute)
			return w.accountOf(t, w.decide(body), tokens, 0)
		}, "74 unknown w0 the worker's events do not tell all that it holds 1m0s, 0 block"},
		"the engine reads more": {1, func(t *testing.T, w *world) *account.Account {
			return w.accountOf(t, w.decide(body), tokens+32, 0)
		}, "74 new, 0 block, 2 unknown the engine counts more tokens than were read"},
		"the engine reads less": {1, func(t *testing.T, w *world) *account.Account {
			return w.accountOf(t, w.decide(body), 10*16, 0)
		}, "10 new"},
		"a hybrid without a window to go on from": {1, func(t *testing.T, w *world) *account.Account {
			w.stores(0, body)
			list, _ := w.index.Blocks(w.slots[0].ID)
			e := kvevent.Event{Kind: kvevent.GroupStored, Group: 1, EngineHashes: []uint64{list[8].EngineHash, list[9].EngineHash},
				Spec: kvevent.Spec{Need: kvevent.NeedWindow, Window: 33, BlockSize: 16}}
			if _, err := w.index.StoreGroup(w.slots[0].ID, 16, &e); err != nil {
				t.Fatal(err)
			}
			return w.accountOf(t, w.decide(body), tokens, 160)
		}, "10 cached, 64 kept short, 0 block"},
		"a drafting worker": {1, func(t *testing.T, w *world) *account.Account {
			w.stores(0, body)
			w.index.SetWithholds(w.slots[0].ID, true)
			return w.accountOf(t, w.decide(body), tokens, 73*16)
		}, "73 cached, 1 block"},
		"the engine does not read its cache": {1, func(t *testing.T, w *world) *account.Account {
			w.stores(0, body)
			return w.accountOf(t, w.decide(strings.Replace(body, "{", `{"prompt_logprobs":1,`, 1)), tokens, 0)
		}, "74 not read, 0 block"},
		"a body that is not read": {1, func(t *testing.T, w *world) *account.Account {
			return w.accountOf(t, w.decide(`{"model":"m"}`), 100, 50)
		}, "3 cached, 3 unknown the request was not read"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := says(c.run(t, newWorld(t, c.workers))); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestAccountIsLogged checks that the decision log's line has the causes, and that one of an error has none.
func TestAccountIsLogged(t *testing.T) {
	w := newWorld(t, 1)
	body := chatBody("m", fmt.Sprintf("%q", text(300, 5)))
	for _, code := range []int{200, 500} {
		d := w.decide(body)
		e := &end{bookingRecord: &bookingRecord{line: new(decisionlog.Line)}, at: new(ledger.Booking), counted: 2,
			o: Outcome{ID: d.ID, Code: code, PromptTokens: 7}}
		w.follower.settleAccount(e)
		w.follower.logEnd(e)
		if got := e.line.Uncached.Total(); (got == 5) != (code == 200) || got > 0 && code == 500 {
			t.Errorf("status %d: got %d tokens uncached, want five of a request with 200 and none of a failed one", code, got)
		}
	}
}
