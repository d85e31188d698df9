package admin

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/media/fetch"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/report"
	"github.com/sightline-router/sightline/workers/fleet"
	"github.com/sightline-router/sightline/workers/probe"
)

// TestPages: the pages of a router that has taken two decisions, for one of which the worker reported another count than predicted.
func TestPages(t *testing.T) {
	fl := fleet.New(nil)
	fl.Set([]*fleet.Worker{fleet.NewWorker("gpu-a", netip.MustParseAddrPort("10.0.0.5:8000"), "m", 0, func(int) indexer.SlotID { return 0 })})
	rt := router.New(router.Options{Fleet: fl, Index: indexer.New(indexer.Options{})})
	for i, id := range []string{"first", "second"} {
		d := rt.Decide(t.Context(), &router.Request{ID: id, Path: "/v1/chat/completions", Body: [][]byte{[]byte(`{"model":"<b>none</b>"}`)}})
		if len(d.Targets) != 1 || d.Reason != router.Load {
			t.Fatalf("decision %q: %+v, want len(d.Targets) == 1, d.Reason == router.Load", id, d)
		}
		rt.Observe(router.Outcome{ID: id, Phase: router.Ended, Addr: "10.0.0.5:8000", Code: 200, CachedTokens: 16 * i, PromptTokens: 64})
	}
	var ready, broken error
	asked, totals := "", report.New("0%", time.Unix(0, 0))
	totals.Add(report.Request{ID: "second", Arm: report.Steered, Model: "m", OK: true, Prompt: 64, Cached: 16, Accounted: 64,
		Uncached: account.Sums{account.Changed: 48}, Changed: &account.Change{Part: "the system text", Token: 17, Kind: "a time of day"},
	}, time.Now())
	srv := httptest.NewServer(Handler(t.Context(), State{
		Access: Access{Token: func() string {
			return "a-token-of-tests"
		}, Loopback: true}, QueryLimits: QueryLimits{MaxBody: 1 << 10, Budget: time.Second}, Version: "v0 <i>", Router: rt,
		Gatherer: prometheus.NewRegistry(), Ready: func() (string, error) { return "all is known", ready },
		Reload: func() (string, error) { return "", broken }, Problems: func(now time.Time) []findings.Finding {
			return []findings.Finding{{Code: "SL0501", Severity: "error", What: "<bad>", Since: now}}
		},
		Workers: func() []findings.Worker {
			used := 0.25
			return []findings.Worker{
				{Name: "gpu-a", Addr: "10.0.0.5:8000", Rank: -1, Blocks: 7, Events: "live", Report: &findings.LoadReport{Usage: &used}},
				{Name: "gpu-b", Inflight: 3, Report: &findings.LoadReport{Others: 2, Age: "700ms"}},
			}
		},
		Others: func() (int, time.Duration) { return 2, 310 * time.Millisecond },
		Report: ofOne(totals),
		Resync: func(worker string) int { asked = worker; return strings.Count(worker, "gpu-a") },
		Blocks: func(worker string, rank int) ([]indexer.Block, error) {
			if worker != "gpu-a" || rank != 1 {
				return nil, errors.New("no such worker")
			}
			return []indexer.Block{{Local: 10, Parent: -1}, {Local: 11, EngineHash: 7, Copies: [indexer.Tiers]uint8{1, 2}}}, nil
		},
	}))
	defer srv.Close()
	get := func(method, path string, want int) string {
		t.Helper()
		req, err := http.NewRequest(method, srv.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if method == "POST" {
			req.SetBasicAuth("anyone", "a-token-of-tests")
		}
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != want {
			t.Errorf("%s %s: status %d, want %d (%v)", method, path, resp.StatusCode, want, err)
		}
		return string(text)
	}
	for path, want := range map[string]string{
		"/status":                                  `"requests":0,"failed":0`,
		"/workers":                                 `"state":"live","bad":0,"recent":{"requests":2,"prompt_tokens":0,"cached_tokens":16}`,
		"/decisions?worker=gpu-a&filter=inexact":   `"id":"first"`,
		"/decisions?worker=gpu-b":                  "[]\n",
		"/decisions?filter=failed":                 "[]\n",
		"/decisions?lost=kept-short":               "[]\n",
		"/decisions?model=x":                       "[]\n",
		"/decisions?since=2999-01-02T15:04:05.01Z": "[]\n",
		"/decisions?n=-1":                          "[]\n",
	} {
		if got := get("GET", path, http.StatusOK); !strings.Contains(got, want) || strings.Contains(got, "null") {
			t.Errorf("%s: got %s, want %s and no null", path, got, want)
		}
	}
	for _, path := range []string{"/decisions?filter=nonsense", "/decisions?lost=nonsense", "/decisions?since=nonsense"} {
		get("GET", path, http.StatusBadRequest)
	}

	page := get("GET", "/", 200)
	for _, want := range []string{"gpu-a", "10.0.0.5:8000", `data-l="KV cache">25 %<`,
		`data-l="in flight">3 <small>2 from elsewhere, 700ms ago<`,
		`<b class="warn">1 <i>of 2</i></b>predictions equal what workers report`, "<b>100 %</b> load",
		"model unknown: “&lt;b&gt;none&lt;/b&gt;”", "v0 &lt;i&gt;", "<b>&lt;bad&gt;</b>",
		"shared with 2 other replicas; last messages at most 0.4 s old",
		`1 requests, 48 tokens; the last one">75.0 %</a> a time of day at token 17 of the system text of model m`, "</html>"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q, want it in page", want)
		}
	}
	if strings.Contains(page, "none</b>") {
		t.Error(`the page shows what a client wrote as its own, want no "none</b>" in page`)
	}
	var last []router.Recent
	if err := json.Unmarshal([]byte(get("GET", "/decisions?n=1", 200)), &last); err != nil || len(last) != 1 ||
		last[0].ID != "second" || last[0].Reported != 16 {
		t.Errorf(`/decisions?n=1: %+v (%v), want no error, len(last) == 1, last[0].ID == "second", last[0].Reported == 16`, last, err)
	}
	var one router.Recent
	if err := json.Unmarshal([]byte(get("GET", "/decisions?id=first", 200)), &one); err != nil || one.Reported != 0 ||
		one.Used != "10.0.0.5:8000" {
		t.Errorf(`/decisions?id=first: %+v (%v), want no error, one.Reported == 0, one.Used == "10.0.0.5:8000"`, one, err)
	}
	get("GET", "/decisions?id=third", 404)
	for _, seconds := range []string{"61", "1e9", "NaN", "Inf"} {
		get("GET", "/debug/pprof/trace?seconds="+seconds, 400)
	}
	var unserved []string
	if err := json.Unmarshal([]byte(get("GET", "/unserved", 200)), &unserved); err != nil || len(unserved) != 1 ||
		unserved[0] != "<b>none</b>" {
		t.Errorf("/unserved: got %q (%v), want <b>none</b>", unserved, err)
	}

	get("GET", "/healthz", 200)
	if s := get("GET", "/readyz", 200); s != "ready: all is known\n" {
		t.Errorf("/readyz: got %q, want \"ready: all is known\"", s)
	}
	ready = errors.New("no workers yet")
	if s := get("GET", "/readyz", 503); !strings.Contains(s, "no workers yet") {
		t.Errorf("/readyz: got %q, want \"no workers yet\" in it", s)
	}
	get("POST", "/workers/resync?worker=gpu-a", 202)
	if asked != "gpu-a" {
		t.Errorf("resync: got %q, want gpu-a", asked)
	}
	get("POST", "/workers/resync?worker=gpu-z", 404)
	get("GET", "/workers/resync?worker=gpu-a", 405)
	if s := get("POST", "/reload", 200); s != "taken up\n" {
		t.Errorf("/reload says %q, want s == \"taken up\\n\"", s)
	}
	broken = errors.New("models: none")
	if s := get("POST", "/reload", 422); s != "models: none\n" {
		t.Errorf("/reload says %q, want s == \"models: none\\n\"", s)
	}
	if s := get("GET", "/index?worker=gpu-a&rank=1",
		200); s != `{"block":0,"parent":-1,"place":0,"local_hash":"000000000000000a","engine_hash":"0000000000000000","tiers":[]}
{"block":1,"parent":0,"place":1,"local_hash":"000000000000000b","engine_hash":"0000000000000007","tiers":["gpu","cpu"]}
` {
		t.Errorf("/index: got %q, want the two blocks", s)
	}
	if s := get("POST", "/v1/route?path=/v1/completions", 400); !strings.Contains(s, "JSON") { // no body
		t.Errorf("/v1/route: got %q, want a word about JSON", s)
	}
	get("GET", "/explain?id=second", 200)
	get("GET", "/explain?id=third", 404)
	get("GET", "/index?worker=gpu-a&rank=x", 400)
	get("GET", "/index?worker=gpu-z", 404)
	get("GET", "/probes", 404) // no probes are made
	get("GET", "/elsewhere", 404)
}

// TestEmptyLists: no endpoint of the source answers with null, neither while there is nothing to tell nor after a request without a worker.
func TestEmptyLists(t *testing.T) {
	source, err := os.ReadFile("admin.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, asked := range []bool{false, true} {
		s := State{Access: Access{Loopback: true},
			Router:   router.New(router.Options{Fleet: fleet.New(nil), Index: indexer.New(indexer.Options{})}),
			Gatherer: prometheus.NewRegistry(), Ready: func() (string, error) { return "", nil }, Workers: func() []findings.Worker { return nil },
			Problems: func(time.Time) []findings.Finding { return nil }, Hosts: func() []fetch.HostState { return nil },
			Audit: audit.New(audit.Options{}), Probe: probe.New(probe.Options{}), Report: ofOne(report.New("100%", time.Unix(0, 0))),
			Blocks: func(string, int) ([]indexer.Block, error) { return nil, nil }}
		if asked {
			s.Router.Decide(t.Context(), &router.Request{ID: "one", Path: "/v1/chat/completions", Body: [][]byte{[]byte(`{"messages":[]}`)}})
			s.Probe = probe.New(probe.Options{Workers: []probe.Worker{{Name: "a"}}})
		}
		h, n := Handler(t.Context(), s), 0
		for _, m := range regexp.MustCompile(`"GET (/[a-z]+)"`).FindAllStringSubmatch(string(source), -1) {
			w := httptest.NewRecorder()
			if m[1] == "/events" { // it does not end
				continue
			}
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1:9903"+m[1]+"?id=one", nil))
			n++
			if strings.Contains(w.Body.String(), "null") {
				t.Errorf("%s, asked %v: got %s, want no null", m[1], asked, w.Body)
			}
		}
		if n < 12 {
			t.Errorf("got %d endpoints in admin.go, want all", n)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1:9903/decisions?n=0", nil))
		if w.Body.String() != "[]\n" {
			t.Errorf("/decisions?n=0: got %s, want []", w.Body)
		}
	}
}

// TestAskingIsBounded: the size of a body and the number read in parallel are bounded.
func TestAskingIsBounded(t *testing.T) {
	rt := router.New(router.Options{Fleet: fleet.New(nil), Index: indexer.New(indexer.Options{})})
	counted := ""
	h := Handler(t.Context(), State{NoRoom: func(what string) {
		counted += what
	}, Access: Access{Token: func() string {
		return "a-token-of-tests"
	}, Loopback: true}, QueryLimits: QueryLimits{MaxBody: 100, Budget: time.Second}, Router: rt, Gatherer: prometheus.NewRegistry()})
	post := func(path string, body io.Reader) int {
		r := httptest.NewRequest("POST", "http://127.0.0.1:9903"+path, body)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded") // as with curl -d
		r.SetBasicAuth("anyone", "a-token-of-tests")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	for _, path := range []string{"/v1/route", "/v1/route?book=true", "/explain"} {
		if got := post(path, strings.NewReader(strings.Repeat(" ", 101))); got != http.StatusRequestEntityTooLarge {
			t.Errorf("%s with a body that is too large: got %d, want 413", path, got)
		}
	}
	if got := post("/v1/route", strings.NewReader(`{"model":"m","messages":[]}`)); got != http.StatusServiceUnavailable {
		t.Errorf("without workers: got %d, want 503", got)
	}
	var ends []*io.PipeWriter
	done := make(chan int)
	for range maxQueries {
		read, write := io.Pipe()
		ends = append(ends, write)
		go func() { done <- post("/explain", read) }()
		_, _ = io.WriteString(write, "{") // it is being read
	}
	if got := post("/explain", strings.NewReader("{}")); got != http.StatusServiceUnavailable || counted != "asked" {
		t.Errorf("with %d bodies on their way: got %d, counted %q, want 503 and asked", maxQueries, got, counted)
	}
	for _, w := range ends {
		_ = w.Close()
		<-done
	}
	if got := post("/explain", strings.NewReader("{}")); got != http.StatusOK {
		t.Errorf("when they are gone: got %d, want 200", got)
	}
}

// ofOne is the report of a Sightline that has no other replicas.
func ofOne(t *report.Totals) func(report.Range, bool) report.Report {
	return func(of report.Range, _ bool) report.Report { return t.Of(of) }
}
