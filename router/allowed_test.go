package router

import (
	"fmt"
	"net/http"
	"testing"
)

// A pool and a subset hint limit the choice whether the body can be read or not; the cache still decides within them.
func TestAllowed(t *testing.T) {
	w := newWorld(t, 4)
	const body = `{"model":"m","messages":[{"role":"user","content":"What does the sign on the left say, in one word?"}]}`
	for _, c := range []struct {
		name string
		pool string
		only []string
		want map[string]bool // nil: none
	}{
		{"no limit", "", nil, map[string]bool{"w0": true, "w1": true, "w2": true, "w3": true}},
		{"two", "", []string{"10.0.0.2:8000", "10.0.0.4:8000"}, map[string]bool{"w1": true, "w3": true}},
		{"without a port", "", []string{"10.0.0.3"}, map[string]bool{"w2": true}},
		{"another port", "", []string{"10.0.0.3:8001"}, nil},
		{"not a worker", "", []string{"10.9.9.9", "nonsense"}, nil},
		{"nothing", "", []string{}, nil},
		{"its pool", "m", nil, map[string]bool{"w0": true, "w1": true, "w2": true, "w3": true}},
		{"its pool and a subset", "m", []string{"10.0.0.1"}, map[string]bool{"w0": true}},
		{"another pool", "n", nil, nil},
	} {
		for _, text := range []string{body, "", `{"model":"unknown"}`} {
			req := &Request{ID: fmt.Sprint(c.name, len(text)), Path: "/v1/chat/completions", Pool: c.pool, Only: c.only}
			if text != "" {
				req.Body = [][]byte{[]byte(text)}
			}
			d := w.Decide(t.Context(), req)
			if len(d.Targets) != min(len(c.want), 3) {
				t.Errorf("%s, %d bytes: targets %v, want of %v", c.name, len(text), d.Targets, c.want)
			}
			for _, target := range d.Targets {
				if !c.want[target.Worker] {
					t.Errorf("%s, %d bytes: target %v, want of %v", c.name, len(text), target, c.want)
				}
			}
		}
	}
}

// A worker with as many requests as it may have gets no more, whatever it holds; with all full, a request is shed.
func TestMaxInFlight(t *testing.T) {
	w := newWorld(t, 2)
	w.opt.MaxInFlight = 2
	body := chatBody("m", fmt.Sprintf("%q", text(100, 1)))
	w.stores(0, body)
	ask := func(id, body string, only ...string) Decision {
		req := &Request{ID: id, Path: "/v1/chat/completions", Only: only}
		if body != "" {
			req.Body = [][]byte{[]byte(body)}
		}
		return w.Decide(t.Context(), req)
	}
	for i, want := range []string{"w0", "w0", "w1", "w1"} {
		if d := ask(fmt.Sprint(i), body); len(d.Targets) != 2-i/2 || d.Targets[0].Worker != want {
			t.Errorf("request %d: %+v, want %s", i, d.Targets, want)
		}
	}
	for _, unread := range []string{body, "", `{"model":"unknown"}`} {
		if d := ask("x", unread); d.Refuse == nil || d.Refuse.Status != http.StatusTooManyRequests || len(d.Targets) != 0 {
			t.Errorf("all full, body %q: %+v", unread, d)
		}
	}
	if d := w.Decide(t.Context(), &Request{ID: "y", Path: "/v1/responses/z", Stored: "z"}); d.Refuse != nil || len(d.Targets) == 0 {
		t.Errorf("an answer that is there: %+v", d)
	}
	w.Observe(Outcome{ID: "y", Phase: Ended, Code: 200, CachedTokens: -1})
	w.Observe(Outcome{ID: "0", Phase: Ended, Code: 200, CachedTokens: -1})
	if d := ask("z", body, "10.0.0.2"); d.Refuse == nil {
		t.Errorf("all of the subset full: %+v", d)
	}
	if d := ask("0", body); len(d.Targets) != 1 || d.Targets[0].Worker != "w0" {
		t.Errorf("room again: %+v", d)
	}
	if d := ask("n", body, "10.9.9.9"); d.Refuse != nil { // nobody eligible: 503 in the protocol's mode, not 429
		t.Errorf("nobody eligible: %+v", d.Refuse)
	}
}
