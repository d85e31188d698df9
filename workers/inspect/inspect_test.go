package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/lab/sim"
)

// TestAsk: facts are read from simulated workers that answer like real ones, and missing ones are listed.
func TestAsk(t *testing.T) {
	prompt := func(context.Context, string, []byte) ([]sim.Prompt, error) {
		return []sim.Prompt{{Tokens: make([]uint32, 40)}}, nil
	}
	for name, c := range map[string]struct {
		cfg     sim.Config
		want    string // engine, release, model, block size, ranks, length, caching, publishing, sources, requests
		unknown string
		counts  string // before and after a canary
	}{
		"vllm": {sim.Config{Engine: sim.VLLM, Ranks: 2, Adapters: []sim.Adapter{{Name: "sql", Path: "/l"}}, BlockSize: 32},
			"vllm 0.32.0 /m 32 2 131040 true true 2 0", "[]", "<nil> true"},
		"vllm, bare": {sim.Config{Engine: sim.VLLM, Bare: true}, "vllm 0.32.0 /m 16 1 65520 true false 0 0", "[]", "<nil> false"},
		"vllm, old": {sim.Config{Engine: sim.VLLM, Version: "0.30.0"}, "vllm 0.30.0 /m 16 0 65520 true <nil> 0 0",
			"[events]", "<nil> true"},
		"sglang": {sim.Config{Engine: sim.SGLang, Ranks: 2, BlockSize: 8}, "sglang 0.5.23 /m 8 2 32760 true true 2 0",
			"[]", "true true"},
		"sglang, bare":     {sim.Config{Engine: sim.SGLang, Bare: true}, "sglang 0.5.23 /m 16 1 65520 true false 0 0", "[]", "false false"},
		"sglang, old":      {sim.Config{Engine: sim.SGLang, Version: "0.5.20"}, "sglang 0.5.20 /m 16 1 65520 true true 1 0", "[]", "true true"},
		"TensorRT-LLM":     {sim.Config{Engine: sim.TRTLLM}, "trtllm 1.3.0  16 0 0 <nil> <nil> 0 0", "[events]", "<nil> true"},
		"with its V2 pool": {sim.Config{Engine: sim.TRTLLMZMQ}, "trtllm 1.3.0  16 0 0 <nil> <nil> 0 0", "[events]", "<nil> true"},
	} {
		t.Run(name, func(t *testing.T) {
			c.cfg.Model, c.cfg.ServedName, c.cfg.Prompt = "/m", "m", prompt
			w, err := sim.New(c.cfg)
			if err != nil {
				t.Fatal(err)
			}
			w.Start()
			defer w.Close()
			client := rules.NewClient(time.Minute, nil)
			f, err := Ask(t.Context(), client, w.Addr())
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprintln(f.Engine, f.Version, f.EngineModel, f.BlockSize, f.Ranks, f.MaxModelLen, said(f.PrefixCaching), said(f.Publishes),
				len(f.Events), said(f.Requests))
			if got != c.want+"\n" || fmt.Sprint(lacking(&f)) != c.unknown || !f.Simulated || len(f.Served) != 1+len(c.cfg.Adapters) {
				t.Errorf("got  %swant %s\n%+v", got, c.want, f)
			}
			if c.cfg.Adapters != nil && f.Served[1] != (rules.Served{ID: "sql", Root: "/l", Parent: "m"}) {
				t.Errorf("adapter %+v", f.Served[1])
			}
			if len(f.Events) > 0 && (f.Events[0].Pub != w.EventsAddr() || f.Events[0].Replay != w.ReplayAddr()) {
				t.Errorf("events %+v, want %s and %s", f.Events[0], w.EventsAddr(), w.ReplayAddr())
			}
			if text, _ := json.Marshal(f); strings.Contains(string(text), "secret") {
				t.Error("a key was taken along")
			}
			before := said(f.CountsCached)
			if err := Canary(t.Context(), client, &f); err != nil || fmt.Sprint(before, said(f.CountsCached)) != c.counts {
				t.Errorf("counts cached tokens: %v, then %v, %v (want %s)", before, said(f.CountsCached), err, c.counts)
			}
		})
	}
}

func said[T any](v *T) any {
	if v == nil {
		return nil
	}
	return *v
}

func lacking(f *rules.Facts) (what []string) {
	for _, u := range f.Unknown {
		what = append(what, u.What)
	}
	slices.Sort(what)
	return what
}

// TestPostTLS: a worker that is asked in plain text and speaks TLS is named so.
func TestPostTLS(t *testing.T) {
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	defer srv.Close()
	if _, err := Post(t.Context(), rules.NewClient(time.Minute, nil), srv.Listener.Addr().String(), "/",
		[]byte("{}")); !errors.Is(err, rules.TLS) {
		t.Errorf("%v, want %v", err, rules.TLS)
	}
}

// TestHostile: whatever listens there, requests to it are bounded, and its answers are quoted nowhere.
func TestHostile(t *testing.T) {
	const list = `{"data":[{"id":"m","owned_by":"%s","root":"r"}]}`
	vllm := fmt.Sprintf(list, "vllm")
	for name, c := range map[string]struct {
		pages   map[string]string // status 200; others 404
		failed  bool
		unknown string
	}{
		"nothing":        {nil, true, "[]"},
		"no JSON":        {map[string]string{"/v1/models": "secret"}, true, "[]"},
		"no models":      {map[string]string{"/v1/models": `{"data":[]}`}, true, "[]"},
		"too long":       {map[string]string{"/v1/models": `{"data":[` + strings.Repeat(" ", 2<<20)}, true, "[]"},
		"a front end":    {map[string]string{"/v1/models": fmt.Sprintf(list, "nvidia")}, false, "[engine]"},
		"another engine": {map[string]string{"/v1/models": fmt.Sprintf(list, "secret")}, false, "[engine]"},
		"a name of escapes": {map[string]string{"/v1/models": `{"data":[{"id":"a\u001b[2J","owned_by":"vllm"}]}`},
			false, "[events requests served version]"},
		"models alone": {map[string]string{"/v1/models": vllm}, false, "[events requests version]"},
		"nonsense": {map[string]string{"/v1/models": vllm, "/version": `{"version":"secret"}`, "/kv_event_sources": "[]",
			"/metrics": `vllm:cache_config_info{block_size="-9",enable_prefix_caching="secret"} x`}, false, "[block_size events version]"},
		"a huge page": {map[string]string{"/v1/models": vllm, "/metrics": strings.Repeat("x", 17<<20)}, false, "[events requests version]"},
		"elsewhere": {map[string]string{"/v1/models": vllm, "/version": `{"version":"0.32.0"}`, "/metrics": "",
			"/kv_event_sources": `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://10.9.9.9:2222"}}`}, false, "[]"},
		"another service's port": {map[string]string{"/v1/models": vllm, "/version": `{"version":"0.32.0"}`, "/metrics": "",
			"/kv_event_sources": `{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:22"}}`}, false, "[events]"},
		"types": {map[string]string{"/v1/models": fmt.Sprintf(list, "sglang"), "/server_info": `{"page_size":"secret"}`}, false,
			"[requests settings version]"},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				page, ok := c.pages[r.URL.Path]
				if !ok {
					w.WriteHeader(http.StatusNotFound)
				}
				_, _ = w.Write([]byte(page))
			}))
			defer s.Close()
			f, err := Ask(t.Context(), rules.NewClient(time.Minute, nil), strings.TrimPrefix(s.URL, "http://"))
			if (err != nil) != c.failed || fmt.Sprint(lacking(&f)) != c.unknown {
				t.Errorf("%v, lacks %v (want %s)", err, f.Unknown, c.unknown)
			}
			f.Owner = ""
			if text := fmt.Sprint(err, f.EngineModel, f.Version, f.Served, f.PrefixCaching); strings.Contains(text, "secret") {
				t.Errorf("quoted: got %s, want no %q in it", text, "secret")
			}
			for _, e := range f.Events {
				if !strings.HasPrefix(e.Pub, "tcp://127.0.0.1:") {
					t.Errorf("it leads us to %s", e.Pub)
				}
			}
		})
	}
}
