package look

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"

	"github.com/sightline-router/sightline/app/admin"
	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/forecast"
	"github.com/sightline-router/sightline/workers/fleet"
)

// hostile is a name that would clear the terminal, and be shown backwards.
const hostile = "w\x1b[2J\u009b31m\u202e\r\n"

// sightline serves pages as a Sightline would, with hostile names where names come from outside.
func sightline(t *testing.T, name string, at time.Time) string {
	t.Helper()
	row := admin.WorkerRow{Worker: findings.Worker{Name: name, Addr: "10.0.0.1:8000", Model: name, Rank: 3, Inflight: 2, Events: "live",
		Class: name, Role: name, LastEvent: name, Release: name}, State: "live", Recent: admin.Recent{Requests: 2, Prompt: 100, Cached: 50}}
	problem := findings.Finding{Code: "SL0109", Severity: "error", What: name + ": away", Workers: []string{name}, Fix: name, Since: at}
	decision := router.Recent{ID: name, At: at, Model: name, Worker: name, Rank: -1, Reason: router.Exact, Why: name, Asked: name,
		PromptTokens: 1200, CachedTokens: 1100, Reported: -1, Code: 503, Flags: name, Lasted: time.Second, Used: name,
		Account: &account.Account{Uncached: account.Sums{account.Evicted: 100}}}
	pages := map[string]any{"/workers": []admin.WorkerRow{row}, "/problems": []findings.Finding{problem},
		"/decisions": []router.Recent{decision}, "/explain": admin.Explained{Recent: decision},
		"/status": admin.Status{Broken: true, Problems: []findings.Finding{problem}, Workers: map[string]int{name: 1}, Latest: name, EventAge: 1,
			Sightlines: []admin.Sightline{{Instance: name, Version: name, Mode: name, Error: name, Others: 1}},
			Releases:   map[string]int{name: 1},
			Requests:   10, Failed: 1, Undecided: 3, Accounted: 1000, Uncached: account.Sums{account.Evicted: 100}, Since: at}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(pages[r.URL.Path])
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// shows returns what a command prints.
func shows(t *testing.T, at []string, output string, do func(View) error) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "out")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	err = do(View{From: From{Admin: at}, Output: output, Out: f, Errors: &said})
	f.Close()
	if err != nil && err != ErrBroken {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + said.String()
}

var commands = map[string]func(*testing.T, View) error{
	"status":    func(t *testing.T, v View) error { return Status(t.Context(), v) },
	"top":       func(t *testing.T, v View) error { return Top(t.Context(), v) },
	"workers":   func(t *testing.T, v View) error { return Workers(t.Context(), v, "", "") },
	"worker":    func(t *testing.T, v View) error { return Workers(t.Context(), v, "10.0.0.1:8000", "") },
	"problems":  func(t *testing.T, v View) error { return Problems(t.Context(), v, "") },
	"decisions": func(t *testing.T, v View) error { return Decisions(t.Context(), v, Choice{}) },
	"decision":  func(t *testing.T, v View) error { return Decisions(t.Context(), v, Choice{ID: "x"}) },
}

// TestHostileNames: no name from outside brings a control character to the terminal, in any form of output.
func TestHostileNames(t *testing.T) {
	at := []string{sightline(t, hostile, time.Now())}
	for command, do := range commands {
		for _, output := range []string{"table", "wide", "json", "yaml"} {
			got := shows(t, at, output, func(v View) error { return do(t, v) })
			if !strings.Contains(got, "[2J") {
				t.Errorf("%s -o %s: got %q, want the name's printable part in it", command, output, got)
			}
			for _, r := range got {
				if !unicode.IsPrint(r) && r != '\n' {
					t.Errorf("%s -o %s: got %q, want no %U in it", command, output, got, r)
					break
				}
			}
		}
	}
}

// TestHostileAnswer: what a Sightline that is watched answers instead brings no control character to the terminal either.
func TestHostileAnswer(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	var asked atomic.Int32
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch asked.Add(1) {
		case 1:
			_, _ = w.Write([]byte("{}"))
		case 2:
			http.Error(w, hostile, http.StatusInternalServerError)
		default:
			stop()
		}
	}))
	defer srv.Close()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := Status(ctx, View{From: From{Admin: []string{srv.URL}}, Watch: true, Out: out}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(out.Name())
	if got := string(text); err != nil || !strings.Contains(got, "answers 500: w\ufffd[2J") || strings.ContainsAny(got, "\x1b\u009b\u202e\r") {
		t.Errorf("got %q, %v, want what it answers without control characters", got, err)
	}
}

// TestJoined: several Sightlines are asked together: requests are added, workers and problems stand once, and one that is away is named.
func TestJoined(t *testing.T) {
	now := time.Now()
	at := []string{sightline(t, "worker-7", now), sightline(t, "worker-7", now.Add(time.Second)), "http://127.0.0.1:1"}
	for command, want := range map[string]string{
		"status":    "20 in the last",
		"workers":   "worker-7 rank 3  live",
		"problems":  "× error SL0109",
		"decisions": "worker-7  exact    1,200   1,100  100 evicted",
	} {
		got := shows(t, at, "table", func(v View) error { return commands[command](t, v) })
		times, wanted := strings.Count(got, want), 1
		if command == "decisions" {
			wanted = 2
		}
		if times != wanted || !strings.Contains(got, "127.0.0.1:1") {
			t.Errorf("%s: got %q %d times, want %d, and the one that is away\n%s", command, want, times, wanted, got)
		}
	}
	var s admin.Status
	raw := shows(t, at[:2], "json", func(v View) error { return commands["status"](t, v) })
	if err := json.Unmarshal([]byte(raw), &s); err != nil || s.Requests != 20 || s.Undecided != 6 || s.Uncached[account.Evicted] != 200 ||
		len(s.Sightlines) != 2 || len(s.Problems) != 1 || !s.Broken {
		t.Errorf("status as JSON: %v, got %+v", err, s)
	}
}

// TestIdleSightline: one that had no request for long, and tells of all since its start, does not hide what is so of late.
func TestIdleSightline(t *testing.T) {
	now := time.Now()
	at := []string{sightline(t, "worker-7", now.Add(-24*time.Hour)), sightline(t, "worker-7", now.Add(-5*time.Minute))}
	if got := shows(t, at, "table", func(v View) error { return Status(t.Context(), v) }); !strings.Contains(got, "10 in the last 5m:") {
		t.Errorf("got %s, want 10 requests in the last 5m", got)
	}
	at[1] = at[0]
	if got := shows(t, at, "table", func(v View) error { return Status(t.Context(), v) }); !strings.Contains(got, "20 in the last 24h00m:") {
		t.Errorf("both are idle: got %s, want 20 requests in the last 24h00m", got)
	}
}

// TestFollower: a decision is shown once, when its request has ended, or when it is forgotten before.
func TestFollower(t *testing.T) {
	f := follower{said: map[string]time.Time{}}
	now := time.Now()
	under, ended := router.Recent{ID: "a", At: now}, router.Recent{ID: "a", At: now, Lasted: time.Second}
	other := router.Recent{ID: "b", At: now.Add(1)}
	for i, c := range []struct {
		all  []router.Recent
		want string
	}{{[]router.Recent{under, other}, ""}, {[]router.Recent{ended, other}, "a"}, {[]router.Recent{ended, other}, ""},
		{[]router.Recent{ended}, "b"}, {[]router.Recent{ended}, ""}} {
		got := ""
		for _, d := range f.news(c.all, now, true) {
			got += d.ID
		}
		if got != c.want {
			t.Errorf("answer %d: got %q, want %q", i, got, c.want)
		}
	}
}

// TestFollowerWaits: a decision is asked for until its request ends, however late, and is not given up while a Sightline does not answer.
func TestFollowerWaits(t *testing.T) {
	f, now := follower{said: map[string]time.Time{}}, time.Now()
	waits := router.Recent{ID: "a", At: now.Add(-time.Minute)}
	if got := f.news([]router.Recent{waits}, now, true); len(got) > 0 || !f.since(now).Equal(waits.At) {
		t.Errorf("a request of a minute without an answer: got %+v shown, asked since %v, want none, since %v", got, f.since(now), waits.At)
	}
	if got := f.news(nil, now, false); len(got) > 0 {
		t.Errorf("nothing answers: got %+v shown, want none", got)
	}
	waits.Lasted = time.Minute
	if got := f.news([]router.Recent{waits}, now, true); len(got) != 1 || got[0].Lasted == 0 || !f.since(now).Equal(now.Add(-period)) {
		t.Errorf("it has ended: got %+v, asked since %v, want it with its end, since %v", got, f.since(now), now.Add(-period))
	}
}

// TestTableFits: a table is never wider than the terminal, names keep their ends, figures stay, and -o wide and a pipe cut nothing.
func TestTableFits(t *testing.T) {
	rows := make([]admin.WorkerRow, 200)
	for i := range rows {
		rows[i] = admin.WorkerRow{State: "catching up", Worker: findings.Worker{Rank: i % 8,
			Name: fmt.Sprintf("vllm-qwen2-5-vl-deployment-7d9f8b6c5d-%03d", i), Model: "Qwen/Qwen2.5-VL-72B-Instruct", Addr: "10.20.30.40:8000",
			Inflight: 1000 + i, Backlog: 1.5e6, Rate: 30000, Blocks: 1e6}}
	}
	for _, columns := range []int{0, 60, 80, 120, 160, 240} {
		p := &page{width: columns}
		p.workers(rows)
		lines := strings.Split(strings.TrimRight(p.String(), "\n"), "\n")
		if len(lines) != 201 {
			t.Errorf("%d columns: got %d lines, want 201", columns, len(lines))
		}
		for i, line := range lines {
			if columns > 0 && width(line) > columns {
				t.Errorf("%d columns: got %d: %s", columns, width(line), line)
				break
			}
			if i > 0 && (!strings.Contains(line, fmt.Sprintf("rank %d", (i-1)%8)) || !strings.Contains(line, fmt.Sprint(999+i))) {
				t.Errorf("%d columns: %s: want the rank and the requests in flight", columns, line)
				break
			}
		}
		if columns == 0 && (!strings.Contains(lines[1], rows[0].Name) || !strings.Contains(lines[0], "ADDRESS")) {
			t.Errorf("piped: got %s, want all of it", lines[1])
		}
	}
	p := &page{width: 40, height: 10}
	p.workers(rows)
	p.fit()
	if n := strings.Count(p.String(), "\n"); n > 9 || !strings.Contains(p.String(), "more lines") {
		t.Errorf("a screen of 10 lines: got %d\n%s", n, p)
	}
}

// TestService: a Service's pods are asked through kubectl, each by its own forwarded port, and what leads there ends with the command.
func TestService(t *testing.T) {
	one, two := sightline(t, "a", time.Now()), sightline(t, "b", time.Now())
	dir := t.TempDir()
	script := fmt.Sprintf(`#!/bin/sh
case "$*" in
"--namespace=llm get endpointslices --selector=kubernetes.io/service-name=sightline "*) printf 'pod-b\npod-a\npod-c\npod-b\npod-a\n' ;;
"--namespace=llm get endpointslices --selector=kubernetes.io/service-name=gone "*) printf 'pod-c\n' ;;
"--namespace=llm port-forward pod/pod-c :9903") echo "error: pod is not running" >&2; exit 1 ;;
"--namespace=llm port-forward pod/pod-a :9903") echo $$ >> %[3]s; echo "Forwarding from %[1]s -> 9903"; exec sleep 60 ;;
"--namespace=llm port-forward pod/pod-b :9903") echo $$ >> %[3]s; echo "Forwarding from %[2]s -> 9903"; exec sleep 60 ;;
*) echo "the server doesn't have that: $*" >&2; exit 1 ;;
esac
`, strings.TrimPrefix(one, "http://"), strings.TrimPrefix(two, "http://"), filepath.Join(dir, "pids"))
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	a, err := From{Admin: []string{"svc/sightline"}, Namespace: "llm"}.Open(t.Context())
	if err != nil || fmt.Sprint(a.At) != fmt.Sprint([]string{one, two, "pod/pod-c"}) {
		t.Fatalf("got %v, %v, want %s and %s, and pod-c away", a.At, err, one, two)
	}
	rows, err := get[[]admin.WorkerRow](t.Context(), a, "/workers")
	if err != nil || rows[0].err != nil || rows[1].err != nil || rows[2].err == nil ||
		!strings.HasSuffix(rows[2].err.Error(), "pod/pod-c :9903: exit status 1 error: pod is not running") {
		t.Errorf("got %+v, %v, want two answers and why pod-c has none", rows, err)
	}
	a.Close()
	pids, err := os.ReadFile(filepath.Join(dir, "pids"))
	if err != nil || len(strings.Fields(string(pids))) != 2 {
		t.Fatalf("got %q, %v, want two processes", pids, err)
	}
	for _, pid := range strings.Fields(string(pids)) {
		if _, err := os.Stat("/proc/" + pid); err == nil {
			t.Errorf("process %s runs on after the command, want an error", pid)
		}
	}
	if _, err := (From{Admin: []string{"svc/gone"}, Namespace: "llm"}).Open(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "pod is not running") {
		t.Errorf("no pod can be reached: got %v, want why", err)
	}
	if _, err := (From{Admin: []string{"svc/other"}}).Open(t.Context()); err == nil || !strings.Contains(err.Error(), "doesn't have that") {
		t.Errorf("another service: got %v, want what kubectl says", err)
	}
}

// TestCode: problems explains a code, also where no Sightline answers, and refuses others.
func TestCode(t *testing.T) {
	at := []string{sightline(t, "worker-7", time.Now())}
	for code, want := range map[string]string{"SL0109": "worker-7: away", "sl0109": "worker-7: away", "SL0301": "no problems of this code"} {
		got := shows(t, at, "table", func(v View) error { return Problems(t.Context(), v, code) })
		if !strings.Contains(got, want) || !strings.Contains(got, findings.Means(strings.ToUpper(code))) ||
			!strings.Contains(got, "doctor.md#"+strings.ToLower(code)) {
			t.Errorf("%s: got %s, want what it means, where to read on, and %q", code, got, want)
		}
	}
	if err := Problems(t.Context(), View{From: From{Admin: at}}, "SL9999"); err == nil || !strings.Contains(err.Error(), "SL0001") {
		t.Errorf("SL9999: got %v, want an error that names a code", err)
	}
	name := filepath.Join(t.TempDir(), "out")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	err = Problems(t.Context(), View{From: From{Admin: []string{"127.0.0.1:1"}}, Out: f}, "SL0301")
	if text, _ := os.ReadFile(name); err == nil || !strings.Contains(string(text), findings.Means("SL0301")) {
		t.Errorf("without a Sightline: got %s, %v, want what it means and an error", text, err)
	}
}

// TestWorkerPage: all of a worker's facts are lines of words and figures, without JSON, and say since when it is out of service.
func TestWorkerPage(t *testing.T) {
	usage, drains := 0.25, fleet.Draining
	row := admin.WorkerRow{State: "draining", Worker: findings.Worker{Name: "worker-7", Rank: -1, Release: "vllm 0.32.0",
		Rate: 26492.75521950414, Service: &drains, ServiceSince: time.Now().Add(-5 * time.Minute), Report: &findings.LoadReport{Usage: &usage},
		Removal: &forecast.Removal{Alone: 8384, Again: 258.94664965140555}}}
	p := &page{}
	p.worker(&row)
	for _, want := range []string{"worker-7 draining 5m\n", "release                      vllm 0.32.0\n",
		"told kv cache usage          0.25\n",
		"prefill tokens per second    26493\n", "removal again tokens         259\n"} {
		if !strings.Contains(p.String(), want) {
			t.Errorf("got %s, want %q in it", p, want)
		}
	}
	if strings.ContainsAny(p.String(), `{}"`) {
		t.Errorf("got %s, want no JSON", p)
	}
}
