package e2e

import (
	"context"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// Tenants ask the same, and each finds its own blocks alone, exactly as predicted: a worker that keys its cache by cache_salt is sent
// the tenant's, whatever a client says of its own. The header, which here the client sends in a filter's place, stays behind.
func TestTenants(t *testing.T) {
	var mu sync.Mutex
	var salt gjson.Result
	l := startLab(t, func(o *lab.Options) {
		o.Workers = 1
		o.Config = func(keys map[string]any) { keys["tenants"] = map[string]any{"header": "X-Tenant"} }
		o.Sim = func(_ int, c *sim.Config) {
			read := c.Prompt
			c.Prompt = func(ctx context.Context, path string, body []byte) ([]sim.Prompt, error) {
				mu.Lock()
				defer mu.Unlock()
				salt = gjson.GetBytes(body, "cache_salt")
				return read(ctx, path, body)
			}
		}
	})
	photo := dataURL(photo(5))
	ask := func(header http.Header, own string) (result, string) {
		t.Helper()
		body := map[string]any{"messages": []any{map[string]any{"role": "user", "content": []any{
			map[string]any{"type": "image_url", "image_url": map[string]any{"url": photo}},
			map[string]any{"type": "text", "text": strings.Repeat("What is in this picture? ", 30)}}}}}
		if own != "" {
			body["cache_salt"] = own
		}
		got := post(t, l, body, header)
		if got.status != http.StatusOK {
			t.Fatalf("got %d %s, want %d", got.status, got.body, http.StatusOK)
		}
		quiet(t, l)
		mu.Lock()
		defer mu.Unlock()
		return got, salt.Str
	}
	a, b := http.Header{"X-Tenant": {"ann"}}, http.Header{"X-Tenant": {"bob"}}
	first, saltOfA := ask(a, "")
	held := first.prompt / 16 * 16
	if first.cached != 0 || !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(saltOfA) {
		t.Errorf("first: got %d cached, salt %q; want 0 and 32 hex digits",
			first.cached, saltOfA)
	}
	blocks := held
	for _, c := range []struct {
		who    string
		header http.Header
		own    string
		same   bool // as A
		cached int
	}{
		{"A again", a, "", true, held},
		{"B", b, "", false, 0},
		{"B, with A's salt", b, saltOfA, false, held},
		{"nobody, with A's salt", nil, saltOfA, false, 0},
		{"A, with another salt", a, "mine", true, held},
	} {
		awaitExact(t, l, 0, blocks)
		got, salt := ask(c.header, c.own)
		if c.cached == 0 {
			blocks += held
		}
		if got.cached != c.cached || (salt == saltOfA) != c.same || c.header == nil && salt != "" {
			t.Errorf("%s: %d cached, want %d; salt %q, A's is %q", c.who, got.cached, c.cached, salt, saltOfA)
		}
		if d := lastDecision(t, l); d.Get("cached_tokens").Int() != int64(c.cached) || d.Get("reported_cached_tokens").Int() != int64(c.cached) {
			t.Errorf("%s: predicted otherwise: %s", c.who, d)
		}
	}
}

// What one tenant's requests teach is not known to another one's, though they ask the same, of a model that has no files.
func TestTenantsTeachThemselves(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	salts := map[string]bool{}
	l := startLab(t, func(o *lab.Options) {
		o.Workers = 1
		o.Config = func(keys map[string]any) {
			keys["tenants"], keys["fixed"] = map[string]any{"header": "X-Tenant"}, unprobed()
			keys["models"] = []any{map[string]any{"name": lab.ModelName}}
		}
		o.Front = func(o *envoy.Options) { o.TokenUsage = true }
		o.Sim = func(_ int, c *sim.Config) {
			read := c.Prompt
			c.Prompt = func(ctx context.Context, path string, body []byte) ([]sim.Prompt, error) {
				mu.Lock()
				salts[gjson.GetBytes(body, "cache_salt").Str] = true
				mu.Unlock()
				return read(ctx, path, body)
			}
		}
	})
	taught := 0.0
	for i, c := range []struct {
		who, own string
		learned  bool
		cached   bool
	}{{"ann", "", false, false}, {"ann", "", true, true}, {"bob", "", false, false}, {"bob", "", true, true},
		{"bob", "ann", true, true}, // his own salt, as always
		{"", "", false, false}, {"ann", "", true, true}} {
		body := map[string]any{"messages": []any{map[string]any{"role": "user", "content": []any{
			map[string]any{"type": "image_url", "image_url": map[string]any{"url": dataURL(photo(5))}},
			map[string]any{"type": "text", "text": strings.Repeat("What is in this picture? ", 30)}}}}}
		if c.own != "" {
			body["cache_salt"] = c.own
		}
		header := http.Header{}
		if c.who != "" {
			header.Set("X-Tenant", c.who)
		}
		r := post(t, l, body, header)
		d := lastDecision(t, l)
		known := int(d.Get("cached_tokens").Int())
		if r.status != http.StatusOK || (d.Get("reason").Str == "learned") != c.learned || (known > 0) != c.learned ||
			(r.cached > 0) != c.cached || c.learned && known != r.cached {
			t.Errorf("%d, %q with salt %q: %d, %d cached, predicted %s", i, c.who, c.own, r.status, r.cached, d)
		}
		if !c.cached {
			taught++
			eventually(t, "it is learned", func() bool { return metric(t, l, "sightline_learned_requests_total", `"learned"`) == taught })
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(salts) != 3 {
		t.Errorf("%d salts reached the worker, want one for each tenant and none for nobody", len(salts))
	}
}

// Where a tenant is required, and where it could not be kept apart, a client gets an answer of ours.
func TestTenantRequired(t *testing.T) {
	t.Parallel()
	l := startLab(t, func(o *lab.Options) {
		o.Workers = 1
		o.Config = func(keys map[string]any) { keys["tenants"] = map[string]any{"header": "x-tenant", "required": true} }
	})
	for _, c := range []struct {
		path   string
		header []string
		status int
	}{
		{"/v1/chat/completions", []string{"ann"}, 200},
		{"/v1/chat/completions", nil, 403},
		{"/v1/chat/completions", []string{""}, 403},
		{"/v1/chat/completions", []string{"ann", "bob"}, 400},
		{"/v1/messages", []string{"ann"}, 403},
	} {
		req, err := http.NewRequest(http.MethodPost, l.URL+c.path, strings.NewReader(`{"model": "`+lab.ModelName+
			`", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header["Content-Type"], req.Header["X-Tenant"] = []string{"application/json"}, c.header
		resp, err := l.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.status {
			t.Errorf("%s %q: %d, want %d", c.path, c.header, resp.StatusCode, c.status)
		}
	}
}
