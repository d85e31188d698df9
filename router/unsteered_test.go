package router

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/ledger"
	"github.com/sightline-router/sightline/router/report"
	"github.com/sightline-router/sightline/workers/fleet"
)

// newUnsteered is newWorld with a share of conversations that are not steered.
func newUnsteered(t *testing.T, workers int, share float64) *world {
	w := newWorld(t, workers)
	w.SetUnsteered(share)
	return w
}

// busy returns what is booked and predicted.
func (w *world) busy() (out string) {
	for i, s := range w.slots {
		l := s.Load(w.now)
		out += fmt.Sprintf("w%d: %d, %.0f tokens; ", i, l.Inflight, l.Backlog)
	}
	return out + fmt.Sprint(w.predicted.Size() > 0)
}

// TestUnsteered checks that an unsteered request sends Envoy nothing and books nothing until Envoy reports who got it,
// and that all of it is then booked at that worker.
func TestUnsteered(t *testing.T) {
	body := chatBody("m", fmt.Sprintf("%q", text(300, 5)))
	for name, c := range map[string]struct {
		reports []Outcome
		booked  string // then
		used    string // as the report says
	}{
		"nobody tells":   {nil, "w0: 0, 0 tokens; w1: 0, 0 tokens; false", ""},
		"another worker": {[]Outcome{{Phase: Started, Addr: "10.0.0.2:8000"}}, "w0: 0, 0 tokens; w1: 1, 1190 tokens; true", ""},
		"the chosen one": {[]Outcome{{Phase: Started, Addr: "10.0.0.1:8000"}}, "w0: 1, 6 tokens; w1: 0, 0 tokens; false", ""},
		"a retry": {[]Outcome{{Phase: Started, Addr: "10.0.0.1:8000"}, {Phase: Started, Addr: "10.0.0.2:8000"}},
			"w0: 0, 0 tokens; w1: 1, 6 tokens; true", ""},
		"somebody unknown": {[]Outcome{{Phase: Started, Addr: "10.9.9.9:1"}}, "w0: 0, 0 tokens; w1: 0, 0 tokens; false", ""},
		"its end": {[]Outcome{{Phase: Ended, Addr: "10.0.0.2:8000", Code: 200}}, "w0: 0, 0 tokens; w1: 0, 0 tokens; true",
			"1184 spared"},
		"the chosen's end":  {[]Outcome{{Phase: Ended, Addr: "10.0.0.1:8000", Code: 200}}, "w0: 0, 0 tokens; w1: 0, 0 tokens; false", "0 spared"},
		"an end at nobody":  {[]Outcome{{Phase: Ended, Code: 503}}, "w0: 0, 0 tokens; w1: 0, 0 tokens; false", ""},
		"an end of unknown": {[]Outcome{{Phase: Ended, Addr: "10.9.9.9:1", Code: 200}}, "w0: 0, 0 tokens; w1: 0, 0 tokens; false", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newUnsteered(t, 2, 1)
			w.opt.Audit = audit.New(audit.Options{Index: w.index})
			w.stores(0, body)
			d := w.decide(body)
			if d.Arm != report.Unsteered || len(d.Targets) != 0 || d.UnsteeredChoice.Worker != "w0" || d.Reason != Exact ||
				d.CachedTokens == 0 || d.Refuse != nil {
				t.Fatalf(`%+v, want d.Arm == report.Unsteered, len(d.Targets) == 0, d.UnsteeredChoice.Worker == "w0", d.Reason `+
					`== Exact, d.CachedTokens != 0, d.Refuse == nil`, d)
			}
			if got := w.busy(); got != "w0: 0, 0 tokens; w1: 0, 0 tokens; false" {
				t.Errorf("at the decision: got %s, want %q", got, "w0: 0, 0 tokens; w1: 0, 0 tokens; false")
			}
			for _, o := range c.reports {
				o.ID, o.CachedTokens = d.ID, -1
				w.Observe(o)
			}
			if got := w.busy(); got != c.booked {
				t.Errorf("%s, want %s", got, c.booked)
			}
			if r := w.opt.Report.Report(); c.used != "" && fmt.Sprint(r.Would.Spared, " spared") != c.used {
				t.Errorf("%+v, want %s", r, c.used)
			}
			w.now = w.now.Add(time.Hour)
			w.opt.Ledger.Expire()
			if n := w.opt.Ledger.Open(); n != 0 {
				t.Errorf("%d open, want 0", n)
			}
		})
	}
}

// TestChoiceFollowsWhatHappens checks that the effects of such a request are known from where it went: its prompt is predicted
// there, and the choice follows.
func TestChoiceFollowsWhatHappens(t *testing.T) {
	w := newUnsteered(t, 3, 1)
	body := chatBody("m", testImage(3, 640, 480))
	first := w.decide(body)
	second := w.decide(body)
	if second.Reason != Load || second.CachedTokens != 0 {
		t.Errorf("a prompt counts as held where it never went: got %+v, want Reason %q, CachedTokens 0", second, Load)
	}
	used := (w.worker(first.UnsteeredChoice.Worker) + 1) % 3
	w.Observe(Outcome{ID: first.ID, Phase: Started, Addr: w.slots[used].Worker.Addr})
	third := w.decide(body)
	if third.Reason != Predicted || third.UnsteeredChoice.Addr != w.slots[used].Worker.Addr {
		t.Errorf("got %+v, want the choice to follow to %s", third, w.slots[used].Worker.Addr)
	}
	w.now = w.now.Add(time.Minute)
	if d := w.decide(body); d.Reason != Affinity || d.UnsteeredChoice.Addr != w.slots[used].Worker.Addr {
		t.Errorf("got %+v, want %s by affinity, which has seen the image", d, w.slots[used].Worker.Addr)
	}
}

func (w *world) worker(name string) (n int) {
	_, err := fmt.Sscanf(name, "w%d", &n)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// TestLeftIsNotShed checks that such requests are not refused for lack of room, but that bodies are still cleaned, and refused if
// they are not JSON.
func TestLeftIsNotShed(t *testing.T) {
	w := newUnsteered(t, 1, 1)
	w.limit(1)
	body := chatBody("m", `"Hello"`)
	for range 3 {
		d := w.decide(body)
		w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: "10.0.0.1:8000"})
		if d.Refuse != nil || d.Arm != report.Unsteered {
			t.Errorf("got %+v, want Refuse nil, Arm %q", d, report.Unsteered)
		}
	}
	if n := w.slots[0].Load(w.now).Inflight; n != 3 {
		t.Errorf("%d in flight, want 3", n)
	}
	if d := w.decide("{"); d.Refuse == nil || d.Arm != "" {
		t.Errorf("no JSON: got %+v, want Refuse one, Arm %q", d, "")
	}
	if d := w.decide(`{"model":"m","mm_hashes":["x"],"messages":[{"role":"user","content":[{"type":"text","text":"hi","uuid":"u"}]}]}`); len(d.Edits) == 0 || d.Arm != report.Unsteered {
		t.Errorf("not cleaned: %+v; got %d, want some, Arm %q", d, len(d.Edits), report.Unsteered)
	}
}

// TestLeftWhereEnvoyCannotPick checks that, if Envoy cannot pick by itself, such a request gets the worker that an unread request
// would get, and is booked there.
func TestLeftWhereEnvoyCannotPick(t *testing.T) {
	w := newUnsteered(t, 2, 1)
	body := chatBody("m", fmt.Sprintf("%q", text(300, 5)))
	w.stores(0, body)
	for range 3 {
		w.ids++
		d := w.Decide(t.Context(), &Request{ID: fmt.Sprint("d", w.ids), Path: "/v1/chat/completions", Body: [][]byte{[]byte(body)},
			MustPick: true})
		if d.Arm != report.Unsteered || d.UnsteeredChoice.Worker != "w0" || len(d.Targets) != 2 {
			t.Errorf("%+v: got %d, want Arm %q, UnsteeredChoice.Worker %q, 2", d, len(d.Targets), report.Unsteered, "w0")
		}
	}
	a, b := w.slots[0].Load(w.now).Inflight, w.slots[1].Load(w.now).Inflight
	if a+b != 3 || a == 0 || b == 0 {
		t.Errorf("%d and %d in flight: got %d, want 3, some, some", a, b, a+b)
	}
	w.ids++
	if d := w.Decide(t.Context(), &Request{ID: "no body", MustPick: true}); len(d.Targets) != 2 || d.Arm != report.Unsteered {
		t.Errorf("a body that is not read: %+v; got %d, want 2, Arm %q", d, len(d.Targets), report.Unsteered)
	}
}

// TestUsedWorkersStanding checks that ranks, and workers that could not be chosen, take part in the comparison, but not a worker
// that has joined since.
func TestUsedWorkersStanding(t *testing.T) {
	body := chatBody("m", fmt.Sprintf("%q", text(300, 5)))
	for name, c := range map[string]struct {
		change func(w *world)
		used   int
		want   string
	}{
		"full":    {func(w *world) { w.limit(1); w.fill(0) }, 0, "1 compared, 0 spared, 1184 cost"},
		"out":     {func(w *world) { w.fails(0) }, 0, "1 compared, 0 spared, 1184 cost"},
		"new":     {func(*world) {}, 9, "0 compared, 0 spared, 0 cost"},
		"well":    {func(*world) {}, 1, "1 compared, 1184 spared, 0 cost"},
		"as said": {func(*world) {}, 0, "1 compared, 0 spared, 0 cost"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newUnsteered(t, 2, 1)
			w.stores(0, body)
			c.change(w)
			d := w.decide(body)
			if c.used == 9 {
				w.opt.Fleet.Set(append(w.opt.Fleet.Workers(), fleet.NewWorker("w9", netip.MustParseAddrPort("10.0.0.10:8000"), "m",
					0, func(int) indexer.SlotID { return w.index.Join(indexer.SlotOptions{}) })))
			}
			w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: fmt.Sprintf("10.0.0.%d:8000", c.used+1), Code: 200, CachedTokens: -1})
			x := w.opt.Report.Report().Would
			if got := fmt.Sprintf("%d compared, %d spared, %d cost", x.Requests, x.Spared, x.Cost); got != c.want {
				t.Errorf("%s, want %s; chosen %+v", got, c.want, d.UnsteeredChoice)
			}
		})
	}
}

// fill gives a worker a request of another sender.
func (w *world) fill(i int) {
	w.opt.Ledger.Book("full", ledger.Booking{Slot: w.slots[i], Note: &bookingRecord{cachedTokens: -1}})
}

// fails makes a worker fail until it is out.
func (w *world) fails(i int) {
	for range 3 {
		w.slots[i].Worker.RecordFailure("connect", w.now)
	}
}

// TestSplit checks that a conversation stays on its side, by its session or its beginning, in another replica and with a larger
// share too, and that the share is met.
func TestSplit(t *testing.T) {
	const conversations = 10000
	turn := func(i, turn int, session bool) *Request {
		r := &Request{ID: fmt.Sprint(i, " ", turn)}
		asks := fmt.Sprintf("Question %d?", i)
		if session {
			r.Session, asks = fmt.Sprint("session ", i), "Hello"
		}
		more := ""
		for k := range turn {
			more += fmt.Sprintf(`,{"role":"assistant","content":"So %d"},{"role":"user","content":"and %d?"}`, k, k)
		}
		r.Body = [][]byte{fmt.Appendf(nil,
			`{"model":"unknown","max_tokens":%d,"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":%q}%s]}`,
			turn, asks, more)}
		return r
	}
	small, large, other := newUnsteered(t, 1, 0.9), newUnsteered(t, 1, 0.5), newUnsteered(t, 2, 0.9)
	for _, session := range []bool{true, false} {
		steered := 0
		for i := range conversations {
			arm := small.Decide(t.Context(), turn(i, 0, session)).Arm
			if arm == report.Steered {
				steered++
				if large.Decide(t.Context(), turn(i, 0, session)).Arm != arm {
					t.Fatalf("got conversation %d steered at 10 %% and not at 50 %%, want it at both", i)
				}
			}
			if i < 300 && (small.Decide(t.Context(), turn(i, 1+i%3, session)).Arm != arm ||
				other.Decide(t.Context(), turn(i, 2, session)).Arm != arm) {
				t.Fatalf("got conversation %d on another side, want it to stay", i)
			}
		}
		if off := float64(steered)/conversations - 0.1; math.Abs(off) > 0.012 { // four standard deviations
			t.Errorf("session %t: %d of %d are steered; got %v, want at most 0.012", session, steered, conversations, math.Abs(off))
		}
	}
}

// TestStoredAnswersAreOfNoArm checks that a request for a stored answer, which only one worker can serve, is in neither arm,
// unless nothing is steered.
func TestStoredAnswersAreOfNoArm(t *testing.T) {
	for share, want := range map[float64]report.Arm{0.99: "", 1: report.Unsteered} {
		w := newUnsteered(t, 2, share)
		w.answers.Add("resp_1", "10.0.0.2:8000")
		d := w.Decide(t.Context(), &Request{ID: "a", Stored: "resp_1", Pool: "m"})
		if d.Arm != want || want == "" && (len(d.Targets) == 0 || d.Targets[0].Worker != "w1") || want != "" && len(d.Targets) != 0 {
			t.Errorf("%v: got %+v, want arm %q, and w1 as the target if it is none", share, d, want)
		}
	}
}

// TestLeftReportsSideBySide checks that concurrent reports of one request place it once.
func TestLeftReportsSideBySide(t *testing.T) {
	w := newUnsteered(t, 3, 1)
	w.opt.Audit = audit.New(audit.Options{Index: w.index})
	body := chatBody("m", testImage(1, 640, 480))
	for range 50 {
		d := w.decide(body)
		var all sync.WaitGroup
		for _, o := range []Outcome{{Phase: Started, Addr: "10.0.0.2:8000"}, {Phase: Started, Addr: "10.0.0.3:8000"},
			{Phase: Ended, Addr: "10.0.0.3:8000", Code: 200},
			{Phase: Failed, Addr: "10.0.0.2:8000", Fault: "reset"}} {
			o.ID, o.CachedTokens = d.ID, -1
			all.Go(func() { w.Observe(o) })
		}
		all.Wait()
	}
	for i, s := range w.slots {
		if n := s.Load(w.now).Inflight; n != 0 || w.opt.Ledger.Open() != 0 {
			t.Errorf("%d in flight on w%d, %d open, want 0, 0", n, i, w.opt.Ledger.Open())
		}
	}
	if n := w.opt.Report.Report().Unsteered.Requests; n != 50 {
		t.Errorf("%d requests in the report, want 50", n)
	}
}

// TestReportWithoutFiles: requests that no rule reads are in the report of both arms: with the tokens that their engines counted, and
// with what the choice would have found.
func TestReportWithoutFiles(t *testing.T) {
	w := newWorld(t, 2)
	w.withoutFiles(nil)
	const blocks = 20
	body := chatBody("m", fmt.Sprintf("%q", text(100, 1)))
	served := func(d Decision, worker, cached int) {
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: w.slots[worker].Worker.Addr, Code: 200, CachedTokens: cached, PromptTokens: blocks*16 + 3,
			OutputTokens: 1})
		w.now = w.now.Add(time.Minute)
		w.Learner().Settle(w.now)
	}
	first := w.decide(body)
	home := slices.IndexFunc(w.slots, func(s *fleet.Slot) bool { return s.Worker.Addr == first.Targets[0].Addr })
	locals := make([]uint64, blocks)
	for i := range locals {
		locals[i] = uint64(i + 1)
	}
	hashes := block.Fixed().Chain(nil, locals)
	w.Learner().Stored(w.slots[home].ID, &kvevent.Event{Kind: kvevent.Stored, Tier: kvevent.GPU, BlockSize: 16, Locals: locals,
		EngineHashes: hashes})
	if err := w.index.Store(w.slots[home].ID, kvevent.GPU, 0, false, hashes, locals); err != nil {
		t.Fatal(err)
	}
	served(first, home, 0)
	w.SetUnsteered(1)
	served(w.decide(body), 1-home, 0)
	served(w.decide(body), home, blocks*16)
	r := w.opt.Report.Report()
	const prompt = blocks*16 + 3
	if s, l := r.Steered, r.Unsteered; s.Known != 1 || s.Prompt != prompt || l.Known != 2 || l.Prompt != 2*prompt || l.Cached != blocks*16 {
		t.Errorf("got the arms' tokens %+v and %+v, want one request of %d, and two of as many with %d cached in all", s, l, prompt, blocks*16)
	}
	if r.Would.Requests != 2 || r.Would.Better != 1 || r.Would.Spared != blocks*16 {
		t.Errorf("what the choice would have found: got %+v, want Requests 2, Better 1, Spared %d", r.Would, blocks*16)
	}
}
