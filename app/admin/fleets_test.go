package admin

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/report"
	"github.com/sightline-router/sightline/workers/fleet"
)

// madeUp serves the page of a fleet, after 200 decisions: "N well" or "N broken", in which a few workers have each fault; "N ranks" of
// workers with long names; "N storm", whose workers have many problems, very long names and a model of a long name.
func madeUp(t *testing.T, size int, state string) *httptest.Server {
	srv, _ := madeUpBy(t, size, state)
	return srv
}

// madeUpBy is madeUp, and returns what decides one more.
func madeUpBy(t *testing.T, size int, state string) (srv *httptest.Server, decide func(id, model string)) {
	began, broken := time.Now().Add(-130*time.Minute), state == "broken" || state == "storm"
	rows := func() (list []findings.Worker) {
		for i := range size {
			w := findings.Worker{Name: fmt.Sprint("gpu-", i+1), Addr: fmt.Sprintf("10.0.%d.%d:8000", i/200, i%200+1), Model: "qwen2.5-vl", Rank: -1,
				Blocks: 4000 + 13*i, Inflight: (7*i + time.Now().Second()/10) % 23, Backlog: float64(100 * (i % 40)), Events: "live", Rate: 12000,
				LastEvent: "within a second"}
			used := float64(i%90) / 100
			w.Report = &findings.LoadReport{Usage: &used}
			switch state {
			case "ranks":
				w.Name, w.Rank = fmt.Sprintf("qwen2-5-vl-72b-decode-7f9c8d5b6c-x%02dz", i/8), i%8
			case "storm":
				w.Name = fmt.Sprintf("%s-%02d", strings.Repeat("inference-pool-of-the-long-cluster-name-", 6), i)
				w.Model = "RedHatAI/Qwen2.5-VL-72B-Instruct-quantized.w8a8-and-a-revision-of-its-own"
			}
			if broken {
				switch i {
				case size - 1:
					w.Health = &fleet.Out{Why: "health check: connection refused"}
				case size - 2:
					w.Events, w.EventsError = "waiting", findings.Failure{Text: "dial tcp 10.0.0.9:5557: connection refused"}
				case size - 3, size - 4, size - 5, size - 6:
					w.EventAge, w.LastEvent = float64(40+i%20), "40s ago"
				case size - 7:
					w.Doubtful = 12
				case size - 8:
					w.Events, w.EventsError = "waiting", findings.Failure{Text: "dial tcp 10.0.0.7:5557: i/o timeout"}
				}
			}
			if state == "storm" {
				w.UnknownKey, w.SameEvents, w.OtherSize = `"new_key"`, "gpu-1", 32
				w.Unfilled, w.Slow = uint64(i), fleet.Slow{Times: 3 + float64(i), Since: began}
			}
			list = append(list, w)
		}
		return list
	}
	fl := fleet.New(nil)
	var workers []*fleet.Worker
	for i, w := range rows() {
		slot := func(int) indexer.SlotID { return indexer.SlotID(i) }
		workers = append(workers, fleet.NewWorker(w.Name, netip.MustParseAddrPort(w.Addr), w.Model, 0, slot))
	}
	fl.Set(workers)
	reg := prometheus.NewRegistry()
	s := State{Access: Access{Loopback: true}, Version: "v0.3.0", Instance: "sightline-0", Began: began, Gatherer: reg,
		Router: router.New(router.Options{Fleet: fl, Index: indexer.New(indexer.Options{}), Metrics: reg}), Workers: rows,
		Ready: func() (string, error) { return "", nil }, NoRoom: func(string) {}}
	var facts findings.Facts
	if broken {
		s.Audit = audit.New(audit.Options{})
		facts.Restart, facts.DecisionLog = []string{"listen"}, "write /var/log/decisions.jsonl: no space left on device"
	}
	s.Own = func(report.Range) (r report.Report) {
		r.Since, r.Steered.Requests = began, size
		if broken {
			r.Steered.Failed = 1 + size/10
		}
		return r
	}
	s.Problems = findings.NewWatch(func(now time.Time) findings.Facts {
		f := facts
		f.Now, f.Workers, f.Unserved, f.Recent = now, rows(), s.Router.Unserved(), s.Router.RecentSince(now.Add(-time.Minute), 256)
		return f
	}, zap.NewNop(), meter.At(reg)).List
	n := 0
	decide = func(id, model string) {
		i := n
		n++
		body := `{"messages":[]}`
		if model != "" {
			body = `{"model":"` + model + `"}`
		}
		d := s.Router.Decide(t.Context(), &router.Request{ID: id, Path: "/v1/chat/completions", Body: [][]byte{[]byte(body)}})
		code := http.StatusOK
		if broken && i%10 == 3 {
			code = http.StatusServiceUnavailable
		}
		if len(d.Targets) > 0 {
			s.Router.Observe(router.Outcome{ID: id, Phase: router.Ended, Addr: d.Targets[0].Addr, Code: code, CachedTokens: 16, PromptTokens: 64,
				FirstByte: time.Duration(20+i) * time.Millisecond})
		}
	}
	for i := range 200 {
		decide(fmt.Sprintf("request-%03d", i), map[bool]string{true: "gpt-5"}[broken && i%50 == 7])
	}
	srv = httptest.NewServer(Handler(t.Context(), s))
	t.Cleanup(srv.Close)
	return srv, decide
}

// TestFleets: the worst workers come first, one row or strip each; decisions are chosen by what is wrong with them. With
// SIGHTLINE_PAGES=1 the pages stay up until the standard input ends, for a browser (make page).
func TestFleets(t *testing.T) {
	for state, sizes := range map[string][]int{"well": {0, 1, 6, 16, 48, 200}, "broken": {1, 6, 16, 48, 200}, "ranks": {16, 200},
		"storm": {12}} {
		for _, size := range sizes {
			srv, broken := madeUp(t, size, state), state == "broken" || state == "storm"
			get := func(path string) string {
				w := httptest.NewRecorder()
				r := httptest.NewRequest(http.MethodGet, srv.URL+path, nil)
				srv.Config.Handler.ServeHTTP(w, r)
				if w.Code != http.StatusOK {
					t.Fatalf("%s: got %d %s, want 200", path, w.Code, w.Body)
				}
				return w.Body.String()
			}
			page := get("/")
			strips := strings.Split(page, ` class="strip `)[1:]
			if len(strips) != size || strings.Contains(page, `<div class="fleet`) != (size > fewWorkers) {
				t.Errorf("%d %s: %d strips, want one for each", size, state, len(strips))
			}
			if size == 0 {
				strips = []string{"bad0"}
			}
			if worst := strips[0][:4]; worst != map[bool]string{false: "bad0", true: "bad3"}[broken] {
				t.Errorf(`%d %s: the first is %s, want worst == map[bool]string{false: "bad0", true: "bad3"}[broken]`,
					size, state, worst)
			}
			failed := map[bool]string{size == 0: "–", size > 0: "0 %"}[true]
			if broken {
				failed = map[int]string{1: "100 %", 6: "17 %", 12: "17 %", 16: "12 %", 48: "10 %", 200: "10 %"}[size]
			}
			if !strings.Contains(page, ">"+failed+"</b>of requests failed") {
				t.Errorf("%d %s: want %s of requests failed on the page", size, state, failed)
			}
			for _, want := range []string{"v0.3.0", "sightline-0", "2 h 10 min"} {
				if !strings.Contains(page, want) {
					t.Errorf("the page lacks %q, want it in page", want)
				}
			}
			if problems := get("/problems"); (problems == "[]\n") != !broken {
				t.Errorf(`got %d %s: %s, want (problems == "[]\n") == !broken`, size, state, problems)
			}
			if state == "broken" && size > 1 {
				if n := strings.Count(get("/?filter=failed"), `data-l="status">503`); n < 10 {
					t.Errorf("got %d failed decisions, want 10 or more", n)
				}
				if n := strings.Count(get("/?filter=inexact&q=REQUEST-007"), `href="/?id=`); n != 1 {
					t.Errorf("got %d decisions by their id, want 1", n)
				}
				if n := strings.Count(get("/?q=gpt-5"), `href="/?id=`); n != 4 {
					t.Errorf("got %d decisions by a model's name, want 4", n)
				}
			}
			if os.Getenv("SIGHTLINE_PAGES") != "" {
				fmt.Printf("PAGE %d %s %s\n", size, state, srv.URL)
			}
		}
	}
	if os.Getenv("SIGHTLINE_PAGES") != "" {
		fmt.Println("PAGES")
		_, _ = os.Stdin.Read(make([]byte, 1))
	}
}
