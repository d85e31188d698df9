package router

import (
	"fmt"
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
