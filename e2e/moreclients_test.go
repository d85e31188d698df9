package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	dir, err := filepath.Abs(modelDir)
	if err != nil {
		t.Fatal(err)
	}
	script := func(program, file string) func(url string) []string {
		return func(url string) []string {
			return []string{program, "clients/" + file, url, lab.ModelName, "../examples/picture.png"}
		}
	}
	python := filepath.Join(root, "langchain/bin/python")
	out := t.TempDir()
	promptfoo := filepath.Join(out, "promptfoo.yaml")
	for _, c := range []struct {
		name, needs string
		args        func(url string) []string
		requests    int // at least
	}{
		{"langchain", python, script(python, "langchain.py"), 12},
		{"litellm", python, script(python, "litellm_.py"), 9},
		{"node", filepath.Join(root, "node/node_modules/openai"), script("node", "node.mjs"), 15},
		{"promptfoo", filepath.Join(root, "promptfoo/node_modules/.bin/promptfoo"), func(url string) []string {
			text := fmt.Sprintf(`prompts: ["{{long}} And in {{town}}?"]
providers: [{id: "openai:chat:%s", config: {apiBaseUrl: "%s/v1", apiKey: none, max_tokens: 4}}]
defaultTest: {vars: {long: %q}}
tests: [{vars: {town: Kiel}}, {vars: {town: Brest}}, {vars: {town: Cork}}]
`, lab.ModelName, url, strings.Repeat("What is in the harbour of this town? ", 20))
			if err := os.WriteFile(promptfoo, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			return []string{filepath.Join(root, "promptfoo/node_modules/.bin/promptfoo"), "eval", "-c", promptfoo, "--no-cache",
				"--max-concurrency", "1", "--repeat", "2", "--no-write"}
		}, 6},
		{"guidellm", filepath.Join(root, "guidellm/bin/guidellm"), func(url string) []string {
			return []string{filepath.Join(root, "guidellm/bin/guidellm"), "benchmark", "run", "--target", url, "--model", lab.ModelName,
				"--processor", dir, "--data", "prompt_tokens=200,output_tokens=4,samples=4", "--profile", "synchronous", "--max-requests", "8",
				"--output-dir", out}
		}, 8},
		{"aiperf", filepath.Join(root, "aiperf/bin/aiperf"), func(url string) []string {
			return []string{filepath.Join(root, "aiperf/bin/aiperf"), "profile", "--url", url, "--model", lab.ModelName, "--tokenizer", dir,
				"--endpoint-type", "chat", "--streaming", "--concurrency", "1", "--request-count", "8", "--num-dataset-entries", "4",
				"--synthetic-input-tokens-mean", "200", "--output-tokens-mean", "4", "--ui", "none", "--artifact-dir", out}
		}, 8},
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
			args := c.args(l.URL)
			cmd := exec.CommandContext(ctx, args[0], args[1:]...)
			cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "CLIENTS="+filepath.Join(root, "node"), "HF_HUB_OFFLINE=1",
				"PROMPTFOO_DISABLE_TELEMETRY=1", "PROMPTFOO_DISABLE_UPDATE=1", "PROMPTFOO_CONFIG_DIR="+out)
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
