package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
	"golang.org/x/sys/unix"

	"github.com/sightline-router/sightline/lab"
)

// TestIdleConnections: strangers that hold more idle connections to admin and listen than the process may have files keep nobody out:
// probes are answered, workers are healthy, requests are decided, the configuration is read again.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	const files = 300
	l := startLab(t, func(o *lab.Options) {
		bin := t.TempDir() + "/sightline"
		if err := os.WriteFile(bin, fmt.Appendf(nil, "#!/bin/sh\nulimit -n %d\nexec %s \"$@\"\n", files, o.Self), 0o700); err != nil {
			t.Fatal(err)
		}
		o.Self, o.Config = bin, checkedOften
	})
	first := ask(t, l, "What is this?", dataURL(photo(41)))
	awaitExact(t, l, first.worker, first.prompt)
	for _, addr := range []string{l.Admin, l.ExtProc} {
		network := "tcp"
		if path, ok := strings.CutPrefix(addr, "unix:"); ok {
			network, addr = "unix", path
		}
		for range files {
			c, err := net.DialTimeout(network, addr, 5*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close() })
		}
	}
	probe := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		resp, err := probe.Get("http://" + l.Admin + "/healthz")
		if err != nil {
			t.Fatalf("the liveness probe: got %v, want no error", err)
		}
		resp.Body.Close()
	}
	unhurt(t, probe, l)
	again := ask(t, l, "And now?", dataURL(photo(41)))
	if again.status != 200 || again.worker != first.worker {
		t.Errorf("a request meanwhile: status %d at worker %d, want 200 at %d", again.status, again.worker, first.worker)
	}
	if said := reload(t, probe, l); said != "" {
		t.Errorf("a reload meanwhile: got %s, want %q", said, "")
	}
}

// checkedOften has workers' health and load queried every 200 ms.
func checkedOften(keys map[string]any) {
	keys["fixed"] = map[string]any{"health_every": "200ms", "load_every": "200ms"}
	keys["admin_token"] = "a-token-of-tests"
}

// unhurt checks that all workers are healthy and their events live, or that a replay for them failed for lack of a descriptor.
func unhurt(t *testing.T, client *http.Client, l *lab.Lab) {
	t.Helper()
	resp, err := client.Get("http://" + l.Admin + "/workers")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	rows := gjson.ParseBytes(text).Array()
	if len(rows) == 0 {
		t.Fatalf("no workers: %s; got %d, want some", text, len(rows))
	}
	for _, row := range rows {
		waits := row.Get("events").Str == "catching up" && strings.Contains(row.Get("events_error").Str, "replay") &&
			strings.Contains(row.Get("events_error").Str, "too many open files")
		if row.Get("health").Str != "" || row.Get("events").Str != "live" && !waits {
			t.Errorf("worker %s: health %q, events %q (%s)", row.Get("name"), row.Get("health"), row.Get("events"), row.Get("events_error"))
		}
	}
}

// reload has the configuration read again, and returns what is wrong with it.
func reload(t *testing.T, client *http.Client, l *lab.Lab) (problem string) {
	t.Helper()
	req, err := http.NewRequest("POST", "http://"+l.Admin+"/reload", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer a-token-of-tests")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode == 200 {
		return ""
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, text)
}

// TestOutOfDescriptors: a process that can open nothing more blames nobody: workers stay healthy and their events live
// (or a replay waits for a descriptor, and says so), requests are decided over the connections that are there, and a
// reload that failed is tried again.
func TestOutOfDescriptors(t *testing.T) {
	t.Parallel()
	l := startLab(t, func(o *lab.Options) { o.Config = checkedOften })
	first := ask(t, l, "What is this?", dataURL(photo(42)))
	awaitExact(t, l, first.worker, first.prompt)
	open := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxConnsPerHost: 1}} // one connection, made before
	unhurt(t, open, l)
	var before unix.Rlimit
	limit := func(n uint64) {
		t.Helper()
		if err := unix.Prlimit(l.PID(), unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: before.Max}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Prlimit(l.PID(), unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	for _, w := range l.Sims { // over connections that are open, queries would not fail
		w.SetKeepAlive(false)
	}
	limit(3)
	eventually(t, "queries to workers to fail", func() bool {
		resp, err := open.Get("http://" + l.Admin + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		failed := 0
		for line := range strings.Lines(string(text)) {
			var n int
			if strings.HasPrefix(line, "sightline_worker_checks_failed_total") && strings.Contains(line, `why="own limit"`) {
				_, _ = fmt.Sscan(line[strings.LastIndexByte(line, ' '):], &n)
			}
			failed += n
		}
		return failed >= 30 // five rounds of three workers' health and load
	})
	unhurt(t, open, l)
	const body = `{"model":%q,"max_tokens":2,"user":"meanwhile","messages":[{"role":"user","content":[` +
		`{"type":"image_url","image_url":{"url":%q}},{"type":"text","text":"And now?"}]}]}`
	again := raws(t, l, fmt.Appendf(nil, body, lab.ModelName, dataURL(photo(42))), nil) // not by ask, which opens connections to admin
	again.worker = l.Served("meanwhile")
	if again.status != 200 || again.worker != first.worker {
		t.Errorf("a request meanwhile: status %d at worker %d, want 200 at %d", again.status, again.worker, first.worker)
	}
	if said := reload(t, open, l); !strings.Contains(said, "too many open files") || !strings.Contains(said, "ulimit -n") {
		t.Errorf("a reload meanwhile: %q, want the limit", said)
	}
	limit(before.Cur)
	eventually(t, "the reload to be tried again", func() bool {
		resp, err := open.Get("http://" + l.Admin + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return strings.Contains(string(text), "\nsightline_config_reload_success 1\n")
	})
	unhurt(t, open, l)
}
