package findings

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/media/fetch"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/report"
	"github.com/sightline-router/sightline/workers/fleet"
	"github.com/sightline-router/sightline/workers/probe"
)

// TestWhoShowsWhat: of workers that show different things under one code, the sentence says which shows which.
func TestWhoShowsWhat(t *testing.T) {
	off := func(name, why string) Worker {
		return Worker{Name: name, Model: "m", Events: "waiting", EventsError: Failure{Text: why}}
	}
	for _, c := range []struct {
		workers []Worker
		want    string
	}{
		{[]Worker{off("a", "refused"), off("b", "refused")}, "a, b: no connection to the KV events: refused"},
		{[]Worker{off("a", "refused"), off("b", "timeout"), off("c", "refused")},
			"a, b, c: no connection to the KV events: refused (a, c); timeout (b)"},
		{[]Worker{off("a", "refused"), off("b", "")}, "a, b: no connection to the KV events: refused (a)"},
	} {
		if got := (&Facts{Mode: "100%", Workers: c.workers}).All()[0].What; got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// TestFindings: each fact is a problem under its code, worst first; those of many workers are one; without facts there is none.
func TestFindings(t *testing.T) {
	now := time.Now()
	well := Worker{Name: "gpu-1", Model: "m", Events: "live"}
	if list := (&Facts{Now: now, Mode: "100%", Workers: []Worker{well}}).All(); len(list) != 0 {
		t.Errorf("of a fleet that is well: %+v, want len(list) == 0", list)
	}
	var many []Worker
	for _, name := range strings.Fields("a b c d e") {
		many = append(many, Worker{Name: name, Model: "m",
			Health: &fleet.Out{Why: "3 failures in a row, the last: refused", Trial: "next trial request in 7s"}})
	}
	var findings []audit.Finding
	for range 60 {
		findings = append(findings, audit.Finding{At: now.Add(-time.Minute), Worker: "gpu-1", Verdict: audit.Nothing, Says: "no block"})
	}
	worker := func(change func(w *Worker)) Facts {
		w := well
		change(&w)
		return Facts{Workers: []Worker{w, {Name: "gpu-2", Model: "m", Events: "live"}}}
	}
	for _, c := range []struct {
		facts                Facts
		code, severity, what string
	}{
		{Facts{Now: now, Began: now.Add(-time.Minute), NotReady: "no workers yet"}, "SL0505", "error",
			"Sightline is not ready: no workers yet"},
		{Facts{Now: now, Began: now.Add(-20 * time.Second), NotReady: "catching up"}, "SL0505", "note",
			"Sightline is not ready: catching up"},
		{Facts{Configuration: "the configuration is invalid: models: none"}, "SL0501", "error", "models: none"},
		{Facts{Restart: []string{"listen"}}, "SL0501", "warning", "needs a restart: listen"},
		{Facts{Silent: "no ends", SilentSince: now.Add(-time.Hour)}, "SL0409", "error", "no ends"},
		{Facts{Unserved: []string{"gpt-5"}}, "SL0103", "warning", `["gpt-5"]`},
		{Facts{Mode: "0%"}, "SL0408", "note", "enforce is 0%"},
		{Facts{Faults: errors.New("models[0].dir: no such directory")}, "SL0501", "error", "requests are learned: models[0].dir"},
		{Facts{LostReplicas: []string{"10.0.0.9:9002: refused"}}, "SL0504", "warning", "hears nothing of this one: 10.0.0.9:9002: refused"},
		{Facts{Recent: []router.Recent{{At: now, Code: 429}, {At: now, Code: 429, Used: "10.0.0.5:8000"}}}, "SL0110", "warning",
			"1 of the last requests got 429"},
		{Facts{Workers: []Worker{{Name: "gpu-1", Addr: "10.0.0.5:8000", Model: "m", Events: "live"}}, Recent: []router.Recent{
			{At: now, Used: "10.0.0.5:8000"}, {At: now, Used: "10.0.0.5:8000", Lasted: 3 * time.Second},
			{At: now, Used: "10.0.0.5:8000", Lasted: 4 * time.Second}, {At: now, Used: "10.0.0.5:8000", Lasted: 2 * time.Second},
			{At: now, Used: "10.0.0.5:8000", Code: 200}, {At: now, Used: "10.0.0.5:8000", Lasted: 9 * time.Second}}}, "SL0110", "warning",
			"gpu-1: clients get no answer: the last 3 left, after up to 4s"},
		{Facts{Workers: []Worker{{Name: "gpu-1", Addr: "a", Model: "m", Events: "live"}, {Name: "gpu-2", Addr: "b", Model: "m", Events: "live"}},
			Recent: slices.Repeat([]router.Recent{{At: now, Model: "m", Used: "a", Code: 200, FirstByte: 2 * time.Second, PromptTokens: 400},
				{At: now, Model: "m", Used: "b", Code: 200, FirstByte: 800 * time.Millisecond, PromptTokens: 2048}}, 8)}, "SL0110", "warning",
			"gpu-1: answers begin late there: 10 times later than elsewhere, after 2s"},
		{worker(func(w *Worker) { w.Events, w.EventsError = "catching up", Failure{Text: "replay: refused"} }), "SL0304",
			"error", "replay: refused"},
		{Facts{Probes: []probe.Result{{Worker: "gpu-1", Findings: []probe.Finding{{What: probe.PrefixCaching,
			Verdict: probe.Configuration, Detail: "off"}}}}}, "SL0102", "error", "gpu-1: not as configured (prefix caching): off"},
		{Facts{Last: slices.Repeat([]router.Recent{{Used: "b", Addr: "a", Worker: "gpu-1", Lasted: 1}}, 4)}, "SL0408", "error",
			"4 of the last 4 requests went elsewhere than chosen, such as b instead of a"},
		{Facts{Lost: 7}, "SL0503", "warning", "7 blocks had no room in the index"},
		{Facts{NATSRefused: 7}, "SL0601", "warning", "denied Sightline or an agent access 7 times"},
		{Facts{TooLate: 4}, "SL0003", "error", "4 requests went on undecided"},
		{Facts{TakesOne: true}, "SL0408", "warning", "took no list of workers"},
		{Facts{Hosts: []fetch.HostState{{Host: "a.example", InARow: 9, Last: "timeout", At: now.Add(-time.Hour)},
			{Host: "b.example", InARow: 2, Last: "timeout", At: now}, {Host: "c.example", InARow: 3, Last: "status 503", At: now}}},
			"SL0509", "note", `by their URLs alone: "c.example": status 503, 3 times in a row`},
		{Facts{Certificates: []secure.Expiry{{Text: "tls.cert: x ended", Ended: true}}}, "SL0501", "error", "tls.cert: x ended"},
		{Facts{Certificates: []secure.Expiry{{Text: "tls.cert: x ends"}}}, "SL0501", "warning", "tls.cert: x ends"},
		{Facts{DecisionLog: "no space left on device"}, "SL0501", "error", "no space left"},
		{Facts{Workers: append(many, well)}, "SL0109", "warning",
			"5 of 6 workers (a, b, c and 2 more): no requests are sent there: 3 failures in a row, the last: refused"},
		{Facts{Workers: many}, "SL0109", "error", "m: no worker gets requests, of 5"},
		{worker(func(w *Worker) {
			w.RulesAside = []audit.Aside{{Model: "m", Rule: "images", First: audit.Finding{Worker: "gpu-3", Says: "the medium at token 5"}}}
		}), "SL0206", "warning",
			"gpu-1: the rule for images has stepped aside, and such prompts are learned: gpu-3 contradicts it: the medium at token 5"},
		{worker(func(w *Worker) { w.Events, w.EventsError = "waiting", Failure{Text: "refused"} }), "SL0303", "error",
			"gpu-1: no connection to the KV events: refused"},
		{worker(func(w *Worker) {
			w.Events, w.EventsError = "waiting", Failure{Cause: fmt.Errorf("asked: %w", rules.ErrNoEvents)}
		}), "SL0301", "error",
			"gpu-1: the worker publishes no KV events"},
		{worker(func(w *Worker) { w.Health = &fleet.Out{Fault: rules.HTTP2, Why: "health check: speaks HTTP/2 alone"} }), "SL0109", "warning",
			"speaks HTTP/2 alone"},
		{Facts{Workers: []Worker{{Name: "gpu-1", Model: "m", Events: "waiting",
			EventsError: Failure{Cause: fmt.Errorf("%w: status 401", rules.ErrNotAsked)}}},
			Probes: []probe.Result{{Worker: "gpu-1", Findings: []probe.Finding{{What: probe.Asked, Verdict: probe.Absent,
				Fault: rules.Key, Detail: "status 401"}}}}}, "SL0109", "warning", "gpu-1: it cannot be asked what it serves: status 401"},
		{worker(func(w *Worker) { w.Unordered = true }), "SL0110", "note", "gpu-1: short requests wait for long ones that came before them"},
		{worker(func(w *Worker) { w.Events = "unreadable" }), "SL0309", "error", "cannot be read"},
		{worker(func(w *Worker) { w.Events = "none" }), "SL0301", "warning", "guessed"},
		{worker(func(w *Worker) { w.Events = "catching up" }), "SL0303", "warning", "not all"},
		{worker(func(w *Worker) { w.Events = "not ready" }), "SL0109", "warning", "not ready"},
		{worker(func(w *Worker) { w.EventAge = 11 }), "SL0303", "warning", "no events for long"},
		{worker(func(w *Worker) { w.UnknownKey = `"medium HYPERRAM"` }), "SL0309", "warning", ": HYPERRAM"},
		{worker(func(w *Worker) { w.UnknownKey = `"x"` }), "SL0309", "warning", `: "x"`},
		{worker(func(w *Worker) { w.Unfilled = 2 }), "SL0309", "warning", "2 times"},
		{worker(func(w *Worker) { w.SameEvents = "gpu-2" }), "SL0308", "error",
			"gpu-1: the same events as another worker: gpu-2"},
		{worker(func(w *Worker) { w.OtherSize = 32 }), "SL0107", "warning", "32 tokens"},
		{Facts{Audited: findings}, "SL0301", "warning",
			"gpu-1: requests are stored otherwise than predicted (nothing): no block (60 requests)"},
		{Facts{Probes: []probe.Result{{Worker: "gpu-1", Findings: []probe.Finding{{What: "text", Verdict: probe.Differs,
			Difference: &probe.Difference{Position: 7}}}}}}, "SL0201", "error",
			"first difference at token 7"},
		{Facts{Probes: []probe.Result{{Worker: "gpu-1", Findings: []probe.Finding{{What: "engine_version", Verdict: probe.Configuration,
			Detail: "configured 0.32.0"}}}}}, "SL0107", "warning", "gpu-1: not as configured (engine_version): configured 0.32.0"},
	} {
		c.facts.Now = now
		list := c.facts.All()
		at := slices.IndexFunc(list, func(p Finding) bool { return p.Code == c.code })
		if at < 0 {
			t.Errorf("%s is missing: %+v, want at >= 0", c.code, list)
			continue
		}
		p := list[at]
		if p.Severity != c.severity || !strings.Contains(p.What, c.what) || p.Fix == "" || p.Since.IsZero() ||
			!strings.HasSuffix(p.Link, "/docs/doctor.md#"+strings.ToLower(p.Code)) {
			t.Errorf("%+v\nwant %s, %q", p, c.severity, c.what)
		}
	}
}

// TestOneReason: an image that differs since the whole template differs is not a problem of images, and a block that has tokens of an
// image is one.
func TestOneReason(t *testing.T) {
	differs := func(what string) probe.Finding { return probe.Finding{What: what, Verdict: probe.Differs} }
	probed := func(list ...probe.Finding) Facts { return Facts{Probes: []probe.Result{{Worker: "a", Findings: list}}} }
	block := []audit.Finding{{Worker: "a", Verdict: audit.Block, InMedium: true}}
	for _, c := range []struct {
		facts Facts
		want  string
	}{
		{probed(differs("one turn"), differs(probe.Image), differs(probe.LargeImage)), "SL0201"},
		{probed(probe.Finding{What: probe.Image}, differs(probe.LargeImage)), "SL0204"},
		{Facts{Audited: block}, "SL0204"},
	} {
		codes := ""
		for _, p := range c.facts.All() {
			codes += p.Code
		}
		if codes != c.want {
			t.Errorf("%+v: %s, want %s", c.facts, codes, c.want)
		}
	}
}

// TestNoEventsOnce: a worker without events is one problem, whoever has asked it.
func TestNoEventsOnce(t *testing.T) {
	mute := Worker{Name: "gpu-1", Model: "m", Events: "waiting", EventsError: Failure{Cause: rules.ErrNoEvents}}
	f := Facts{Now: time.Now(), Workers: []Worker{mute},
		Probes: []probe.Result{{Worker: "gpu-1", Findings: []probe.Finding{{What: probe.Events, Verdict: probe.Configuration}}}}}
	if list := f.All(); len(list) != 1 || list[0].Code != "SL0301" {
		t.Errorf(`%+v, want len(list) == 1, list[0].Code == "SL0301"`, list)
	}
}

// TestFindingsOrder: problems that are equally bad keep their order from one look to the next.
func TestFindingsOrder(t *testing.T) {
	f := Facts{Now: time.Now()}
	for _, model := range strings.Fields("a b c d e f g h") {
		f.Workers = append(f.Workers, Worker{Name: "gpu-" + model, Model: model, Health: new(fleet.Out)})
	}
	says := func() (list []string) {
		for _, p := range f.All() {
			list = append(list, p.What)
		}
		return list
	}
	first := says()
	for range 10 {
		if again := says(); !slices.Equal(again, first) {
			t.Fatalf("%q, before %q, want slices.Equal(again, first)", again, first)
		}
	}
}

// TestSince: a finding keeps its time while it is there, whatever else changes about it; what is usual for a moment counts only after a
// while; what has ended begins anew. Beginning and end are logged once, and counted.
func TestSince(t *testing.T) {
	workers := []Worker{{Name: "gpu-a", Model: "m", Rank: -1, Events: "live"}, {Name: "gpu-b", Model: "m", Rank: -1, Events: "catching up"}}
	core, log := observer.New(zap.InfoLevel)
	reg := prometheus.NewRegistry()
	w := NewWatch(func(now time.Time) Facts { return Facts{Now: now, Workers: workers} }, zap.New(core), meter.At(reg))
	began := time.Now().Add(-10 * time.Minute)
	if list := w.List(began); len(list) != 0 {
		t.Errorf("a worker that has just come: got %+v, want nothing", list)
	}
	workers[0].Health = &fleet.Out{Fault: rules.Refused}
	w.List(began.Add(time.Second))
	workers[0].Health = &fleet.Out{Fault: rules.Timeout}
	list := w.List(began.Add(2 * time.Minute))
	if len(list) != 2 || !list[0].Since.Equal(began.Add(time.Second)) || list[1].Code != "SL0303" || !list[1].Since.Equal(began) {
		t.Errorf("after two minutes: got %+v, want SL0109 since a second later and SL0303", list)
	}
	workers[0].Health, workers[1].Events = nil, "live"
	if list := w.List(began.Add(3 * time.Minute)); len(list) != 0 || len(w.since) != 0 {
		t.Errorf("all is well again: got %+v, %v kept, want nothing", list, w.since)
	}
	lines := 0
	for _, line := range log.All() {
		if strings.HasPrefix(line.Message, "SL0303: gpu-b: not all") && line.Level == zap.WarnLevel || line.Message == "SL0303: no more" {
			lines++
		}
	}
	if lines != 2 {
		t.Errorf("got %d lines of SL0303 in the log, want 2: %v", lines, log.All())
	}
	workers[0].Health = &fleet.Out{Fault: rules.Refused}
	if list := w.List(began.Add(4 * time.Minute)); len(list) != 1 || !list[0].Since.Equal(began.Add(4*time.Minute)) {
		t.Errorf("it is out again: got %+v, want SL0109 since now", list)
	}
	workers[1].Health = &fleet.Out{Fault: rules.Refused}
	for _, after := range []time.Duration{0, logAgain, 2 * logAgain} {
		w.List(began.Add(4*time.Minute + time.Second + after))
	}
	lines = log.Filter(func(line observer.LoggedEntry) bool {
		return strings.HasPrefix(line.Message, "SL0109: gpu-a, gpu-b: no")
	}).Len()
	if lines != 1 {
		t.Errorf("it has spread: got %d lines of both, want 1: %v", lines, log.All())
	}
	families, err := reg.Gather()
	if err != nil || len(families) != 1 || families[0].Metric[0].Label[0].GetValue() != "SL0109" {
		t.Errorf("got %v, %v, want one sightline_findings of SL0109", families, err)
	}
}

// TestLogged: a line in the log names the workers that a finding is about, if it is about any.
func TestLogged(t *testing.T) {
	core, log := observer.New(zap.InfoLevel)
	facts := Facts{Lost: 7, Workers: []Worker{{Name: "gpu-a", Model: "m", Rank: -1, Events: "unreadable"}}}
	NewWatch(func(now time.Time) Facts { facts.Now = now; return facts }, zap.New(core), meter.At(prometheus.NewRegistry())).List(time.Now())
	for _, line := range log.All() {
		_, has := line.ContextMap()["workers"]
		if want := strings.Contains(line.Message, "gpu-a"); has != want {
			t.Errorf("%s: got workers: %v, want %v", line.Message, has, want)
		}
	}
	if log.Len() != 2 {
		t.Errorf("got %d lines, want 2: %v", log.Len(), log.All())
	}
}

// TestComesAndGoes: while a finding comes and goes, the log says once in a minute that it is there, and never that it is over.
func TestComesAndGoes(t *testing.T) {
	core, log := observer.New(zap.InfoLevel)
	lost := 7
	w := NewWatch(func(now time.Time) Facts { return Facts{Now: now, Lost: uint64(lost)} }, zap.New(core), meter.At(prometheus.NewRegistry()))
	began := time.Now()
	for _, step := range []struct {
		after time.Duration
		lost  int
		says  string // "": no line is written
	}{
		{after: 0, lost: 7, says: "SL0503: 7 blocks had no room in the index"},
		{after: 10 * time.Second},
		{after: 20 * time.Second, lost: 8},
		{after: 50 * time.Second},
		{after: 61 * time.Second, says: "SL0503: no more"},
		{after: 63 * time.Second, lost: 9, says: "SL0503: 9 blocks had no room in the index"},
		{after: 130 * time.Second, lost: 9},
		{after: 132 * time.Second, says: "SL0503: no more"},
	} {
		lost = step.lost
		w.logs(t, log, began, step.after, step.says)
	}
}

// logs looks at the facts some time after a beginning, and wants one line in the log; "": none.
func (w *Watch) logs(t *testing.T, log *observer.ObservedLogs, began time.Time, after time.Duration, want string) {
	t.Helper()
	w.List(began.Add(after))
	got := ""
	for _, line := range log.TakeAll() {
		got += line.Message
	}
	if got != want {
		t.Errorf("after %v: got the line %q, want %q", after, got, want)
	}
}

// TestCauseIsLogged: a line is written again, once, when the cause of what it says becomes known: at once if those of all its workers are,
// else a minute after the last line.
func TestCauseIsLogged(t *testing.T) {
	core, log := observer.New(zap.InfoLevel)
	workers := []Worker{{Name: "gpu-a", Model: "m", Rank: -1, Events: "waiting"}, {Name: "gpu-b", Model: "m", Rank: -1, Events: "waiting"}}
	w := NewWatch(func(now time.Time) Facts { return Facts{Now: now, Workers: workers} }, zap.New(core), meter.At(prometheus.NewRegistry()))
	began := time.Now()
	for _, step := range []struct {
		after time.Duration
		a, b  string // why
		says  string // "": no line is written
	}{
		{after: 0},
		{after: 6 * time.Second, says: "SL0303: gpu-a, gpu-b: no connection to the KV events"},
		{after: 8 * time.Second, a: "refused"},
		{after: 10 * time.Second, a: "refused", b: "refused", says: "SL0303: gpu-a, gpu-b: no connection to the KV events: refused"},
		{after: 12 * time.Second, a: "timeout", b: "refused"},
		{after: 14 * time.Second},
		{after: 3 * time.Minute, a: "refused", b: "refused"},
	} {
		workers[0].EventsError, workers[1].EventsError = Failure{Text: step.a}, Failure{Text: step.b}
		w.logs(t, log, began, step.after, step.says)
	}

	w.there, w.said = map[string]causes{}, map[string]time.Time{}
	workers[0].EventsError, workers[1].EventsError = Failure{}, Failure{}
	w.List(began.Add(4 * time.Minute))
	workers[0].EventsError.Text = "refused"
	for _, after := range []time.Duration{2 * time.Second, logAgain, 2 * logAgain} {
		w.List(began.Add(4*time.Minute + after))
	}
	if log.Len() != 2 || !strings.Contains(log.All()[1].Message, "refused (gpu-a)") {
		t.Errorf("one cause of two: got %v, want a second line with it after a minute", log.All())
	}
}

// TestSymptoms: failed, slow, undecided and refused requests are findings whatever the cause, and before any cause.
func TestSymptoms(t *testing.T) {
	now := time.Now()
	gpu := []Worker{{Name: "gpu-1", Addr: "a", Model: "m", Events: "live"}}
	many := func(n int, r router.Recent) []router.Recent {
		r.At, r.Used, r.Lasted = now.Add(-time.Second), "a", max(r.Lasted, 1)
		return slices.Repeat([]router.Recent{r}, n)
	}
	good := many(20, router.Recent{Code: 200})
	strays := func(n int, s extproc.Stray) []extproc.Stray {
		s.At = now
		return slices.Repeat([]extproc.Stray{s}, n)
	}
	refused := func(what string) []extproc.RefusedCall {
		return []extproc.RefusedCall{{At: now, From: "10.0.0.3", What: what, Why: "no token"}}
	}
	for name, c := range map[string]struct {
		facts      Facts
		want, says string // code and severity of the first; "": there is none
	}{
		"all well": {Facts{Recent: good}, "", ""},
		"Envoy's timeout": {Facts{Recent: many(9, router.Recent{Code: 504, Flags: "UT"})},
			"SL0001 error", "9 of the last 9 requests failed: 9 with 504, Envoy's timeout ended before the answer (UT) at gpu-1"},
		"answers broken off": {Facts{Recent: append(many(4, router.Recent{Code: 200, Flags: "UC"}), good...)},
			"SL0001 warning", "4 of the last 24 requests failed: 4 with 200, the connection broke (UC)"},
		"the worker's 500": {Facts{Recent: append(many(4, router.Recent{Code: 500}), good...)},
			"SL0001 warning", "4 with 500, by the worker at gpu-1"},
		"few":               {Facts{Recent: append(many(2, router.Recent{Code: 500}), good...)}, "", ""},
		"one client's 400":  {Facts{Recent: append(many(9, router.Recent{Code: 400}), good...)}, "", ""},
		"everybody's 401":   {Facts{Recent: many(20, router.Recent{Code: 401})}, "SL0001 error", "20 with 401"},
		"clients that left": {Facts{Recent: many(9, router.Recent{Code: 200, Flags: "DC"})}, "", ""},
		"Envoy has no route": {Facts{Strays: strays(9, extproc.Stray{Code: 404, Flags: "NR", Why: "route_not_found"})},
			"SL0001 error", "Envoy has no route (NR)"},
		"refused by a filter": {Facts{Strays: strays(9, extproc.Stray{Code: 403, Why: "rbac_access_denied_matched_policy[none]"})},
			"SL0001 error", "by Envoy: rbac"},
		"late streams": {Facts{Recent: many(5, router.Recent{Code: 200, Streams: true, FirstByte: 12 * time.Second})},
			"SL0002 warning", "5 of the last 5 answers"},
		"slow answers": {Facts{Recent: many(5, router.Recent{Code: 200, Lasted: 80 * time.Second, OutputTokens: 100})},
			"SL0002 warning", "5 of the last 5"},
		"long answers": {Facts{Recent: many(5, router.Recent{Code: 200, Lasted: 80 * time.Second, OutputTokens: 1000})}, "", ""},
		"undecided": {Facts{Strays: strays(5, extproc.Stray{Addr: "a", Code: 200})},
			"SL0003 error", "5 of the last 5 requests reached workers undecided"},
		"of another service": {Facts{Strays: strays(5, extproc.Stray{Addr: "b", Code: 500})}, "", ""},
		"at the start":       {Facts{Began: now.Add(-time.Second), Strays: strays(5, extproc.Stray{Addr: "a", Code: 200})}, "", ""},
		"no token":           {Facts{Refused: refused("decisions")}, "SL0004 error", "decisions from 10.0.0.3: no token (1 times)"},
		"a stranger's TLS":   {Facts{Refused: refused("connections"), Recent: good}, "SL0004 warning", "connections from 10.0.0.3"},
		"Envoy's TLS":        {Facts{Refused: refused("connections")}, "SL0004 error", "connections from 10.0.0.3"},
	} {
		c.facts.Now, c.facts.Workers = now, gpu
		list := c.facts.All()
		got, says := "", ""
		if len(list) > 0 {
			got, says = list[0].Code+" "+list[0].Severity, list[0].What
		}
		if got != c.want || !strings.Contains(says, c.says) {
			t.Errorf("%s: got %q, %q, want %q, %q", name, got, says, c.want, c.says)
		}
	}
}

// TestImageHosts: who waits for an image host does not wait for the worker.
func TestImageHosts(t *testing.T) {
	now := time.Now()
	f := Facts{Now: now,
		Workers: []Worker{{Name: "gpu-1", Addr: "a", Model: "m", Events: "live"}, {Name: "gpu-2", Addr: "b", Model: "m", Events: "live"}},
		Recent: slices.Repeat([]router.Recent{{At: now, Model: "m", Used: "a", Code: 200, FirstByte: 4 * time.Second, Fetches: true},
			{At: now, Model: "m", Used: "a", Code: 200, FirstByte: 4 * time.Second, Took: 4*time.Second - 40*time.Millisecond},
			{At: now, Model: "m", Used: "b", Code: 200, FirstByte: 40 * time.Millisecond}}, 9),
		Hosts: []fetch.HostState{{Host: "img.example", Took: 4 * time.Second, TookAt: now}}}
	list := f.All()
	if len(list) != 1 || list[0].Code != "SL0509" || list[0].Severity != "warning" || !strings.Contains(list[0].What, `"img.example": after 4s`) {
		t.Errorf("got %+v, want SL0509 alone", list)
	}
}

// TestOutAndUnreadable: a worker that is out shows no events for that reason; that those which came cannot be read is another.
func TestOutAndUnreadable(t *testing.T) {
	for state, want := range map[string]string{"waiting": "SL0109 ", "catching up": "SL0109 ", "unreadable": "SL0309 SL0109 "} {
		f := Facts{Now: time.Now(), Workers: []Worker{{Name: "gpu-1", Model: "m", Events: state, Health: &fleet.Out{Why: "refused"}},
			{Name: "gpu-2", Model: "m", Events: "live"}}}
		got := ""
		for _, p := range f.All() {
			got += p.Code + " "
		}
		if got != want {
			t.Errorf("events %s: got %q, want %q", state, got, want)
		}
	}
}

// TestHangingWorker: requests wait at a worker, none ends and it stores nothing. One that computes long answers is not meant.
func TestHangingWorker(t *testing.T) {
	now := time.Now()
	for stored, want := range map[time.Duration]int{time.Second: 0, 30 * time.Second: 1} {
		f := Facts{Now: now, Workers: []Worker{{Name: "gpu-1", Addr: "a", Model: "m", Events: "live", EventAt: now.Add(-stored)}},
			Recent: slices.Repeat([]router.Recent{{At: now.Add(-25 * time.Second), Model: "m", Used: "a"}}, 3)}
		if list := f.All(); len(list) != want {
			t.Errorf("it stored something %v ago: got %+v, want %d findings", stored, list, want)
		}
	}
}

// TestKnownCause: what is known to have another cause is not blamed on a worker: that nothing was stored while its stream or NATS is away,
// or was, or while its events come late. Else it is, for a minute.
func TestKnownCause(t *testing.T) {
	now := time.Now()
	silent := Worker{Name: "gpu-1", Model: "m", Events: "waiting", EventsError: Failure{Text: "silent", Cause: bus.ErrSilent}}
	live := Worker{Name: "gpu-1", Model: "m", Events: "live"}
	was := live
	was.BehindAt = now.Add(-30 * time.Second)
	for name, c := range map[string]struct {
		change func(f *Facts)
		ago    time.Duration
		want   string // codes
	}{
		"nothing else is known":  {func(*Facts) {}, 20 * time.Second, "SL0301"},
		"no longer":              {func(*Facts) {}, 2 * time.Minute, ""},
		"NATS is away":           {func(f *Facts) { f.NATS = "refused" }, 20 * time.Second, "SL0601"},
		"and its agent silent":   {func(f *Facts) { f.NATS, f.Workers[0] = "refused", silent }, 20 * time.Second, "SL0601"},
		"its agent is silent":    {func(f *Facts) { f.Workers[0] = silent }, 20 * time.Second, "SL0303"},
		"its stream was away":    {func(f *Facts) { f.Workers[0] = was }, 25 * time.Second, ""},
		"and has been back long": {func(f *Facts) { f.Workers[0] = was }, 15 * time.Second, "SL0301"},
		"its events come late":   {func(f *Facts) { f.SomeLate = []string{"gpu-1"} }, 20 * time.Second, ""},
	} {
		f := Facts{Now: now, Workers: []Worker{live}, Audited: []audit.Finding{{At: now.Add(-c.ago), Worker: "gpu-1", Verdict: audit.Nothing}}}
		c.change(&f)
		got := ""
		for _, p := range f.All() {
			got += p.Code
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// TestElsewhere: a request that another worker got since the chosen one failed did not go elsewhere than chosen.
func TestElsewhere(t *testing.T) {
	for name, c := range map[string]struct {
		change func(d *router.Recent)
		last   int // further requests, which went to b and are under way
		want   string
	}{
		"chosen a, went to b":            {func(*router.Recent) {}, 0, "SL0408"},
		"a failed":                       {func(d *router.Recent) { d.Retried = true }, 0, ""},
		"it lasts: a may have failed":    {func(d *router.Recent) { d.Lasted = 0 }, 0, ""},
		"not steered":                    {func(d *router.Recent) { d.Arm = report.Unsteered }, 0, ""},
		"went to a":                      {func(d *router.Recent) { d.Used = d.Addr }, 0, ""},
		"went to b, and most still last": {func(*router.Recent) {}, 1004, "SL0408"},
	} {
		d := router.Recent{Used: "b", Addr: "a", Worker: "gpu-1", Lasted: time.Second}
		lasts := d
		lasts.Lasted = 0
		c.change(&d)
		got := ""
		for _, p := range (&Facts{Last: append(slices.Repeat([]router.Recent{lasts}, c.last), slices.Repeat([]router.Recent{d}, 20)...)}).All() {
			got += p.Code
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// TestSmallCache: a cache is too small if what is computed in ten seconds does not fit, or if it is much smaller than others and is
// computed anew within half a minute. Prompts shorter than a block, and what was cached, are not computed.
func TestSmallCache(t *testing.T) {
	now := time.Now()
	worker := func(name string, blocks int) Worker {
		return Worker{Name: name, Addr: name, Model: "m", Events: "live", BlockSize: 16, Blocks: blocks}
	}
	done := func(n, prompt, cached int) []router.Recent {
		return slices.Repeat([]router.Recent{{At: now, Used: "a", Addr: "a", Worker: "a", Model: "m", Code: 200, PromptTokens: prompt,
			CachedTokens: cached, Reported: cached}}, n)
	}
	none := func(*Worker) {}
	for name, c := range map[string]struct {
		held, others int
		recent       []router.Recent
		want         bool
		change       func(w *Worker)
	}{
		"tiny":                    {20, 20, done(10, 400, 0), true, none},
		"as large as others":      {100, 100, done(10, 400, 0), false, none},
		"much smaller than those": {100, 1000, done(10, 400, 0), true, none},
		"found what it held":      {20, 20, done(10, 400, 384), false, none},
		"short prompts":           {1, 1, done(500, 12, 0), false, none},
		"two requests":            {20, 20, done(2, 8000, 0), false, none},
		"it has just restarted":   {20, 1000, done(10, 400, 0), false, func(w *Worker) { w.BehindAt = now.Add(time.Second) }},
		"restarted before that":   {20, 1000, done(10, 400, 0), true, func(w *Worker) { w.BehindAt = now.Add(-time.Second) }},
		"it was emptied":          {20, 1000, done(10, 400, 0), false, func(w *Worker) { w.CacheTokens = 16000 }},
		"it says that it is tiny": {20, 1000, done(10, 400, 0), true, func(w *Worker) { w.CacheTokens = 480 }},
		"it holds what came":      {250, 1000, done(10, 400, 0), false, none},
	} {
		one := worker("a", c.held)
		c.change(&one)
		f := Facts{Now: now, Workers: []Worker{one, worker("b", c.others), worker("c", c.others)}, Recent: c.recent}
		list := f.All()
		got := len(list) == 1 && list[0].Code == "SL0503" && slices.Equal(list[0].Workers, []string{"a"})
		if got != c.want || !got && len(list) > 0 {
			t.Errorf("%s: got %+v, want SL0503: %t", name, list, c.want)
		}
		if room := fmt.Sprintf("it has room for %d tokens", max(16*c.held, one.CacheTokens)); got && !strings.Contains(list[0].What, room) {
			t.Errorf("%s: got %q, want it to say %q", name, list[0].What, room)
		}
	}
}

// TestLateAfterOutage: events that had waited for a stream that was away are not late; those of later requests are.
func TestLateAfterOutage(t *testing.T) {
	now := time.Now()
	for ended, want := range map[time.Duration]int{-30 * time.Second: 0, -15 * time.Second: 0, -5 * time.Second: 1} {
		f := Facts{Now: now, Mode: "100%",
			Workers: []Worker{{Name: "gpu-1", Model: "m", Events: "live", BehindAt: now.Add(-20 * time.Second)}},
			Late:    []audit.Late{{Worker: "gpu-1", By: 7 * time.Second, Since: now.Add(-30 * time.Second), Ended: now.Add(ended)}}}
		if list := f.All(); len(list) != want {
			t.Errorf("the newest late request ended %v ago, the stream was back 20 s ago: got %+v, want %d findings", -ended, list, want)
		}
	}
}

// TestDearPlace: a place behind which a fifth of the last prompts' tokens are computed again is named, with what to do.
func TestDearPlace(t *testing.T) {
	asked := func(n, changed int, kind string) (list []router.Recent) {
		for i := range n {
			a := &account.Account{Tokens: 1000, Cached: 1000 - changed, Uncached: account.Sums{account.Changed: changed}, Spans: []account.Span{
				{From: 1000 - changed, To: 1000, Cause: account.Changed, Change: &account.Change{Part: "message 3 (user)", Token: 10 + i, Kind: kind}}}}
			list = append(list, router.Recent{Model: "m", Account: a})
		}
		return list
	}
	const want = "45 % of the last 40 requests' prompt tokens are computed again: of model m a message of user differs: edited"
	for name, c := range map[string]struct {
		last []router.Recent
		want string
	}{
		"dear":               {append(asked(20, 900, "edited"), asked(20, 0, "edited")...), want},
		"cheap":              {asked(40, 190, "edited"), ""},
		"few requests":       {asked(19, 900, "edited"), ""},
		"nothing to be done": {asked(40, 900, ""), ""},
		"no account":         {make([]router.Recent, 40), ""},
	} {
		f := Facts{Last: c.last}
		got := ""
		for _, p := range f.All() {
			if p.Code == "SL0205" {
				got = p.What
				if p.Severity != "warning" || p.Fix != "append instead (docs/meter.md)" {
					t.Errorf("%s: got %s, %q, want a warning, and to append", name, p.Severity, p.Fix)
				}
			}
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
