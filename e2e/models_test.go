package e2e

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab"
)

// TestModelsThatDoNotLoad checks that one model's files cost only its own requests: serve starts, the other model is read exactly,
// and each decision says what is missing. `serve --check` refuses the same configuration. It also checks that a request without a
// model, which would be a guess among several, is refused in the form of each API.
func TestModelsThatDoNotLoad(t *testing.T) {
	t.Parallel()
	good := absolute(t, modelDir)
	dir := func(change map[string]string) string {
		out := t.TempDir()
		for _, name := range []string{"config.json", "preprocessor_config.json", "tokenizer.json", "tokenizer_config.json"} {
			text, changed := change[name]
			if !changed {
				text = string(must(os.ReadFile(filepath.Join(good, name))))
			}
			if err := os.WriteFile(filepath.Join(out, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if text := change["chat_template.jinja"]; text != "" {
			if err := os.WriteFile(filepath.Join(out, "chat_template.jinja"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return out
	}
	cache := t.TempDir()
	if err := os.MkdirAll(filepath.Join(cache, "hub", "models--o--m", "snapshots"), 0o700); err != nil {
		t.Fatal(err)
	}
	var models, workers []any
	var addrs []string
	const noFiles, noTemplate = "model whose directory does not load", "chat template that does not load here"
	const noFeature = "chat template that uses a part of Jinja which does not run here"
	all := map[string]struct {
		keys map[string]any
		why  string
	}{
		"good":          {map[string]any{"dir": good}, "no block held"},
		"template":      {map[string]any{"dir": dir(map[string]string{"chat_template.jinja": "{% include 'other' %}"})}, noFeature},
		"half of one":   {map[string]any{"dir": dir(map[string]string{"chat_template.jinja": "{{ messages"})}, noTemplate},
		"its own":       {map[string]any{"dir": good, "chat_template": "/none/of/this.jinja"}, noTemplate},
		"tokenizer":     {map[string]any{"dir": dir(map[string]string{"tokenizer.json": "{"})}, noFiles},
		"configuration": {map[string]any{"dir": dir(map[string]string{"config.json": "{"})}, noFiles},
		"images": {map[string]any{"dir": dir(map[string]string{"preprocessor_config.json": "{",
			"chat_template.jinja": "{{ messages[0].content }}"})}, "no block held"},
		"gone":       {map[string]any{"dir": "/none/of/this"}, noFiles},
		"empty":      {map[string]any{"dir": t.TempDir()}, noFiles},
		"a file":     {map[string]any{"dir": filepath.Join(good, "config.json")}, noFiles},
		"cache":      {map[string]any{"dir": cache, "engine_model": "o/other"}, noFiles},
		"of a class": {map[string]any{"dir": good, "classes": []any{map[string]any{"name": "b", "dir": "/none/of/this"}}}, "no block held"},
	}
	for name, m := range all {
		s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.Header().Set("x-served", name) }))
		t.Cleanup(s.Close)
		addrs = append(addrs, strings.TrimPrefix(s.URL, "http://"))
		m.keys["name"] = name
		models = append(models, m.keys)
		workers = append(workers, map[string]any{"addr": addrs[len(addrs)-1], "model": name})
	}
	w := start(t, 0, func(o *envoy.Options) { o.Workers = addrs })
	admin := freeAddr(t)
	w.runProduct(map[string]any{"admin": admin, "models": models, "workers": workers, "fixed": unprobed("health_every", 0, "load_every", 0)})

	last := func() gjson.Result {
		return gjson.ParseBytes(must(lab.Get("http://" + admin + "/decisions?n=1"))).Get("0")
	}
	const hello = `"messages":[{"role":"user","content":"hello"}]}`
	for name, m := range all {
		r := w.send(w.client, "POST", "/v1/chat/completions", `{"model":"`+name+`",`+hello, nil)
		if d := last(); r.status != 200 || r.header.Get("x-served") != name || d.Get("why").Str != m.why ||
			(d.Get("prompt_tokens").Int() > 0) != (m.why == "no block held") {
			t.Errorf("%s: status %d from %s, decided %s", name, r.status, r.header.Get("x-served"), d.Raw)
		}
	}
	r := w.send(w.client, "POST", "/v1/completions", `{"model":"template","prompt":"hello"}`, nil)
	if d := last(); r.status != 200 || d.Get("prompt_tokens").Int() == 0 {
		t.Errorf("a text needs no template: got status %d, decision %s; want 200, with its tokens", r.status, d.Raw)
	}

	for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"} {
		r := w.send(w.client, "POST", path, `{"max_tokens":1,`+hello, nil)
		said := gjson.ParseBytes(r.body)
		anthropic := path == "/v1/messages"
		kind := map[bool]string{false: "invalid_request_error", true: "not_found_error"}[anthropic]
		if r.status != 404 || said.Get("error.type").Str != kind || (said.Get("type").Str == "error") != anthropic ||
			!strings.Contains(said.Get("error.message").Str, "names no model") {
			t.Errorf("%s without a model: %d %s", path, r.status, r.body)
		}
	}
}
