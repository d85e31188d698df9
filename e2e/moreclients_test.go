package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
)

// TestMoreClients: each client drives Envoy as its users would, every request is answered, and what is predicted of its hits is what the
// engines count. `make clients` fetches them into the folder that SIGHTLINE_MORE_CLIENTS names; one that could not be had is skipped.
func TestMoreClients(t *testing.T) {
	root := os.Getenv("SIGHTLINE_MORE_CLIENTS")
	if root == "" {
		t.Skip("SIGHTLINE_MORE_CLIENTS names no folder with clients; make clients does")
	}
	python := filepath.Join(root, "langchain/bin/python")
	for _, c := range []struct {
		name, needs, program, script string
		requests                     int // at least
	}{
		{"langchain", python, python, "langchain.py", 12},
		{"litellm", python, python, "litellm_.py", 9},
		{"node", filepath.Join(root, "node/node_modules/openai"), "node", "node.mjs", 15},
		{"aiperf", filepath.Join(root, "aiperf/bin/aiperf"), "sh", "aiperf.sh", 12},
		{"guidellm", filepath.Join(root, "guidellm/bin/guidellm"), "sh", "guidellm.sh", 12},
		{"promptfoo", filepath.Join(root, "promptfoo/npm/node_modules/.bin/promptfoo"), "sh", "promptfoo.sh", 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := os.Stat(c.needs); err != nil {
				t.Skipf("NOT RUN: %s could not be had: %v", c.name, err)
			}
			l := startLab(t, func(o *lab.Options) {
				o.Config = func(keys map[string]any) {
					envoy := keys["envoy"].(map[string]any)
					envoy["token_usage"], envoy["ask_usage"] = true, true
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, c.program, "clients/"+c.script, l.URL, lab.ModelName, "../examples/picture.png")
			cmd.Env = append(os.Environ(), "CLIENTS="+root)
			if said, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, said[max(0, len(said)-4000):])
			}
			quiet(t, l)
			rows, err := lab.Get("http://" + l.Admin + "/decisions?n=200")
			if err != nil {
				t.Fatal(err)
			}
			sent, hits := 0, 0
			for _, d := range gjson.ParseBytes(rows).Array() {
				if d.Get("prompt_tokens").Int() == 0 { // a question for the list of models
					continue
				}
				sent++
				predicted, counted := d.Get("cached_tokens").Int(), d.Get("reported_cached_tokens").Int()
				if counted > 0 {
					hits++
				}
				if d.Get("code").Int() != 200 || counted >= 0 && counted != predicted {
					t.Errorf("%d tokens were cached: %s", counted, d.Raw)
				}
			}
			if sent < c.requests || hits == 0 {
				t.Errorf("%d requests, want %d; %d with a hit", sent, c.requests, hits)
			}
			t.Logf("%d requests, %d with a hit, each as predicted", sent, hits)
		})
	}
}
