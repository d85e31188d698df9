package e2e

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab"
)

// TestLargeBodiesAreCleaned: bodies of 60 MB, whose copying alone takes longer than message_timeout, reach workers without what clients
// must not say.
func TestLargeBodiesAreCleaned(t *testing.T) {
	t.Parallel()
	const waits = 200 * time.Millisecond
	w := startEdited(t, 2, func(o *envoy.Options) { o.MessageTimeout = waits }, func(printed string) string {
		return strings.Replace(printed, "- timeout: 1s\n      interval: 1s\n      unhealthy_interval",
			"- timeout: 25s\n      interval: 1s\n      unhealthy_interval", 1)
	})
	w.client.Timeout = 2 * time.Minute
	w.serveBefore(map[string]any{"envoy": map[string]any{"message_timeout": waits.String()}})
	const size, atOnce = 60 << 20, 4
	field := `{"model":"` + lab.ModelName + `","kv_transfer_params":{"x":1},"messages":[{"role":"user","content":`
	bodies := []string{
		field + `"` + strings.Repeat("The picture shows a harbour at dusk. ", size/37) + `"}]}`,
		field + `[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("iVBORw0KGgoA", size/12) + `"}}]}]}`,
	}
	var all sync.WaitGroup
	for i := range atOnce {
		all.Go(func() {
			r := w.post(bodies[i%len(bodies)], nil)
			if r.err != nil || r.status != 200 || len(r.Steered) > 0 || r.Length < size-1<<10 || r.id() == "" {
				t.Errorf("body %d: %v, status %d, %d bytes, decided %t; the worker sees %q", i, r.err, r.status, r.Length, r.id() != "", r.Steered)
			}
		})
	}
	all.Wait()
	if n := w.stat("http.ingress.ext_proc.message_timeouts"); n > 0 {
		t.Errorf("Envoy gave up %v times, want 0", n)
	}
}
