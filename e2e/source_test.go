package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/lab"
)

// With fetch_kv a worker that lacks a prompt is told, through a real Envoy, which one has it: the worker that was asked before. That one
// is told nothing, and a client's word reaches neither.
func TestSourceOfBlocks(t *testing.T) {
	t.Parallel()
	type asked struct {
		worker int
		source []string
	}
	seen, hold := make(chan asked, 64), make(chan struct{})
	var addrs []string
	l := startLab(t, func(o *lab.Options) {
		o.Workers = 2
		o.Front = func(e *envoy.Options) { e.Workers = addrs }
		o.Config = func(keys map[string]any) {
			for i, w := range keys["workers"].([]any) {
				worker := w.(map[string]any)
				proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: worker["addr"].(string)})
				front := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodPost {
						seen <- asked{i, r.Header.Values(extproc.HeaderSource)}
						if r.Header.Get("x-hold") != "" {
							<-hold
							return
						}
					}
					proxy.ServeHTTP(rw, r)
				}))
				t.Cleanup(front.Close)
				worker["addr"] = front.Listener.Addr().String()
				addrs = append(addrs, worker["addr"].(string))
			}
			keys["models"].([]any)[0].(map[string]any)["fetch_kv"] = true
			keys["fixed"] = unprobed()
		}
	})
	defer close(hold)
	body := fmt.Appendf(nil, `{"model":%q,"max_tokens":2,"messages":[{"role":"user","content":%q}]}`, lab.ModelName,
		strings.Repeat("A story about routers and their caches. ", 300))
	forged := http.Header{http.CanonicalHeaderKey(extproc.HeaderSource): {"192.0.2.1:1"}}
	if r := raws(t, l, body, forged); r.status != http.StatusOK {
		t.Fatalf("got %d %s, want %d", r.status, r.body, http.StatusOK)
	}
	first := <-seen
	if first.source != nil {
		t.Errorf("nobody has it yet: KV blocks from %q, want nil", first.source)
	}
	eventually(t, "the index has what the worker has", func() bool {
		return metric(t, l, "sightline_index_blocks", "") == float64(len(l.Sims[first.worker].Blocks()))
	})
	// Requests that do not end fill the worker that has the prompt, until the other one gets one.
	for n := 0; ; n++ {
		if n == 40 {
			t.Fatalf("%d requests in flight, and the other worker has none, want other than 40", n)
		}
		go func() {
			req, _ := http.NewRequest(http.MethodPost, l.URL+"/v1/chat/completions", strings.NewReader(string(body)))
			req.Header = forged.Clone()
			req.Header.Set("content-type", "application/json")
			req.Header.Set("x-hold", "1")
			if res, err := http.DefaultClient.Do(req); err == nil {
				res.Body.Close()
			}
		}()
		got := <-seen
		if got.worker == first.worker {
			if got.source != nil {
				t.Errorf("worker %d has the prompt: KV blocks from %q, want nil", got.worker, got.source)
			}
			continue
		}
		if len(got.source) != 1 || got.source[0] != addrs[first.worker] {
			t.Errorf("KV blocks from %q, want %q, after %d requests", got.source, addrs[first.worker], n)
		}
		return
	}
}
