package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// Behind a real Envoy: workers of the own zone come before one that is 200 ms away, until the client wants its first token sooner than
// they can give it; and of few free places who has most gets none.
func TestPolicies(t *testing.T) {
	t.Parallel()
	const each = 10
	l := startLab(t, func(o *lab.Options) {
		o.Sim = func(_ int, c *sim.Config) { c.MaxSeqs = 64 }
		o.Speed = 1
		o.Config = func(keys map[string]any) {
			keys["max_in_flight"], keys["fixed"] = each, unprobed("load_every", "0s")
			keys["fair_share"] = map[string]any{"header": "X-Tenant", "priority": "x-priority"}
			keys["zones"] = map[string]any{"own": "a", "to": map[string]any{"*": "200ms"}}
			workers := keys["workers"].([]any)
			for i, zone := range []string{"a", "b", "b"} {
				workers[i].(map[string]any)["zone"] = zone
			}
			workers[2].(map[string]any)["max_in_flight"] = 1
		}
	})
	var n atomic.Int32
	ask := func(tokens int, headers ...string) (*http.Response, error) {
		body := fmt.Sprintf(`{"model":%q,"max_tokens":%d,"stream":true,"messages":[{"role":"user","content":"%d %s"}]}`,
			lab.ModelName, tokens, n.Add(1), strings.Repeat("word ", 50))
		req, _ := http.NewRequest(http.MethodPost, l.URL+"/v1/chat/completions", strings.NewReader(body))
		req.Header.Set("content-type", "application/json")
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		return http.DefaultClient.Do(req)
	}
	done := func(tokens int, headers ...string) int {
		t.Helper()
		res, err := ask(tokens, headers...)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		if res.StatusCode == http.StatusTooManyRequests && res.Header.Get("retry-after") == "" {
			t.Error("429 without retry-after")
		}
		return res.StatusCode
	}
	for range 6 {
		if status := done(2); status != http.StatusOK {
			t.Fatalf("got %d, want %d", status, http.StatusOK)
		}
	}
	if at := l.Sims[0].Stats().Requests; at != 6 {
		t.Errorf("%d of 6 requests in the own zone, want 6", at)
	}
	eventually(t, "Envoy has reported their ends", func() bool { return inFlight(t, l.Admin) == 0 })
	// Twenty-one places, held by one tenant as far as it may.
	held := 0
	for range 30 {
		res, err := ask(4000, "x-tenant", "much")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if res.StatusCode == http.StatusOK {
			held++
		}
	}
	if held != 19 {
		t.Errorf("%d of 21 places are held, want 19", held)
	}
	for _, c := range []struct {
		want    int
		headers []string
	}{
		{http.StatusTooManyRequests, []string{"x-tenant", "much"}},
		{http.StatusTooManyRequests, []string{"x-tenant", "few", "x-priority", "-1"}},
		{http.StatusOK, []string{"x-tenant", "few"}},
		{http.StatusOK, []string{"x-tenant", "much", "x-priority", "1"}},
		{http.StatusOK, []string{"x-slo-ttft-ms", "1"}},
	} {
		if got := done(2, c.headers...); got != c.want {
			t.Errorf("%v: %d, want %d", c.headers, got, c.want)
		}
	}
	page, err := lab.Get("http://" + l.Admin + "/metrics")
	for _, want := range []string{
		fmt.Sprintf(`sightline_requests_shed_total{model=%q,why="share"} 12`, lab.ModelName),
		fmt.Sprintf(`sightline_requests_shed_total{model=%q,why="priority"} 1`, lab.ModelName),
		fmt.Sprintf(`sightline_slo_decisions_total{model=%q,outcome="late"} 1`, lab.ModelName),
	} {
		if err != nil || !bytes.Contains(page, []byte(want)) {
			t.Errorf("not in /metrics: %s (%v), want no error, bytes.Contains(page, []byte(want))", want, err)
		}
	}
}
