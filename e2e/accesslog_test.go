package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/router"
)

// story writes outcomes as one line, with addresses by worker number.
func (w *world) story(outcomes []router.Outcome) string {
	var parts []string
	for _, o := range outcomes {
		at := "nowhere"
		for i, x := range w.workers {
			if x.addr == o.Addr {
				at = fmt.Sprint("worker ", i)
			}
		}
		switch o.Phase {
		case router.Started:
			parts = append(parts, "started "+at)
		case router.Failed:
			parts = append(parts, "failed "+at+" "+o.Fault)
		default:
			parts = append(parts, fmt.Sprintf("ended %s %d", at, o.Code))
		}
	}
	return strings.Join(parts, ", ")
}

func TestOutcomesComeBack(t *testing.T) {
	t.Parallel()
	w := start(t, 3, nil)
	s := w.runSightline(extproc.Options{})
	a, b := w.workers[0], w.workers[1]
	wait := func(t *testing.T, id, want string) []router.Outcome {
		t.Helper()
		eventually(t, fmt.Sprintf("%q of %s (so far %q)", want, id, w.story(s.of(id))), func() bool { return w.story(s.of(id)) == want })
		return s.of(id)
	}
	t.Run("answered", func(t *testing.T) {
		r := w.post(chat(script{Targets: []string{b.addr}}), nil)
		out := wait(t, r.id(), "started worker 1, ended worker 1 200")
		if fb := out[1].FirstByte; fb <= 0 || fb > 10*time.Second {
			t.Errorf("first byte after %v, want more than 0, at most %v", fb, 10*time.Second)
		}
		if out[1].CachedTokens != -1 || out[1].PromptTokens != -1 {
			t.Errorf("tokens %+v, want none reported", out[1])
		}
	})
	t.Run("in flight until the end", func(t *testing.T) {
		id := ""
		done := make(chan reply, 1)
		before := len(s.all())
		go func() { done <- w.post(chat(script{Targets: []string{b.addr}}), http.Header{"X-Hold": {"flight"}}) }()
		eventually(t, "the request is started", func() bool {
			for _, o := range s.all()[before:] {
				id = o.ID
			}
			return id != ""
		})
		if got := w.story(s.of(id)); got != "started worker 1" {
			t.Errorf("%q while the worker is at it, want %q", got, "started worker 1")
		}
		close(b.hold("flight"))
		if r := <-done; r.id() != id {
			t.Errorf("decision %q, started %q, want %q", r.id(), id, id)
		}
		wait(t, id, "started worker 1, ended worker 1 200")
	})
	t.Run("client leaves before the first byte", func(t *testing.T) {
		before := len(s.all())
		ctx, cancel := context.WithCancel(t.Context())
		req, _ := http.NewRequestWithContext(ctx, "POST", w.url+"/v1/chat/completions",
			strings.NewReader(chat(script{Targets: []string{b.addr}})))
		req.Header = http.Header{"Content-Type": {"application/json"}, "X-Hold": {"never"}}
		go func() {
			if res, err := w.client.Do(req); err == nil {
				res.Body.Close()
			}
		}()
		eventually(t, "the request is started", func() bool { return len(s.all()) > before })
		id := s.all()[before].ID
		cancel()
		wait(t, id, "started worker 1, ended worker 1 0")
	})
	t.Run("refused", func(t *testing.T) {
		before := len(s.all())
		w.post(chat(script{Refuse: 404}), nil)
		r := w.post(chat(script{Targets: []string{b.addr}}), nil)
		wait(t, r.id(), "started worker 1, ended worker 1 200")
		for _, o := range s.all()[before:] {
			if o.ID != r.id() {
				t.Errorf("an outcome of a refused request: %+v", o)
			}
		}
	})
	t.Run("no target", func(t *testing.T) {
		r := w.post(chat(script{}), nil)
		eventually(t, "the end is reported", func() bool { o := s.of(r.id()); return len(o) == 2 && o[1].Addr == r.Worker && o[1].Code == 200 })
	})
	t.Run("not ours", func(t *testing.T) {
		before := len(s.all())
		w.send(w.client, "POST", "/v1/embeddings", "{}", nil)
		w.send(w.client, "GET", "/v1/models", "", nil)
		r := w.post(chat(script{Targets: []string{b.addr}}), nil)
		wait(t, r.id(), "started worker 1, ended worker 1 200")
		if n := len(s.all()) - before; n != 2 {
			t.Errorf("%d outcomes, want the 2 of the chat request", n)
		}
	})
	a.kill()
	t.Run("dead worker, retry", func(t *testing.T) {
		r := w.post(chat(script{Targets: []string{a.addr, b.addr}}), nil)
		wait(t, r.id(), "failed worker 0 connect, started worker 1, ended worker 1 200")
	})
}

func (s *sightline) all() []router.Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]router.Outcome(nil), s.outcomes...)
}

// With the token usage filter on, the engine's own counts come back, from JSON answers and from streams.
func TestTokenUsageComesBack(t *testing.T) {
	needs140(t)
	w := start(t, 1, func(o *envoy.Options) { o.TokenUsage = true })
	s := w.runSightline(extproc.Options{})
	for _, more := range []string{`"n":1`, `"stream":true`} {
		before := len(s.all())
		if r := w.post(chat(script{Targets: w.addrs()}, more), nil); r.err != nil || r.status != 200 {
			t.Fatalf("%s: got %v, status %d, want no error, 200", more, r.err, r.status)
		}
		eventually(t, more+": the engine's counts", func() bool {
			for _, o := range s.all()[before:] {
				if o.Phase == router.Ended && o.PromptTokens == 130 && o.CachedTokens == 112 {
					return true
				}
			}
			return false
		})
	}
}

// What Sightline counts of itself.
func TestCounters(t *testing.T) {
	w := start(t, 1, nil)
	reg := prometheus.NewRegistry()
	s := w.runSightline(extproc.Options{Metrics: reg})
	exact, gate := counter(t, reg, "sightline_extproc_answers_total", "exact"), map[string]float64{} // runSightline asks too
	for _, verdict := range []string{"readable", "unreadable", "not ours"} {
		gate[verdict] = counter(t, reg, "sightline_extproc_gate_total", verdict)
	}
	for range 4 {
		w.post(chat(script{Targets: w.addrs(), Reason: "exact"}), nil)
	}
	if got := counter(t, reg, "sightline_extproc_answers_total", "exact") - exact; got != 4 {
		t.Errorf("%v exact decisions counted, want 4", got)
	}
	w.post("{}", http.Header{"Content-Type": {"text/plain"}})
	w.post("", nil) // of no body there is nothing to read
	for verdict, want := range map[string]float64{"readable": 4, "unreadable": 1, "not ours": 1} {
		if got := counter(t, reg, "sightline_extproc_gate_total", verdict) - gate[verdict]; got != want {
			t.Errorf("%v requests counted as %s, want %v", got, verdict, want)
		}
	}
	eventually(t, "ends are counted", func() bool {
		return counter(t, reg, "sightline_access_log_entries_total", "ended") == float64(len(s.all()))/2
	})
	if n := counter(t, reg, "sightline_access_log_entries_total", "no decision id"); n != 0 {
		t.Errorf("%v entries without an id; Envoy's filter should have kept them, want 0", n)
	}
}

// counter is a counter's value, summed over the series that have the label value.
func counter(t *testing.T, reg *prometheus.Registry, name, label string) (sum float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetValue() == label {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}
