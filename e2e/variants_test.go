package e2e

import (
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/lab/certs"
	"github.com/sightline-router/sightline/router"
)

// Every variant obeys the choice, goes on to the second one when the first is dead, and serves without Sightline.
func TestVariantsServe(t *testing.T) {
	t.Parallel()
	for _, name := range envoy.VariantNames() {
		t.Run(name, func(t *testing.T) {
			if name == "models" || name == "tls" || name == "ipv6" || name == "eds" || name == "fail_closed" {
				t.Skip("has a test of its own below")
			}
			if name == "token_usage" {
				needs140(t)
			}
			w := start(t, 3, func(o *envoy.Options) {
				if err := o.Apply(name); err != nil {
					t.Fatal(err)
				}
			})
			if r := w.post(chat(script{}), nil); r.err != nil || r.status != 200 && name != "full_duplex" {
				t.Fatalf("without Sightline: %v, status %d", r.err, r.status)
			}
			s := w.runSightline(extproc.Options{})
			long := strings.Repeat("x", 300_000)
			for _, addr := range w.addrs() {
				for _, c := range []*http.Client{w.client, w.h2} {
					body := chat(script{Targets: []string{addr}, Edit: "edited"}, `"user":"`+long+`EDITME"`)
					r := w.send(c, "POST", "/v1/chat/completions", body, nil)
					if r.err != nil || r.status != 200 || r.Worker != addr || r.Length != len(body) {
						t.Errorf("%v, status %d, worker %s got %d bytes; want %s, %d", r.err, r.status, r.Worker, r.Length, addr, len(body))
					}
				}
			}
			w.workers[0].kill()
			targets := []string{w.workers[0].addr, w.workers[1].addr}
			if r := decided(func() reply { return w.post(chat(script{Targets: targets}), nil) }); r.err != nil || r.Worker != targets[1] {
				t.Errorf("first choice dead: %v, status %d from %s, want %s", r.err, r.status, r.Worker, targets[1])
			}
			s.stop()
			eventually(t, "requests pass without Sightline", func() bool {
				r := w.post(chat(script{}), nil)
				return r.err == nil && r.status == 200 && r.id() == ""
			})
		})
	}
}

// Of two Sightlines each decides, the other one goes on when one ends, and each hears of every request that was decided, so also of its
// own: Envoy's log stream of a thread would go to one of them alone.
func TestTwoSightlines(t *testing.T) {
	t.Parallel()
	w := start(t, 2, func(o *envoy.Options) { o.Sightline += "," + freeAddr(t) })
	both := strings.Split(w.sightline, ",")
	var s [2]*sightline
	run := func(i int) {
		w.sightline = both[i]
		s[i] = w.runSightline(extproc.Options{})
	}
	ended := func(i int, id string) bool {
		said := s[i].of(id)
		return len(said) > 0 && said[len(said)-1].Phase == router.Ended
	}
	ask := func() string {
		t.Helper()
		r := decided(func() reply { return w.post(chat(script{Targets: w.addrs()[:1]}), nil) })
		if r.err != nil || r.Worker != w.addrs()[0] {
			t.Fatalf("got %v, status %d from %s, want an answer of %s", r.err, r.status, r.Worker, w.addrs()[0])
		}
		return r.id()
	}
	run(0) // alone
	run(1)
	for i := range s { // what Envoy logs while it has not connected is lost
		eventually(t, "the log comes", func() bool { id := ask(); time.Sleep(50 * time.Millisecond); return ended(i, id) })
	}
	for range 20 {
		id := ask()
		eventually(t, "both hear how it ended", func() bool { return ended(0, id) && ended(1, id) })
	}
	s[0].stop()
	w.waitDecided()
	run(0)
	s[1].stop()
	w.waitDecided()
}

// The form for an old release: the choice is obeyed, and a request without one goes anywhere.
func TestOldRelease(t *testing.T) {
	w := start(t, 2, func(o *envoy.Options) { o.Version = "1.36" })
	s := w.runSightline(extproc.Options{})
	for _, addr := range w.addrs() {
		if r := w.post(chat(script{Targets: []string{addr}}), nil); r.err != nil || r.Worker != addr {
			t.Errorf("%v, status %d from %s, want %s", r.err, r.status, r.Worker, addr)
		}
	}
	s.stop()
	if r := w.post(chat(script{}), nil); r.err != nil || r.status != 200 {
		t.Errorf("without Sightline: got %v, status %d, want no error, 200", r.err, r.status)
	}
}

// Several models: the route alone keeps a request with its model, with Sightline up and down; no worker, no answer.
func TestModelsStayApart(t *testing.T) {
	w := start(t, 3, func(o *envoy.Options) {
		o.Pools = []envoy.Pool{
			{Name: "a", Workers: o.Workers[:1], Path: "/a"},
			{Name: "b", Workers: o.Workers[1:2], Host: "b.example.com"},
			{Name: "c", Workers: o.Workers[2:], Header: "X-Model=c"},
			{Name: "none", Path: "/none"},
		}
	})
	routes := []struct {
		path, host string
		header     http.Header
	}{{path: "/a/v1/chat/completions"}, {path: "/v1/chat/completions", host: "b.example.com"},
		{path: "/v1/chat/completions", header: http.Header{"X-Model": {"c"}}}}
	ask := func(i int, body string) reply {
		req, err := http.NewRequest("POST", w.url+routes[i].path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("content-type", "application/json")
		for k, v := range routes[i].header {
			req.Header[k] = v
		}
		if routes[i].host != "" {
			req.Host = routes[i].host + ":10000"
		}
		return do(w.client, req)
	}
	check := func(up bool) {
		t.Helper()
		for i := range routes {
			addr := w.workers[i].addr
			var r reply
			eventually(t, "the route's worker answers", func() bool {
				r = ask(i, chat(script{Targets: []string{addr}}))
				return r.err == nil && (r.id() != "") == up
			})
			if r.status != 200 || r.Worker != addr || r.Path != "/v1/chat/completions" {
				t.Errorf("route %d, Sightline up %t: status %d from %s %s, want %s", i, up, r.status, r.Worker, r.Path, addr)
			}
		}
		for path, want := range map[string]int{"/none/v1/chat/completions": 503, "/v1/chat/completions": 404} {
			if r := w.send(w.client, "POST", path, chat(script{}), nil); r.status != want {
				t.Errorf("%s, Sightline up %t: status %d, want %d", path, up, r.status, want)
			}
		}
	}
	check(false)
	server, err := extproc.New(decideAsTold, func(router.Outcome) {}, extproc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	lis, err := extproc.Listen(w.sightline)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(t.Context(), lis) }()
	check(true)
	w.workers[1].kill() // its requests go to nobody else
	eventually(t, "503 for a model whose worker is dead", func() bool { return ask(1, chat(script{})).status == 503 })
}

// Sightline tells Envoy the workers; the list outlives it, and a change arrives.
func TestWorkersByEDS(t *testing.T) {
	t.Parallel()
	w := start(t, 2, func(o *envoy.Options) {
		o.EDS = true
		o.Allow = []envoy.Range{{Prefix: netip.MustParsePrefix("127.0.0.1/32"), FirstPort: 1, LastPort: 65535}}
	})
	all := w.addrs()
	roster := extproc.NewRoster()
	roster.Set([]extproc.Endpoint{{Addr: all[0], Model: "m"}})
	s := w.runSightline(extproc.Options{Roster: roster})
	from := func() reply { return w.send(w.client, "GET", "/v1/models", "", nil) }
	eventually(t, "the first worker is known", func() bool { return from().Worker == all[0] })
	roster.Set([]extproc.Endpoint{{Addr: all[1], Model: "m"}})
	eventually(t, "the other worker is known", func() bool { return from().Worker == all[1] })
	s.stop()
	if r := from(); r.Worker != all[1] {
		t.Errorf("Sightline away: status %d from %q, want %s", r.status, r.Worker, all[1])
	}
}

// Mutual TLS and a token: Envoy and Sightline know each other, and decisions, access log and the workers that Sightline
// tells of go through. A Sightline that another CA signed is not asked; of one that wants another token there is no
// decision.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, other := certs.NewCA(t, dir, "good"), certs.NewCA(t, dir, "other")
	mine, known, stranger := good.Sign(t, "envoy", time.Hour), good.Sign(t, "sightline", time.Hour), other.Sign(t, "stranger", time.Hour)
	const token, renewed = "0123456789abcdef-of-envoy", "0123456789abcdef-renewed"
	for name, c := range map[string]struct {
		server certs.Signed
		tokens string
	}{"known": {known, renewed + "\n" + token + "\n"}, "of another CA": {stranger, token}, "another token": {known, renewed}} {
		t.Run(name, func(t *testing.T) {
			theirs, ours := filepath.Join(t.TempDir(), "envoy"), filepath.Join(t.TempDir(), "sightline")
			for file, text := range map[string]string{theirs: token, ours: c.tokens} {
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			w := start(t, 1, func(o *envoy.Options) {
				o.Sightline = freeAddr(t)
				o.SightlineTLS = &envoy.TLS{CA: good.File, Cert: mine.Cert, Key: mine.Key}
				o.SightlineTokenFile = theirs
			})
			under, err := (&secure.Listener{Cert: c.server.Cert, Key: c.server.Key, ClientCA: good.File}).Config(zap.NewNop(), "h2")
			if err != nil {
				t.Fatal(err)
			}
			tokens, err := secure.OpenTokens(ours, zap.NewNop())
			if err != nil {
				t.Fatal(err)
			}
			var started, ended atomic.Int64
			s, err := extproc.New(decideAsTold, func(o router.Outcome) {
				switch o.Phase {
				case router.Started:
					started.Add(1)
				case router.Ended:
					ended.Add(1)
				}
			}, extproc.Options{TLS: under, Admit: tokens.Admit})
			if err != nil {
				t.Fatal(err)
			}
			lis, err := extproc.Listen(w.sightline)
			if err != nil {
				t.Fatal(err)
			}
			go func() { _ = s.Serve(t.Context(), lis) }()
			switch name {
			case "known":
				w.waitDecided()
				eventually(t, "the access log comes", func() bool { return started.Load() > 0 && ended.Load() > 0 })
				return
			case "of another CA":
				eventually(t, "Envoy refuses the certificate", func() bool { return w.stat("cluster.sightline.ssl.fail_verify_error") > 0 })
			default: // health needs no token
				eventually(t, "Envoy takes Sightline as well", func() bool { return w.stat("cluster.sightline.membership_healthy") > 0 })
			}
			if r := w.post(chat(script{Targets: w.addrs()}), nil); r.status != 200 || r.id() != "" {
				t.Errorf("status %d, decision %q; want 200 without one", r.status, r.id())
			}
		})
	}
}
