package generate

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sightline-router/sightline/internal/config"
	"github.com/sightline-router/sightline/internal/serve"
	"github.com/sightline-router/sightline/lab/sim"
)

// TestAsk: each engine's workers become a configuration that names no file, and Envoy's is the same whether workers are asked or not.
func TestAsk(t *testing.T) {
	for name, c := range map[string]struct {
		fleet  []sim.Config
		events []config.Events
		says   string
	}{
		"vLLM":         {[]sim.Config{{Model: "m"}, {Model: "m"}}, []config.Events{{Auto: true}, {Auto: true}}, ""},
		"SGLang":       {[]sim.Config{{Engine: sim.SGLang, Model: "m"}}, []config.Events{{Auto: true}}, ""},
		"TensorRT-LLM": {[]sim.Config{{Engine: sim.TRTLLM, Model: "m"}}, []config.Events{{HTTP: "http://W0"}}, "event_buffer_max_size"},
		"no events":    {[]sim.Config{{Model: "m", Bare: true}}, []config.Events{{}}, `--kv-events-config '{"enable_kv_cache_events":true`},
		"no events, of an SGLang": {[]sim.Config{{Engine: sim.SGLang, Model: "m", Bare: true}}, []config.Events{{}},
			"--kv-events-config"},
		"a vLLM that does not tell": {[]sim.Config{{Model: "m", Version: "0.30.0"}}, []config.Events{{}}, "--print-config"},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Listen: "127.0.0.1:9012"}
			var said strings.Builder
			for _, one := range c.fleet {
				o.Workers = append(o.Workers, start(t, one).Addr())
			}
			cfg, err := Ask(t.Context(), o, &said)
			if err != nil {
				t.Fatal(err)
			}
			for i, w := range cfg.Workers {
				want := c.events[i]
				want.HTTP = strings.ReplaceAll(want.HTTP, "W0", w.Addr)
				if w.Addr != o.Workers[i] || w.Events != want {
					t.Errorf("%+v, want events %+v", w, want)
				}
			}
			if len(cfg.Models) != 1 || cfg.Models[0].Dir != "" || !strings.Contains(said.String(), c.says) {
				t.Errorf("%+v\n%s", cfg.Models, &said)
			}
			unasked, err := Envoy(o)
			if err != nil {
				t.Fatal(err)
			}
			a, errA := serve.EnvoyYAML(cfg, "", "")
			b, errB := serve.EnvoyYAML(unasked, "", "")
			if errA != nil || errB != nil || string(a) != string(b) || !strings.Contains(string(a), "9012") {
				t.Errorf("Envoy's configuration differs: %v, %v\n%s\n%s", errA, errB, a, b)
			}
		})
	}
}

// door is an address at which a worker comes and goes.
type door struct {
	mu     sync.Mutex
	behind http.Handler // nil: 503
}

func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	behind := d.behind
	d.mu.Unlock()
	if behind == nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	behind.ServeHTTP(w, r)
}

func (d *door) set(w *sim.Worker) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.behind = httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: w.Addr()})
}

// TestFollow: the first worker that answers is enough to begin; the others come when they answer, and one that is started again, with KV
// events or another model, is served as it is then.
func TestFollow(t *testing.T) {
	a, b := new(door), new(door)
	doorA, doorB := httptest.NewServer(a), httptest.NewServer(b)
	t.Cleanup(doorA.Close)
	t.Cleanup(doorB.Close)
	var said strings.Builder
	d, list, err := fileless(Options{Workers: []string{doorA.Listener.Addr().String(), doorB.Listener.Addr().String()}}, &said)
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{drafter: d, list: list, told: make([]string, len(list)), every: time.Millisecond}
	step := func(what string, changes bool, workers int, says, saysNot string) {
		t.Helper()
		said.Reset()
		cfg, changed, err := f.round(t.Context())
		heard := 0
		for _, w := range cfg.Workers {
			if w.Events.Auto {
				heard++
			}
		}
		if err != nil || changed != changes || changed && (len(cfg.Workers) != workers || heard == 0) || !strings.Contains(said.String(), says) ||
			saysNot != "" && strings.Contains(said.String(), saysNot) {
			t.Errorf("%s: changed %v, %+v, %v\n%s", what, changed, cfg.Workers, err, &said)
		}
	}
	step("nobody", false, 0, "status 503", "")
	step("nobody, again", false, 0, "", "status 503") // said once
	a.set(start(t, sim.Config{Model: "m"}))
	step("the first", true, 1, "serves m", "status 503")
	b.set(start(t, sim.Config{Model: "m", Bare: true}))
	step("the second, without events", true, 2, doorB.Listener.Addr().String()+": KV events are off", doorA.Listener.Addr().String())
	step("the second, again", false, 2, "", "off")
	b.set(start(t, sim.Config{Model: "m"}))
	step("the second, with events", true, 2, "KV events at", "off")
	step("all is known", false, 2, "", "m")
	b.set(start(t, sim.Config{Model: "other"}))
	for f.rounds%allEvery != allEvery-1 {
		step("it is not asked yet", false, 2, "", "other")
	}
	step("the second, with another model", true, 2, "serves other", "serves m")
}

// TestFollowRefuses: what no waiting mends is an error, and a server that stops ends the wait.
func TestFollowRefuses(t *testing.T) {
	locked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"data":[{"id":"m","owned_by":"nvidia"}]}`))
	}))
	defer locked.Close()
	defer front.Close()
	at := func(s *httptest.Server) string { return s.Listener.Addr().String() }
	for name, c := range map[string]struct {
		workers []string
		want    string
	}{
		"a key":       {[]string{at(locked)}, "--api-key-file FILE"},
		"a front end": {[]string{at(front)}, "sightline init --dynamo DIR"},
		"a URL":       {[]string{"https://10.0.0.5:8000"}, "for https also --ca FILE"},
		"no port":     {[]string{"10.0.0.5"}, "want host:port"},
		"port 0":      {[]string{"10.0.0.5:0"}, "want host:port"},
		"a name":      {[]string{"localhost:8000"}, "a name, whose addresses may change (want ip:port"},
		"twice":       {[]string{"10.0.0.5:8000", "10.0.0.5:08000"}, "is given twice"},
	} {
		_, _, err := Follow(t.Context(), Options{Workers: c.workers}, &strings.Builder{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v (want %q)", name, err, c.want)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	var said strings.Builder
	if _, _, err := Follow(ctx, Options{Workers: []string{"127.0.0.1:1", at(locked)}}, &said); err == nil || ctx.Err() == nil {
		t.Errorf("%v before it was stopped: 127.0.0.1:1 may come to answer\n%s", err, &said)
	}
}
