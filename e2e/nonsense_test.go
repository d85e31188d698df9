package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab"
)

// TestWorkerThatCountsNonsense: token counts in answers that no request has change no counter, and neither an answer without them.
func TestWorkerThatCountsNonsense(t *testing.T) {
	t.Parallel()
	needs140(t)
	var usage atomic.Value
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		rw.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(rw, `{"usage":%s}`, usage.Load())
	}))
	t.Cleanup(s.Close)
	addr, admin := strings.TrimPrefix(s.URL, "http://"), freeAddr(t)
	w := start(t, 0, func(o *envoy.Options) { o.Workers, o.TokenUsage = []string{addr}, true })
	w.runProduct(map[string]any{"admin": admin, "models": []any{map[string]any{"name": lab.ModelName}},
		"workers": []any{map[string]any{"addr": addr}}})
	const honest = `{"prompt_tokens":100,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":96}}`
	for i, said := range []string{honest, `{"prompt_tokens":9007199254740991,"completion_tokens":9007199254740991,` +
		`"prompt_tokens_details":{"cached_tokens":9007199254740991}}`,
		`{"prompt_tokens":0,"prompt_tokens_details":{"cached_tokens":0}}`, `{"prompt_tokens":-5,"prompt_tokens_details":{"cached_tokens":-5}}`,
		`{"prompt_tokens":1e30,"prompt_tokens_details":{"cached_tokens":"many"}}`, "[]", honest} {
		usage.Store(said)
		if r := w.post(chatOf(300, i), nil); r.status != http.StatusOK {
			t.Fatalf("%s: got %+v, want status %d", said, r, http.StatusOK)
		}
		eventually(t, "its end is reported", func() bool {
			return metricOf(t, admin, "sightline_access_log_entries_total", "ended") == float64(i+1)
		})
	}
	for name, want := range map[string]float64{"sightline_engine_prompt_tokens_total": 200, "sightline_engine_cached_tokens_total": 192} {
		if got := metricOf(t, admin, name, ""); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
