package e2e

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
)

// TestRollingUpgrade: under load, the example's script gives each worker another release: no request fails. Beside it a blind rolling
// restart, which waits for each worker's health alone; what it costs in failed requests and cached tokens is logged.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	const token, documents, perSecond = "a-token-of-this-test", 48, 40
	s := startStand(t, 4, 0, 1, 4, map[string]any{"drain": "0s", "fixed": unprobed(), "admin_token": token})
	admin := s.replicas[0].admin
	request := func(i int) reply {
		body := fmt.Sprintf(`{"model":%q,"max_tokens":24,"messages":[{"role":"user","content":"Document %d. %sQuestion %d?"}]}`, lab.ModelName,
			i%documents, strings.Repeat(fmt.Sprintf("Line of document %d, which is long. ", i%documents), 60), i)
		return s.send(body, false, time.Minute).reply
	}
	// during returns what became of the requests while something was done.
	during := func(name string, do func()) (failed int, hits float64) {
		t.Helper()
		load := startLoad(t, perSecond, request)
		load.more(4 * documents)
		load.mu.Lock()
		before := len(load.replies)
		load.mu.Unlock()
		began := time.Now()
		do()
		took := time.Since(began)
		load.more(documents)
		prompt, cached, n := int64(0), int64(0), 0
		for _, r := range load.stop()[before:] {
			n++
			if r.err != nil || r.status != http.StatusOK {
				failed++
				continue
			}
			prompt += gjson.GetBytes(r.body, "usage.prompt_tokens").Int()
			cached += gjson.GetBytes(r.body, "usage.prompt_tokens_details.cached_tokens").Int()
		}
		hits = float64(cached) / float64(max(1, prompt))
		t.Logf("%s: %d of %d requests failed, %.1f %% of the prompt tokens were cached, %.0f requests a second for %v", name, failed, n,
			100*hits, float64(n)/time.Since(began).Seconds(), took.Round(time.Second))
		return failed, hits
	}
	restart := func(i int) {
		e := s.fleet[i]
		e.stop()
		e.start(t)
		e.healthy(t)
	}
	release := func(version string) {
		for _, e := range s.fleet {
			command := simCommand(t, 4)
			e.command = func() *exec.Cmd {
				c := command(e)
				c.Args = append(c.Args, "--engine-version", version)
				return c
			}
		}
	}
	release("0.33.0")
	during("blind", func() {
		for i := range s.fleet {
			restart(i)
			time.Sleep(3 * time.Second)
		}
	})
	eventually(t, "all is up", s.whole)

	// The script's sightline is the one under test. Its kubectl leads to it as to the one pod of a Service beside one that cannot be
	// reached, and asks this test, which owns the processes, to delete a pod.
	bin, dir := s.bin, t.TempDir()
	if err := os.Symlink(bin, filepath.Join(dir, "sightline")); err != nil {
		t.Fatal(err)
	}
	upgraded := 0
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{worker}", func(w http.ResponseWriter, r *http.Request) {
		for i, e := range s.fleet {
			if e.name == r.PathValue("worker") {
				upgraded++
				restart(i)
				return
			}
		}
		http.Error(w, "no such worker", http.StatusNotFound)
	})
	server := &http.Server{Handler: mux}
	lis := listen(t)
	go func() { _ = server.Serve(lis) }()
	t.Cleanup(func() { _ = server.Close() })
	kubectl := fmt.Sprintf(`#!/bin/sh
case "$*" in
"--namespace=llm get endpointslices --selector=kubernetes.io/service-name=sightline "*) printf 'away\nsightline-0\n' ;;
"--namespace=llm port-forward pod/sightline-0 :9903") echo "Forwarding from %s -> 9903"; exec sleep 600 ;;
"-n llm delete pod "*) exec curl -fsS -X POST "http://%s/$5" ;;
*) echo "the server doesn't have that: $*" >&2; exit 1 ;;
esac
`, admin, lis.Addr())
	if err := os.WriteFile(filepath.Join(dir, "kubectl"), []byte(kubectl), 0o700); err != nil {
		t.Fatal(err)
	}
	release("0.32.0")
	failed, _ := during("by upgrade.sh", func() {
		args := []string{absolute(t, "../examples/kubernetes/upgrade/upgrade.sh")}
		for _, e := range s.fleet {
			args = append(args, e.name)
		}
		c := exec.CommandContext(t.Context(), "sh", args...)
		c.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "SIGHTLINE_ADMIN=svc/sightline", "SIGHTLINE_ADMIN_TOKEN="+token,
			"SETTLE=2", "TIMEOUT=60s")
		if out, err := c.CombinedOutput(); err != nil || strings.Count(string(out), "in service") != len(s.fleet) {
			t.Errorf("upgrade.sh: %v, want each worker in service again\n%s", err, out)
		}
	})
	if failed > 0 || upgraded != len(s.fleet) {
		t.Errorf("%d requests failed and %d workers were upgraded, want 0 and %d", failed, upgraded, len(s.fleet))
	}
}
