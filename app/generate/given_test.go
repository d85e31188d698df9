package generate

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/serve"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// TestAsk: each engine's workers become a configuration that names no file, which is what init writes. Envoy's is the same whether workers
// are asked or not.
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
			o := Options{Listen: "127.0.0.1:9012", Canary: true}
			var said strings.Builder
			for _, one := range c.fleet {
				o.Workers = append(o.Workers, start(t, one).Addr())
			}
			cfg, text, err := Ask(t.Context(), o, &said)
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
				t.Errorf("%+v\n%s, want len(cfg.Models) == 1, cfg.Models[0].Dir == \"\", %q in said.String()", cfg.Models, &said, c.says)
			}
			init := o
			init.Out, init.Getenv = t.TempDir(), func(string) string { return "" }
			err = Run(t.Context(), init, io.Discard)
			written, _ := os.ReadFile(filepath.Join(init.Out, configFile))
			if err != nil || string(text) != string(written) {
				t.Errorf("serve --worker --print-config prints other than init writes, %v:\n%s\n%s, want no error, string(text) "+
					"== string(written)", err, text, written)
			}
			unasked, err := Envoy(o)
			if err != nil {
				t.Fatal(err)
			}
			a, errA := serve.EnvoyYAML(cfg, "", "")
			b, errB := serve.EnvoyYAML(unasked, "", "")
			if errA != nil || errB != nil || string(a) != string(b) || !strings.Contains(string(a), "9012") {
				t.Errorf("Envoy's configuration differs: %v, %v\n%s\n%s, want errA == nil, errB == nil, string(a) == string(b), "+
					"\"9012\" in string(a)", errA, errB, a, b)
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

// printed is what a server has printed since the last step.
type printed struct {
	mu   sync.Mutex
	text strings.Builder
}

func (p *printed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *printed) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// serveGiven serves given workers, which are asked every few milliseconds, and returns how that ends.
func serveGiven(ctx context.Context, o Options, said io.Writer) error {
	cfg, given, err := Given(o, said)
	if err != nil {
		return err
	}
	given.Again, given.Every, cfg.LogLevel, cfg.Drain = 20*time.Millisecond, 100*time.Millisecond, "error", time.Millisecond
	s, err := serve.Load(cfg)
	if err != nil {
		return err
	}
	defer s.Close()
	s.Given = given
	return s.Run(ctx)
}

// TestFollow: the first worker that answers is enough to begin; the others come when they answer, and one that is started again, with KV
// events or another model, is served as it is then.
func TestFollow(t *testing.T) {
	a, b := new(door), new(door)
	doorA, doorB := httptest.NewServer(a), httptest.NewServer(b)
	t.Cleanup(doorA.Close)
	t.Cleanup(doorB.Close)
	atA, atB := doorA.Listener.Addr().String(), doorB.Listener.Addr().String()
	said, page := new(printed), freeAddr(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- serveGiven(ctx, Options{Workers: []string{atA, atB}, Listen: "127.0.0.1:0", Admin: page}, said)
	}()
	step := func(what string, workers int, says, saysNot string) {
		t.Helper()
		rows := ""
		for end := time.Now().Add(2 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
			text, _ := lab.Get("http://" + page + "/workers")
			rows = string(text)
			if slices.IndexFunc(strings.Split(says, " and "), func(one string) bool { return !strings.Contains(said.String(), one) }) < 0 &&
				strings.Count(rows, `"name"`) == workers {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %s\n%s, want it in time", what, said, rows)
			}
		}
		if saysNot != "" && strings.Contains(said.String(), saysNot) {
			t.Errorf(`%s: %s, want saysNot == "" or no %q in said.String()`, what, said, saysNot)
		}
		said.mu.Lock()
		said.text.Reset()
		said.mu.Unlock()
	}
	step("nobody", 0, atA+" could not and "+atB+" could not", "")
	a.set(start(t, sim.Config{Model: "m"}))
	step("the first", 1, "serves m", "status 503") // that was said once
	b.set(start(t, sim.Config{Model: "m", Bare: true}))
	step("the second, without events", 2, atB+": the worker publishes no KV events", atA)
	b.set(start(t, sim.Config{Model: "m"}))
	step("the second, with events", 2, "KV events at", "publishes no")
	b.set(start(t, sim.Config{Model: "other"}))
	step("the second, with another model", 2, "serves other", "serves m")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
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
		err := serveGiven(t.Context(), Options{Workers: c.workers, Listen: "127.0.0.1:0", Admin: freeAddr(t)}, new(printed))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v (want %q)", name, err, c.want)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	said, o := new(printed), Options{Workers: []string{"127.0.0.1:1", at(locked)}, Listen: "127.0.0.1:0", Admin: freeAddr(t)}
	if err := serveGiven(ctx, o, said); err != nil || ctx.Err() == nil {
		t.Errorf("%v before it was stopped: 127.0.0.1:1 may come to answer\n%s, want no error, ctx.Err() != nil", err, said)
	}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	return lis.Addr().String()
}

// TestOneWorkerCostsNoOther: whatever a worker says of itself, the others keep their names, and their requests.
func TestOneWorkerCostsNoOther(t *testing.T) {
	served := func(names ...string) func(*rules.Facts) {
		return func(f *rules.Facts) {
			f.Served = nil
			for _, n := range names {
				id, parent, _ := strings.Cut(n, "<")
				f.Served = append(f.Served, rules.Served{ID: id, Parent: parent})
			}
		}
	}
	cases := map[string]func(*rules.Facts){
		"an adapter with their name": served("x", "m<x"),
		"an adapter with its own":    served("x", "x<x"),
		"an adapter that theirs has": served("x", "sql<x"),
		"names of two models":        served("n", "m"),
		"no release":                 func(f *rules.Facts) { f.Version = "main: x # y" },
		"a port beyond the last": func(f *rules.Facts) {
			f.Ranks, f.Events = 2, []rules.EventSource{{Pub: "tcp://10.0.0.9:65535"}, {}}
		},
		"a block size that no engine has":         func(f *rules.Facts) { f.BlockSize = 1 << 40 },
		"another engine":                          func(f *rules.Facts) { f.Engine = "sglang" },
		"a path that leads elsewhere, a revision": func(f *rules.Facts) { f.EngineModel, f.Revision = "../../etc", "../x: {" },
	}
	odd := []string{"${env:HOME}", "${file:/etc/hostname}", "null", "~", "yes", "1e3", "0x10", "- a", "a: b", "a #b", "[a]", "{a: b}",
		"*a",
		"&a b", "!t x", "%a", "@a", "`a", "'", "\"", "\\n", " a ", "a,b", ",", "]", "=", "|", ">", "2001-01-01", "1:30", "---", "é😀"}
	unread := []string{"$${", "${", "...", "? a", ".nan", "<<"} // that a configuration cannot have
	for _, name := range append(odd, unread...) {
		cases["the name "+name] = served(name, name+"-2")
	}
	for name, change := range cases {
		for at := range 2 {
			facts := make([]rules.Facts, 2)
			for i := range facts {
				facts[i] = rules.Facts{Addr: fmt.Sprintf("10.0.0.%d:8000", i), Engine: "vllm", Version: "0.32.0", BlockSize: 16, MaxModelLen: 4096,
					Served: []rules.Served{{ID: "m"}, {ID: "m-2"}, {ID: "sql", Parent: "m"}}}
			}
			change(&facts[at])
			facts[at].Changed = true
			models, workers, err := Fit(facts)
			other := facts[1-at].Addr
			m := slices.IndexFunc(models, func(m config.Model) bool { return m.Name == "m" && slices.Contains(m.Aliases, "m-2") })
			if m < 0 || !slices.ContainsFunc(workers, func(w config.Worker) bool {
				return w.Addr == other && w.Model == models[m].Name && w.Class == ""
			}) {
				t.Errorf(`%s, said lately by %d of two: models %+v, workers %+v, %v, want m >= 0, slices.ContainsFunc(workers, `+
					`func(w config.Worker) bool { return w.Addr == other && w.Model == models[m].Name && w.Class == "" })`,
					name, at, models, workers, err)
			}
		}
		for at := range 3 {
			var facts []rules.Facts
			for i := range 3 {
				f := rules.Facts{Addr: fmt.Sprintf("10.0.0.%d:8000", i), Engine: "vllm", Version: "0.32.0", BlockSize: 16, MaxModelLen: 4096,
					Served: []rules.Served{{ID: "m"}, {ID: "sql", Parent: "m"}}}
				if i == at {
					change(&f)
				}
				facts = append(facts, f)
			}
			models, workers, err := Fit(facts)
			for i, f := range facts {
				found := slices.ContainsFunc(workers, func(w config.Worker) bool {
					return w.Addr == f.Addr && (w.Model == "m" || w.Model == "")
				})
				if i != at && !found {
					t.Errorf("%s, at %d: of %s there is %+v, %v, want i == %v or found", name, at, f.Addr, workers, err, at)
				}
			}
			m := slices.IndexFunc(models, func(m config.Model) bool { return m.Name == "m" })
			if m < 0 || name != "an adapter with their name" && !slices.Contains(models[m].Adapters, "sql") {
				t.Errorf(`%s, at %d: %+v, %v, want m >= 0, name == "an adapter with their name" or `+
					`slices.Contains(models[m].Adapters, "sql")`, name, at, models, err)
			}
			n, is := strings.CutPrefix(name, "the name ")
			served := func(m config.Model) bool { return m.Name == n && slices.Equal(m.Aliases, []string{n + "-2"}) }
			if is && !slices.Contains(unread, n) && !slices.ContainsFunc(models, served) {
				t.Errorf("%s became %+v, %v, want !is or slices.Contains(unread, n) or slices.ContainsFunc(models, served)",
					name, models, err)
			}
		}
	}
}
