package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// The examples that replace others run as their users run them.
func TestExamples(t *testing.T) {
	t.Parallel()
	bin, err := laboratory() // and sightline beside it
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][]string{
		{"dynamo-trtllm-mm-router"},
		{"standalone-zmq", "--model", "any", "--num-workers", "3", "--block-size", "16", "--base-metrics-port", "24190"},
		{"vllm-mm-routing"},
		{"trtllm-multimodal"},
	} {
		cmd := exec.Command("bash", append([]string{filepath.Join("..", "examples", c[0], "run.sh")}, c[1:]...)...)
		cmd.Env = append(os.Environ(), "SIGHTLINE="+filepath.Join(filepath.Dir(bin), "sightline"), "ENVOY="+binary(t))
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "the same image twice: 0 tokens cached, then") {
			t.Errorf("%s: %v\n%s", c[0], err, out)
		}
	}
}

// A BLOCK_SIZE that is not the engine's is named, with both sizes, by the example and in Sightline's log, and the engine's is used.
func TestExampleNamesWrongBlockSize(t *testing.T) {
	t.Parallel()
	bin, err := laboratory() // and sightline beside it
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", filepath.Join("..", "examples", "vllm-mm-routing", "run.sh"))
	cmd.Env = append(os.Environ(), "SIGHTLINE="+filepath.Join(filepath.Dir(bin), "sightline"), "ENVOY="+binary(t),
		"ENGINE_BLOCK_SIZE=32", "MODEL=org/of-mine", "HTTP_PORT=24300")
	out, err := cmd.CombinedOutput()
	for _, want := range []string{"BLOCK_SIZE is 16, but the workers' events carry blocks of 32 tokens",
		"blocks of another size than block_size; its own are used: 32 tokens", "the same image twice: 0 tokens cached, then"} {
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%v, without %q:\n%s", err, want, out)
		}
	}
}

// The scenarios that the standalone router and the router worker try by name, on the standalone example's workers, with
// what must come out: each request's cached tokens. An image of 640 by 480 is 391 tokens; what comes before it is less than
// a block.
func TestScenariosByName(t *testing.T) {
	t.Parallel()
	const block = 32
	lab := startEngines(t, sim.Standalone, block, func(o *lab.Options) {
		o.Workers = 2
		o.Sim = func(_ int, c *sim.Config) { c.BlockSize = block }
	})
	serial := uint64(5000)
	fresh := func() string { serial++; return pngURL(serial) }
	const (
		none   = iota // less than one image
		one           // the first image, and not what follows
		shared        // all of the request before but its end
		whole         // all full blocks
	)
	const turnEnd = 5 // tokens behind a user's text: its end, and the answer's beginning
	type turn struct {
		images string // letters, each an image of the scenario
		text   string
		want   int
	}
	text := func(word string, times int) string {
		return word + strings.Repeat(" lighthouse "+word+" harbour", times)
	}
	for _, s := range []struct {
		name  string
		turns []turn
	}{
		{"full match", []turn{{"", text("full", 90), none}, {"", text("full", 90), whole}}},
		{"partial match", []turn{{"", text("partial", 80), none}, {"", text("partial", 95), shared}}},
		{"no match", []turn{{"", text("some", 90), none}, {"", text("other", 90), none}}},
		{"MM-S1 same image twice", []turn{{"a", "q", none}, {"a", "q", whole}}},
		{"MM-S2 different images", []turn{{"a", "q", none}, {"b", "q", none}}},
		{"MM-S3 text overlap", []turn{{"", text("overlap", 80), none}, {"", text("overlap", 95), shared}}},
		{"same image twice", []turn{{"a", "once more", none}, {"a", "once more", whole}}},
		{"different image", []turn{{"a", "other", none}, {"b", "other", none}}},
		{"two images same twice", []turn{{"ab", "q", none}, {"ab", "q", whole}}},
		{"swapped", []turn{{"ab", "q", none}, {"ba", "q", none}}},
		{"subset", []turn{{"ab", "q", none}, {"a", "q", one}}},
		{"superset", []turn{{"a", "q", none}, {"ab", "q", one}}},
		{"completely different", []turn{{"ab", "q", none}, {"cd", "q", none}}},
		{"same image with different text", []turn{{"a", "q", none}, {"a", text("another", 20), one}}},
		{"three images twice", []turn{{"abc", "q", none}, {"abc", "q", whole}}},
	} {
		t.Run(s.name, func(t *testing.T) {
			named := map[rune]string{}
			before := result{worker: -1}
			for i, turn := range s.turns {
				var urls []string
				for _, letter := range turn.images {
					if named[letter] == "" {
						named[letter] = fresh()
					}
					urls = append(urls, named[letter])
				}
				r := ask(t, lab, turn.text, urls...)
				ok := r.status == 200
				switch turn.want {
				case none:
					ok = ok && r.cached < 2*block
				case one:
					ok = ok && r.cached >= 391-block && r.cached < 391+2*block && r.worker == before.worker
				case shared:
					ok = ok && r.cached == (before.prompt-turnEnd)/block*block && r.cached > 0 && r.worker == before.worker
				case whole:
					ok = ok && r.cached == (r.prompt-1)/block*block && r.worker == before.worker
				}
				if !ok {
					t.Errorf("request %d: status %d, worker %d after %d, %d of %d tokens cached, %d before; %s", i+1, r.status,
						r.worker, before.worker, r.cached, r.prompt, before.prompt, lastDecision(t, lab).Raw)
				}
				before = r
				settled(t, lab)
			}
		})
	}
}
