package e2e

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/internal/denied"
)

// With Sightline killed, and with one that is stopped and answers nothing, Envoy itself takes from clients the headers that
// steer, in every variant; where it is to fail closed no body reaches a worker. The tenant's header reaches none either, also
// while Sightline decides and on paths that it does not read.
func TestSightlineAway(t *testing.T) {
	t.Parallel()
	for _, name := range append(envoy.VariantNames(), "1.36") {
		t.Run(name, func(t *testing.T) {
			switch name {
			case "tls", "ipv6":
				t.Skip("differs in addresses and certificates alone")
			case "token_usage":
				needs140(t)
			}
			w := startAsPrinted(t, 1, func(o *envoy.Options) {
				o.TenantHeader = "x-tenant"
				applyVariant(t, o, name)
			})
			const theirs = "127.0.0.1:9" // where nobody listens, so who is steered there gets no answer
			header := http.Header{}
			for _, h := range denied.Headers {
				if h.Prefix {
					h.Name += "anything"
				}
				header.Set(h.Name, theirs)
			}
			header.Set("x-tenant", "ann")
			want, path := http.StatusOK, chatPath
			if name == "fail_closed" {
				want = http.StatusServiceUnavailable
			}
			if name == "models" {
				path = "/m" + path
			}
			seen := func(how string, r reply) {
				t.Helper()
				for k, v := range r.Headers {
					k = strings.ToLower(k)
					steers := slices.ContainsFunc(denied.Headers, func(h denied.Header) bool { return h.Match(k) }) && slices.Contains(v, theirs)
					if steers || k == "x-tenant" {
						t.Errorf("%s: the worker saw %s: %q; got %v, want false, other than %q", how, k, v, steers, "x-tenant")
					}
				}
			}
			away := func(how string) {
				t.Helper()
				served := w.workers[0].served.Load()
				eventually(t, how+": answered as it should be", func() bool {
					return w.send(w.client, "POST", path, chat(script{}), header).status == want
				})
				for _, c := range []*http.Client{w.client, w.h2} {
					r := w.send(c, "POST", path, chat(script{}), header)
					if r.err != nil || r.status != want {
						t.Errorf("%s: %v, status %d, want %d", how, r.err, r.status, want)
					}
					seen(how, r)
				}
				if want != http.StatusOK && w.workers[0].served.Load() != served {
					t.Errorf("%s: a body reached the worker", how)
				}
			}
			models := []any{map[string]any{"name": "m", "dir": absolute(t, modelDir)}}
			if name == "models" {
				models = append(models, map[string]any{"name": "n", "dir": absolute(t, modelDir)})
			}
			kill := w.runProduct(map[string]any{"models": models, "tenants": map[string]any{"header": "x-tenant"},
				"workers": []any{map[string]any{"addr": w.workers[0].addr, "model": "m"}}})
			up := func() bool {
				return w.send(w.client, "POST", path, chat(script{}), header).id() != ""
			}
			eventually(t, "Sightline decides, and has told the workers", func() bool {
				return up() && (name != "eds" || w.stat("cluster.workers_any.membership_healthy") == 1)
			})
			for _, at := range []string{chatPath, "/v1/embeddings"} {
				at = strings.TrimSuffix(path, chatPath) + at
				r := w.send(w.client, "POST", at, chat(script{}), header)
				if refused := name == "fail_closed" && !strings.HasSuffix(at, chatPath); r.err != nil || (r.status == http.StatusOK) == refused {
					t.Errorf("%s: got %v, status %d; want no error, and 200 unless it is refused: %v", at, r.err, r.status, refused)
				}
				seen("up, "+at, r)
			}
			prefix := strings.TrimSuffix(path, chatPath)
			for _, c := range promised {
				h := header.Clone()
				for k, v := range c.header {
					h[k] = v
				}
				r := decided(func() reply { return w.send(w.client, "POST", prefix+c.path, c.body, h) })
				if r.err != nil || r.status != c.status || len(r.Steered) > 0 || strings.Contains(r.Body, "theirs") ||
					r.status == http.StatusOK && !strings.Contains(r.Body, `"cache_salt":"`) {
					t.Errorf("%s with %v: %v, status %d (want %d), the worker saw %v in %s", c.path, c.header, r.err, r.status,
						c.status, r.Steered, r.Body)
				}
			}
			if err := syscall.Kill(w.pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			eventually(t, "Sightline has stopped", func() bool { return halted(w.pid) })
			away("stopped")
			if err := syscall.Kill(w.pid, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			eventually(t, "Sightline decides again", up)
			kill()
			away("killed")
		})
	}
}

// promised are requests with what docs/security.md says of each, in every variant.
var promised = []struct {
	path, body string
	header     http.Header
	status     int
}{
	{chatPath, chat(script{}, `"kv_transfer_params":{"remote_host":"theirs"},"data_parallel_rank":7,"cache_salt":"theirs"`),
		nil, http.StatusOK},
	{"/v1/chat%2Fcompletions", chat(script{}, `"kv_transfer_params":{"remote_host":"theirs"},"cache_salt":"theirs"`), nil, http.StatusOK},
	{chatPath, chat(script{}), http.Header{"X-Tenant": {"ann", "bob"}}, http.StatusBadRequest},
	{"/v1/messages", chat(script{}), nil, http.StatusForbidden},
	{chatPath, `{"messages":NaN}`, nil, http.StatusBadRequest},
	{chatPath, chat(script{}), http.Header{"Content-Type": {"text/plain"}}, http.StatusUnsupportedMediaType},
	{chatPath, chat(script{}), http.Header{"Content-Encoding": {"gzip"}}, http.StatusUnsupportedMediaType},
}

// halted says whether all threads of a process have stopped, some milliseconds after SIGSTOP was sent.
func halted(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	return len(threads) > 0 && !slices.ContainsFunc(threads, func(file string) bool {
		text, err := os.ReadFile(file)
		return err == nil && !strings.Contains(string(text), ") T ")
	})
}

// applyVariant gives options for the one worker that runs: 1.36 stands for the form of that release.
func applyVariant(t *testing.T, o *envoy.Options, name string) {
	t.Helper()
	switch name {
	case "1.36":
		o.Version = name
		return
	case "models":
		o.Pools = []envoy.Pool{{Name: "m", Workers: o.Workers, Path: "/m"}, {Name: "n", Workers: o.Workers, Header: "x-n=1"}}
	case "eds":
		o.Allow = []envoy.Range{{Prefix: netip.MustParsePrefix("127.0.0.1/32"), FirstPort: 1, LastPort: 65535}}
	}
	if err := o.Apply(name); err != nil {
		t.Fatal(err)
	}
}

// Where bodies must not pass unread, those for paths that Sightline does not read get 403, but for those that the operator
// lets through; in whatever spelling.
func TestUnreadPaths(t *testing.T) {
	t.Parallel()
	w := start(t, 1, func(o *envoy.Options) { o.FailClosed, o.Pass = true, []string{"/v1/embeddings"} })
	w.runProduct(map[string]any{"on_unread": "refuse", "pass_unread": []string{"/v1/embeddings"},
		"models":  []any{map[string]any{"name": "m", "dir": absolute(t, modelDir)}},
		"workers": []any{map[string]any{"addr": w.workers[0].addr, "model": "m"}}})
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"POST", "/v1/embeddings", 200}, {"POST", "/v1%2Fembeddings", 200}, {"GET", "/version", 200}, {"DELETE", "/x", 200},
		{"POST", "/generate", 403}, {"PUT", "/generate", 403}, {"POST", "/%67enerate", 403}, {"POST", "//generate", 403},
		{"POST", "/v1/embeddings/x", 403},
		{"POST", "/", 403}, {"PATCH", "/v1/chat/completions", 403}, {"POST", "/inference/v1/generate?x", 403},
		{"POST", "/v1/responses/x/cancel", 200}, {"DELETE", "/v1/responses/x", 200}, {"POST", "/v1/responses/render", 403},
		{"POST", "/v1/responses/render/", 403}, {"POST", "/v1/responses/x/cancel/x", 403},
	} {
		if r := w.send(w.client, c.method, c.path, `{"rid":"theirs"}`, nil); r.err != nil || r.status != c.want {
			t.Errorf("%s %s: %v, status %d, want %d", c.method, c.path, r.err, r.status, c.want)
		}
	}
}
