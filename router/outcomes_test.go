package router

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/workers/fleet"
)

// counted returns a metric's samples, their label values joined, in the registry's order.
func (w *world) counted(t *testing.T, metric string) (out string) {
	t.Helper()
	all, err := w.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() != metric {
			continue
		}
		for _, m := range f.GetMetric() {
			var values []string
			for _, l := range m.GetLabel() {
				values = append(values, l.GetValue())
			}
			out += fmt.Sprint(strings.Join(values, ","), "=", m.GetCounter().GetValue(), " ")
		}
	}
	return out
}

// TestOutcomeIsTheServingWorkers checks that an outcome is counted for the worker that had the request last, whether the report
// of its start came or was lost.
func TestOutcomeIsTheServingWorkers(t *testing.T) {
	for name, c := range map[string]struct {
		started []string // addresses in turn
		ended   string
		want    string
	}{
		"after a retry":                          {[]string{"10.0.0.1:8000", "10.0.0.2:8000"}, "10.0.0.2:8000", "2xx,w1=1 "},
		"the first could not be reached":         {[]string{"10.0.0.2:8000"}, "10.0.0.2:8000", "2xx,w1=1 "},
		"no word of where it went, but its end":  {nil, "10.0.0.2:8000", "2xx,w1=1 "},
		"nor at its end":                         {nil, "", "2xx,w0=1 "},
		"somewhere that is no worker of ours":    {nil, "10.9.9.9:1", "2xx,other=1 "},
		"where it was meant to go":               {[]string{"10.0.0.1:8000"}, "10.0.0.1:8000", "2xx,w0=1 "},
		"the worker is no longer ready":          {[]string{"gone"}, "10.0.0.1:8000", "2xx,w0=1 "},
		"there and back, the last word was lost": {[]string{"10.0.0.1:8000", "10.0.0.2:8000"}, "10.0.0.1:8000", "2xx,w0=1 "},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			body := chatBody("m", fmt.Sprintf("%q", text(300, 8)))
			w.stores(0, body)
			d := w.decide(body)
			for _, addr := range c.started {
				if addr == "gone" {
					w.opt.Fleet.Set(nil)
					continue
				}
				w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: addr, CachedTokens: -1})
			}
			w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: c.ended, Code: 200, CachedTokens: 0})
			if got := w.counted(t, "sightline_outcomes_total"); got != c.want {
				t.Errorf("counted %q, want %q", got, c.want)
			}
			if lost := w.index.HeldBlocks(w.slots[0].ID) == 0; lost != strings.Contains(c.want, "w0") {
				t.Errorf("what w0 holds is dropped: got %t, want %v", lost, strings.Contains(c.want, "w0"))
			}
		})
	}
}

// TestRefusalsAreCountedAsSuch checks that a refusal is not counted as a decision by load.
func TestRefusalsAreCountedAsSuch(t *testing.T) {
	w := newWorld(t, 1)
	w.limit(1)
	body := chatBody("m", `"Hello"`)
	w.decide(body)
	if d := w.decide(body); d.Refuse == nil || d.Reason != RefusedByUs {
		t.Errorf("got %+v, want Refuse one, Reason %q", d, RefusedByUs)
	}
	w.decide("\xff\xfe{")
	if got := w.counted(t, "sightline_decisions_total"); got != ",refused=1 m,load=1 m,refused=1 " {
		t.Errorf("counted %q, want %q", got, ",refused=1 m,load=1 m,refused=1 ")
	}
	if r := w.Recent(1); r[0].Reason != RefusedByUs {
		t.Errorf("got %+v, want Reason %q", r[0], RefusedByUs)
	}
}

// TestReportsSideBySide observes concurrent reports of one request, as they come from Envoy's threads, for the race detector.
func TestReportsSideBySide(t *testing.T) {
	w := newWorld(t, 3)
	body := chatBody("m", fmt.Sprintf("%q", text(100, 8)))
	w.stores(0, body)
	for range 50 {
		d := w.decide(body)
		var all sync.WaitGroup
		for _, o := range []Outcome{
			{Phase: Started, Addr: "10.0.0.2:8000", CachedTokens: -1}, {Phase: Started, Addr: "10.0.0.3:8000", CachedTokens: -1},
			{Phase: Ended, Addr: "10.0.0.3:8000", Code: 200, CachedTokens: 16}, {Phase: Ended, Addr: "10.0.0.3:8000", Code: 503, CachedTokens: -1},
		} {
			o.ID = d.ID
			all.Go(func() { w.Observe(o) })
		}
		all.Wait()
	}
	if n := w.opt.Ledger.Open(); n != 0 {
		t.Errorf("%d requests open, want 0", n)
	}
	for _, s := range w.slots {
		if n := s.Load(w.now).Inflight; n != 0 {
			t.Errorf("%d in flight on %s, want 0", n, s.Worker.Name)
		}
	}
}

// TestNewWorkerHasSeenNothing checks that a worker that gets the slot ID of one that left has seen none of its images, and is
// not doubted because of it.
func TestNewWorkerHasSeenNothing(t *testing.T) {
	w := newWorld(t, 2)
	img := chatBody("m", testImage(1, 640, 480))
	d := w.decide(img)
	w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, CachedTokens: -1})
	w.now = w.now.Add(21 * time.Second)
	if d := w.decide(img); d.Reason != Affinity {
		t.Fatalf("got %+v, want Reason %q", d, Affinity)
	}
	for range missesForResync - 1 {
		w.follower.suspects.countMiss(w.slots[0], 0, w.now)
	}
	var workers []*fleet.Worker
	for i, s := range w.slots {
		n := fleet.NewWorker(fmt.Sprint("new", i), netip.MustParseAddrPort(fmt.Sprintf("10.0.1.%d:8000", i+1)), "m", 0,
			func(int) indexer.SlotID { return s.ID })
		n.Slots[0].EventAge = s.EventAge
		workers = append(workers, n)
	}
	w.opt.Fleet.Set(workers)
	w.now = w.now.Add(21 * time.Second)
	if d := w.decide(img); d.Reason != Load {
		t.Errorf("got %+v, want Reason %q", d, Load)
	}
	if w.follower.suspects.countMiss(workers[0].Slots[0], 0, w.now) {
		t.Error("a new worker is asked anew for what another had lost, want !w.follower.suspects.countMiss(workers[0].Slots[0], " +
			"0, w.now)")
	}
	w.now = w.now.Add(2 * resyncRest)
	if w.follower.suspects.countMiss(workers[1].Slots[0], 0, w.now) || len(w.follower.suspects.bySlot) != 1 {
		t.Errorf("%d slots doubted, want the last one", len(w.follower.suspects.bySlot))
	}
}

// TestOneSystemPrompt checks that 200 prompts of 8 k tokens with one system prompt are all predicted where they went.
func TestOneSystemPrompt(t *testing.T) {
	w := newWorld(t, 4)
	w.Serve(w.opt.Models, 0, time.Hour)
	system := text(300, 1)
	body := func(i int) string {
		return fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":%q},{"role":"user","content":%q}]}`, system,
			text(1800, uint64(100+i)))
	}
	const prompts = 200
	went := make([]string, prompts)
	for i := range went {
		d := w.decide(body(i))
		went[i] = d.Targets[0].Worker
		if d.PromptTokens < 8000 {
			t.Fatalf("%d tokens, want at least 8000", d.PromptTokens)
		}
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200, CachedTokens: -1})
	}
	w.now = w.now.Add(10 * time.Minute) // all is prefilled: load does not influence the choice
	lost := 0
	for i := range went {
		d := w.decide(body(i))
		if d.Reason != Predicted || d.Targets[0].Worker != went[i] || d.CachedTokens < 8000-32 {
			lost++
		}
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200, CachedTokens: -1})
	}
	if lost > 0 || w.counted(t, "sightline_predictions_dropped_total") != "=0 " {
		t.Errorf("%d of %d lost, dropped %s, want 0, %q", lost, prompts, w.counted(t, "sightline_predictions_dropped_total"), "=0 ")
	}
}

// TestRecentSince: what counts as recent, newest first. A client that has waited for longer than the window counts from when it left.
func TestRecentSince(t *testing.T) {
	now := time.Now()
	r := &Router{recent: newRecent()}
	for id, e := range []Recent{{At: now.Add(-time.Hour)}, {At: now.Add(-10 * time.Minute), Lasted: 10 * time.Minute},
		{At: now.Add(-2 * time.Minute), Lasted: time.Second}, {At: now.Add(-time.Second)}, {At: now}} {
		e.ID = fmt.Sprint(id)
		r.recent.last.Add(e.ID, &e)
	}
	ids := func(list []Recent) (s string) {
		for _, e := range list {
			s += e.ID
		}
		return s
	}
	for want, got := range map[string][]Recent{"431": r.RecentSince(now.Add(-time.Minute), 8), "43": r.RecentSince(now.Add(-time.Minute), 2),
		"43210": r.Recent(8), "": r.RecentSince(now.Add(time.Second), 8)} {
		if ids(got) != want {
			t.Errorf("got %q, want %q", ids(got), want)
		}
	}
}

// TestRetried: a decision says whether Envoy tried more than one worker.
func TestRetried(t *testing.T) {
	for _, retried := range []bool{false, true} {
		w := newWorld(t, 2)
		d := w.decide(chatBody("m", `"hello"`))
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200, Retried: retried, CachedTokens: -1})
		if got := w.Recent(1)[0].Retried; got != retried {
			t.Errorf("reported %v: got retried %v, want %v", retried, got, retried)
		}
	}
}

// TestAnswersCount checks that n answers to one prompt count as n requests that are prefilled once, as engines handle them.
func TestAnswersCount(t *testing.T) {
	for n, want := range map[string]int{"1": 1, "4": 4, "0": 1, "-7": 1, "1e99": 128, `"5"`: 5, /* as pydantic reads it */
		"null": 1, "2.5": 2} {
		w := newWorld(t, 1)
		d := w.decide(fmt.Sprintf(`{"model":"m","n":%s,"messages":[{"role":"user","content":%q}]}`, n, text(100, 1)))
		if got := w.slots[0].Load(w.now); got.Inflight != want || int(got.Context) != want*d.PromptTokens ||
			int(got.Backlog) != d.PromptTokens {
			t.Errorf("n=%s: %+v for a prompt of %d tokens; got %d, %d, want Inflight %d, %d, %d",
				n, got, d.PromptTokens, int(got.Context), int(got.Backlog), want, want*d.PromptTokens, d.PromptTokens)
		}
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200, CachedTokens: -1})
		if got := w.slots[0].Load(w.now); got.Inflight != 0 || got.Context != 0 {
			t.Errorf("n=%s, ended: got %+v, want Inflight 0, Context 0", n, got)
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
