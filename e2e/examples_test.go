package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/internal/demo"
)

// The examples that replace others run as their users run them.
func TestExamples(t *testing.T) {
	bin, err := product()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][]string{
		{"dynamo-trtllm-mm-router"},
		{"standalone-zmq", "--model", "any", "--num-workers", "3", "--block-size", "16", "--base-metrics-port", "5657"},
		{"vllm-mm-routing"},
		{"trtllm-multimodal"},
	} {
		cmd := exec.Command("bash", append([]string{filepath.Join("..", "examples", c[0], "run.sh")}, c[1:]...)...)
		cmd.Env = append(os.Environ(), "SIGHTLINE="+bin, "ENVOY="+binary(t))
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "the same picture twice: 0 tokens cached, then") {
			t.Errorf("%s: %v\n%s", c[0], err, out)
		}
	}
}

// A BLOCK_SIZE that is not the engine's is named, with both sizes, by the example and in Sightline's log.
func TestExampleNamesWrongBlockSize(t *testing.T) {
	bin, err := product()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", filepath.Join("..", "examples", "vllm-mm-routing", "run.sh"))
	cmd.Env = append(os.Environ(), "SIGHTLINE="+bin, "ENVOY="+binary(t), "ENGINE_BLOCK_SIZE=32", "MODEL=org/of-mine")
	out, err := cmd.CombinedOutput()
	for _, want := range []string{"BLOCK_SIZE is 16, but the workers' events carry blocks of 32 tokens", "configured 16, the worker says 32", `"events_block_size":32`} {
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("%v, without %q:\n%s", err, want, out)
		}
	}
}

// The scenarios that the standalone router and the router worker try by name, with what must come out: each request's
// cached tokens. A picture of 640 by 480 is 391 tokens of the prompt; what comes before it is under 32.
func TestScenariosByName(t *testing.T) {
	lab := startLab(t, func(o *demo.LabOptions) { o.Workers = 2 })
	serial := uint64(5000)
	fresh := func() string { serial++; return dataURL(photo(serial)) }
	const (
		none  = iota // less than one picture
		one          // the first picture, and not what follows
		whole        // all full blocks
	)
	type turn struct {
		pictures string // letters, each a picture of the scenario
		text     string
		want     int
	}
	for _, s := range []struct {
		name  string
		turns []turn
	}{
		{"same image twice (MM-S1)", []turn{{"a", "q", none}, {"a", "q", whole}}},
		{"different image (MM-S2)", []turn{{"a", "q", none}, {"b", "q", none}}},
		{"two images, the same twice", []turn{{"ab", "q", none}, {"ab", "q", whole}}},
		{"two images swapped", []turn{{"ab", "q", none}, {"ba", "q", none}}},
		{"subset", []turn{{"ab", "q", none}, {"a", "q", one}}},
		{"superset", []turn{{"a", "q", none}, {"ab", "q", one}}},
		{"completely different", []turn{{"ab", "q", none}, {"cd", "q", none}}},
		{"same image, other text", []turn{{"a", "q", none}, {"a", strings.Repeat("another question ", 20), one}}},
		{"three images twice", []turn{{"abc", "q", none}, {"abc", "q", whole}}},
		{"full match", []turn{{"", strings.Repeat("full ", 64), none}, {"", strings.Repeat("full ", 64), whole}}},
		{"no match", []turn{{"", strings.Repeat("some ", 64), none}, {"", strings.Repeat("other ", 64), none}}},
	} {
		named := map[rune]string{}
		worker := -1
		for i, turn := range s.turns {
			var urls []string
			for _, letter := range turn.pictures {
				if named[letter] == "" {
					named[letter] = fresh()
				}
				urls = append(urls, named[letter])
			}
			r := ask(t, lab, turn.text, urls...)
			ok := r.status == 200
			switch turn.want {
			case none:
				ok = ok && r.cached < 48
			case one:
				ok = ok && r.cached >= 391-16 && r.cached < 391+64 && r.worker == worker
			case whole:
				ok = ok && r.cached >= (r.prompt-1)/16*16 && r.worker == worker
			}
			if !ok {
				t.Errorf("%s, request %d: status %d, worker %d after %d, %d of %d tokens cached", s.name, i+1, r.status, r.worker, worker, r.cached, r.prompt)
			}
			worker = r.worker
		}
	}
}
