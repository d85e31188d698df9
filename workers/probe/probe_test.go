package probe

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

const modelDir = "../../examples/models/qwen2.5-vl"

// prompts reads requests as simulated workers do, loaded once.
var prompts = sync.OnceValues(func() (lab.Prompts, error) { return lab.NewPrompts(modelDir, sim.VLLM, "m", 16) })

func load(t testing.TB, change func(*engine.Server)) *engine.LiveModel {
	t.Helper()
	media, err := engine.NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(media.Close)
	s := engine.DefaultServer()
	s.EngineModel = "m"
	if change != nil {
		change(&s)
	}
	m, err := engine.LoadLive("m", modelDir, s, media)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// worker starts a simulated worker.
func worker(t testing.TB, c sim.Config, edit func([]uint32) []uint32) *sim.Worker {
	t.Helper()
	read, err := prompts()
	if err != nil {
		t.Fatal(err)
	}
	c.Prompt = func(ctx context.Context, path string, body []byte) ([]sim.Prompt, error) {
		ps, err := read(ctx, path, body)
		if err == nil && edit != nil {
			ps[0].Tokens = edit(ps[0].Tokens)
		}
		return ps, err
	}
	if c.Model == "" {
		c.Model = "m"
	}
	w, err := sim.New(c)
	if err != nil {
		t.Fatal(err)
	}
	w.Start()
	t.Cleanup(w.Close)
	return w
}

// probed runs one round with one worker.
func probed(t testing.TB, addr string, m *engine.LiveModel, names ...string) Result {
	t.Helper()
	p := New(Options{Workers: []Worker{{Name: "w", Addr: addr, Model: "m", Names: append(names, "m"), Ours: m}}, Budget: 5 * time.Minute})
	p.round(t.Context(), true)
	return p.Results()[0]
}

// brief formats a result: "verdict: what=verdict …", without the equal ones.
func brief(r Result) string {
	out := string(r.Verdict) + ":"
	for _, f := range r.Findings {
		if f.Verdict != Equal {
			out += " " + f.What + "=" + string(f.Verdict)
		}
	}
	return out
}

func TestEqual(t *testing.T) {
	r := probed(t, worker(t, sim.Config{}, nil).Addr(), load(t, nil))
	if len(r.Findings) != 6 || brief(r) != "equal:" || r.Findings[4].What != Image || r.Findings[5].What != LargeImage {
		t.Errorf(`got %+v, want len(r.Findings) == 6, brief(r) == "equal:", r.Findings[4].What == Image, r.Findings[5].What == LargeImage`, r)
	}
}

// TestDifferences checks that each difference is reported with its position and both sides' tokens.
func TestDifferences(t *testing.T) {
	m := load(t, nil)
	for _, c := range []struct {
		what string
		edit func([]uint32) []uint32
		want func(ours int) Difference
	}{
		{"another token", func(ids []uint32) []uint32 { ids[3] = 7; return ids }, func(n int) Difference {
			return Difference{Position: 3, Theirs: 7, OurLen: n, TheirsLen: n}
		}},
		{"one more", func(ids []uint32) []uint32 { return append(ids, 9) }, func(n int) Difference {
			return Difference{Position: n, Ours: -1, Theirs: 9, OurLen: n, TheirsLen: n + 1}
		}},
		{"one less", func(ids []uint32) []uint32 {
			return ids[:len(ids)-1]
		}, func(n int) Difference {
			return Difference{Position: n - 1, Theirs: -1, OurLen: n, TheirsLen: n - 1}
		}},
	} {
		r := probed(t, worker(t, sim.Config{}, c.edit).Addr(), m)
		if r.Verdict != Differs || len(r.Findings) != 6 {
			t.Errorf("%s: %s; got %q, %d, want %q, 6", c.what, brief(r), r.Verdict, len(r.Findings), Differs)
			continue
		}
		for i, f := range r.Findings {
			_, ours, err := read(t.Context(), m.Model(), cases(m.Model())[i])
			if err != nil {
				t.Fatal(err)
			}
			want := c.want(len(ours))
			if want.Ours == 0 {
				want.Ours = int64(ours[want.Position])
			}
			want.texts(m.Model().Text)
			if want.Ours >= 0 && want.OurText == "" || !strings.Contains(f.Detail, strconv.Quote(want.TheirText)) && want.Theirs >= 0 {
				t.Errorf("%s: the texts are missing: %s", c.what, f.Detail)
			}
			if f.Difference == nil || *f.Difference != want || f.Detail == "" {
				t.Errorf("%s, %s: %+v, want %+v", c.what, f.What, f.Difference, want)
			}
		}
	}
}

// TestUnreadIsNotEqual: a worker that wants a key for everything, or for its settings only, is never called equal; what was not
// compared is named.
func TestUnreadIsNotEqual(t *testing.T) {
	m := load(t, nil)
	there := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: worker(t, sim.Config{}, nil).Addr()})
	for name, c := range map[string]struct {
		open string // a path that wants no key
		want string
	}{
		"all":      {"", "absent: /v1/models=absent /version=absent text=absent"},
		"settings": {"/tokenize", "absent: /v1/models=absent /version=absent"},
	} {
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == c.open {
				there.ServeHTTP(w, r)
				return
			}
			w.WriteHeader(http.StatusUnauthorized)
		}))
		defer front.Close()
		r := probed(t, front.Listener.Addr().String(), m)
		if got := brief(r); got != c.want ||
			!strings.HasPrefix(r.Findings[0].Detail, "GET /v1/models: status 401: the worker wants a key") || r.Findings[0].Fault != rules.Key {
			t.Errorf("%s: %s\n%+v", name, got, r.Findings)
		}
	}
}

func TestSettings(t *testing.T) {
	m := load(t, func(s *engine.Server) { s.MaxModelLen = 5000 })
	for _, c := range []struct {
		sim   sim.Config
		names []string
		want  string
	}{
		{sim.Config{MaxModelLen: 5000}, nil, "equal:"},
		{sim.Config{MaxModelLen: 5000, Version: "0.30.1"}, nil, "configuration: engine_version=configuration"},
		{sim.Config{MaxModelLen: 4096}, nil, "configuration: max_model_len=configuration"},
		{sim.Config{MaxModelLen: 5000, Bare: true}, nil, "configuration: events=configuration"},
		{sim.Config{MaxModelLen: 5000, NoPrefixCache: true}, nil, "configuration: prefix caching=configuration"},
		{sim.Config{MaxModelLen: 5000, Ranks: 2}, nil, "configuration: ranks=configuration"},
		{sim.Config{MaxModelLen: 5000, Engine: "sglang"}, nil, "configuration: engine=configuration"},
		{sim.Config{MaxModelLen: 5000, Model: "/models/other", ServedName: "m"}, nil, "configuration: engine_model=configuration"},
		{sim.Config{MaxModelLen: 5000}, []string{"alias"}, "configuration: name=configuration"},
		{sim.Config{MaxModelLen: 5000, Adapters: []sim.Adapter{{Name: "l", Path: "/l"}}}, nil, "configuration: adapters=configuration"},
	} {
		if r := probed(t, worker(t, c.sim, nil).Addr(), m, c.names...); brief(r) != c.want {
			t.Errorf("%s, want %s: %+v", brief(r), c.want, r.Findings)
		}
	}
}

// TestHostileWorkers probes anything that may listen on the address.
func TestHostileWorkers(t *testing.T) {
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	m := load(t, nil)
	tokenize := func(answer string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/tokenize" {
				http.NotFound(w, r)
				return
			}
			_, _ = io.WriteString(w, answer)
		}
	}
	const unread = "/v1/models=absent /version=absent "
	for _, c := range []struct {
		what string
		do   http.HandlerFunc
		want string
	}{
		{"nothing there", http.NotFound, "absent: " + unread + "text=absent"},
		{"a key is needed", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, "absent: " + unread + "text=absent"},
		{"redirects", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		}, "absent: " + unread + "text=absent"},
		{"is loading", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, "unreachable: /v1/models=unreachable"},
		{"refuses", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(400) },
			"refused: " + unread + "text=refused one turn=refused system and user=refused several turns=refused an image=refused " +
				"a large image=refused"},
		{"no JSON", tokenize("<html>"), "unreachable: " + unread + "text=unreachable"},
		{"other JSON", tokenize("{}"), "unreachable: " + unread + "text=unreachable"},
		{"tokens are no numbers", tokenize(`{"tokens":["a",-1]}`), "unreachable: " + unread + "text=unreachable"},
		{"without end", func(w http.ResponseWriter, r *http.Request) {
			line := []byte(strings.Repeat("[", 1<<16))
			for r.Context().Err() == nil {
				if _, err := w.Write(line); err != nil {
					return
				}
			}
		}, "unreachable: /v1/models=unreachable"},
		{"hangs up", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "unreachable: /v1/models=unreachable"},
		{"no tokens", tokenize(`{"tokens":[]}`), "differs: " + unread +
			"text=differs one turn=differs system and user=differs several turns=differs an image=differs a large image=differs"},
	} {
		s := httptest.NewServer(c.do)
		if r := probed(t, s.Listener.Addr().String(), m); brief(r) != c.want {
			t.Errorf("%s: %s, want %s", c.what, brief(r), c.want)
		}
		s.Close()
	}
	if elsewhere.Load() != 0 {
		t.Errorf("a redirect was followed: got %d, want 0", elsewhere.Load())
	}
}

// TestNoTimeLeft: a conversation that is not read because the worker took all the time is compared later. It is not one that no rule reads.
func TestNoTimeLeft(t *testing.T) {
	m := load(t, nil)
	w := Worker{Name: "w", Addr: worker(t, sim.Config{}, nil).Addr(), Model: "m", Ours: m}
	p := New(Options{Workers: []Worker{w}})
	ended, stop := context.WithCancel(t.Context())
	stop()
	for _, c := range cases(m.Model()) {
		if f := p.compare(ended, &w, m.Model(), c); f.Verdict != Unreachable {
			t.Errorf("%s: got %s, %s, want %s", c.what, f.Verdict, f.Detail, Unreachable)
		}
	}
}

// TestBudget checks that a worker that never answers costs only the budget.
func TestBudget(t *testing.T) {
	hung := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer hung.Close()
	p := New(Options{Workers: []Worker{{Name: "w", Addr: hung.Listener.Addr().String(), Model: "m", Ours: load(t, nil)}},
		Budget: 50 * time.Millisecond})
	if open := p.round(t.Context(), true); !open || p.Results()[0].Verdict != Unreachable {
		t.Errorf("got %+v, want %s, and another round", p.Results()[0], Unreachable)
	}
}

// TestSGLang checks that SGLang's endpoint, which takes text, gets our rendered conversation, without special tokens added.
func TestSGLang(t *testing.T) {
	m := load(t, func(s *engine.Server) { s.Engine, s.EngineVersion = "sglang", "0.5.23" })
	var bodies []map[string]any
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			_, _ = io.WriteString(w, `{"data":[{"id":"m","root":"whatever","max_model_len":32768}]}`)
			return
		}
		if r.URL.Path != "/tokenize" {
			t.Errorf("asked for %s, want %q", r.URL.Path, "/tokenize")
		}
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		bodies = append(bodies, body)
		_, ids, err := read(r.Context(), m.Model(), probeCase{path: "/v1/completions", body: body})
		if err != nil {
			t.Error(err)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"tokens": ids})
	}))
	defer s.Close()
	r := probed(t, s.Listener.Addr().String(), m)
	if brief(r) != "equal:" || len(r.Findings) != 4 {
		t.Errorf(`got %+v, want brief(r) == "equal:", len(r.Findings) == 4`, r)
	}
	for i, b := range bodies {
		if _, text := b["prompt"].(string); !text || (b["add_special_tokens"] == false) != (i > 0) {
			t.Errorf(`body %d: %v, want text, (b["add_special_tokens"] == false) == (i > 0)`, i, b)
		}
	}
}

// TestRun checks that in the background only workers that did not answer are asked again, and the others not until Again.
func TestRun(t *testing.T) {
	var ready atomic.Bool
	good := worker(t, sim.Config{}, nil)
	late := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !ready.Load() {
			w.WriteHeader(503)
			return
		}
		http.NotFound(w, r)
	}))
	defer late.Close()
	m := load(t, nil)
	reg := prometheus.NewRegistry()
	p := New(Options{Workers: []Worker{{Name: "good", Addr: good.Addr(), Model: "m", Ours: m},
		{Name: "late", Addr: late.Listener.Addr().String(), Model: "m", Ours: m}},
		Retry: time.Millisecond, Metrics: reg})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { p.Run(ctx); close(done) }()
	defer func() { cancel(); <-done }()
	counted := func(worker string, v Verdict) (n int) {
		all, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			for _, m := range f.GetMetric() {
				if l := m.GetLabel(); l[0].GetValue() == string(v) && l[1].GetValue() == worker { // by the labels' names
					n = int(m.GetCounter().GetValue())
				}
			}
		}
		return n
	}
	until := func(what string, cond func() bool) {
		t.Helper()
		if err := lab.WaitFor(t.Context(), what, cond); err != nil {
			t.Fatalf("got %v %q, want no error", err, fmt.Sprintf("%+v", p.Results()))
		}
	}
	until("three tries", func() bool { return counted("late", Unreachable) >= 3 })
	ready.Store(true)
	until("an answer", func() bool { return p.Results()[1].Verdict == Absent })
	if n := counted("good", Equal); n != 6 {
		t.Errorf("%d comparisons of a worker that answered at once, want 6", n)
	}
	p.Again()
	until("a second probe", func() bool { return counted("good", Equal) == 12 })
	p.Ask("good")
	until("a probe of the process that came after", func() bool { return counted("good", Equal) == 18 })
}

// TestSet checks that new workers are probed, that the others keep their results, and that workers that left have no series.
func TestSet(t *testing.T) {
	m := load(t, nil)
	a := Worker{Name: "a", Addr: worker(t, sim.Config{}, nil).Addr(), Model: "m", Names: []string{"m"}, Ours: m}
	b := Worker{Name: "b", Addr: worker(t, sim.Config{}, nil).Addr(), Model: "m", Names: []string{"m"}, Ours: m}
	reg := prometheus.NewRegistry()
	p := New(Options{Metrics: reg})
	done := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	go func() { defer close(done); p.Run(ctx) }()
	defer func() { stop(); <-done }()
	equal := func(names ...string) func() bool {
		return func() bool {
			list := p.Results()
			for i, r := range list {
				if i >= len(names) || r.Worker != names[i] || r.Verdict != Equal {
					return false
				}
			}
			return len(list) == len(names)
		}
	}
	wait := func(what string, ok func() bool) {
		for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("got %+v, want %s", p.Results(), what)
			}
		}
	}
	p.Set([]Worker{a})
	wait("a is probed", equal("a"))
	at := p.Results()[0].At
	p.Set([]Worker{a, b})
	wait("b is probed", equal("a", "b"))
	if p.Results()[0].At != at {
		t.Error("a was probed again")
	}
	p.Set([]Worker{b})
	wait("a has left", equal("b"))
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		for _, metric := range f.Metric {
			if strings.Contains(metric.String(), `"a"`) {
				t.Errorf("a series of a worker that left: %v", metric)
			}
		}
	}
}
