package e2e

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// sendFor posts a body, and leaves after that time at most.
func sendFor(c *http.Client, url, body string, d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	if req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body)); err == nil {
		req.Header.Set("content-type", "application/json")
		_ = do(c, req)
	}
}

// Clients that leave at any moment, many just while the decision is on its way to Envoy, which then reports nothing: their requests
// soon no longer count as in flight.
func TestClientsThatLeave(t *testing.T) {
	t.Parallel()
	w := startAsPrinted(t, 2, nil)
	admin := freeAddr(t)
	w.runProduct(map[string]any{"admin": admin, "models": []any{map[string]any{"name": "m", "dir": absolute(t, modelDir)}},
		"workers": []any{map[string]any{"addr": w.workers[0].addr}, map[string]any{"addr": w.workers[1].addr}}})
	eventually(t, "requests are decided", func() bool { return w.post(chatOf(1, 1), nil).id() != "" })
	text := `{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("hello ", 500) + `"}]}`
	for name, c := range map[string]*http.Client{"HTTP/1": w.client, "HTTP/2": w.h2} {
		before := metricOf(t, admin, "sightline_decisions_total", "")
		began := time.Now()
		for range 10 {
			sendFor(c, w.url+chatPath, text, 30*time.Second)
		}
		whole := time.Since(began) / 10
		var all sync.WaitGroup
		for k := range 8 { // so that a request takes longer than one alone
			all.Go(func() {
				r := rand.New(rand.NewPCG(1, uint64(k)))
				for range 100 {
					sendFor(c, w.url+chatPath, text, time.Duration(r.Int64N(4*int64(whole))))
				}
			})
		}
		all.Wait()
		over := time.Now()
		decided, left := metricOf(t, admin, "sightline_decisions_total", "")-before, inFlight(t, admin)
		eventually(t, "nothing is in flight", func() bool { return inFlight(t, admin) == 0 })
		took := time.Since(over)
		t.Logf("%s: of 810 requests %v were decided, %d of them in flight at the end, none %v later", name, decided, left, took)
		if took > 25*time.Second { // on a busy machine; silent requests count for 30 s
			t.Errorf("%s: requests of clients that had left counted as in flight for %v, want at most %v", name, took, 25*time.Second)
		}
	}
}
