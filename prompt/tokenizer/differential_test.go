package tokenizer

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/lab/golden"
)

// TestDifferential compares with the package tokenizers==0.23.3 on random tokenizers and texts, made by
// testdata/differential.py. SIGHTLINE_PYTHON names a Python that has it; SIGHTLINE_SEED and SIGHTLINE_COUNT vary the run.
func TestDifferential(t *testing.T) {
	python := golden.Folder(t, "SIGHTLINE_PYTHON")
	seed, count := "1", "200"
	if v := os.Getenv("SIGHTLINE_SEED"); v != "" {
		seed = v
	}
	if v := os.Getenv("SIGHTLINE_COUNT"); v != "" {
		count = v
	}
	cmd := exec.Command(python, "testdata/differential.py", seed, count)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 64<<20)
	texts, wrong := 0, 0
	for n := 0; lines.Scan(); n++ {
		var c pipelineCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		tok, err := LoadJSON([]byte(c.Tokenizer))
		if err != nil {
			if !strings.Contains(err.Error(), "not determined") {
				t.Errorf("tokenizer %d: %v\n%s", n, err, summary(c.Tokenizer))
			}
			continue
		}
		texts += len(c.Rows)
		if diff := c.compare(tok); diff != "" {
			wrong++
			if wrong <= 12 {
				t.Errorf("tokenizer %d: %s\n%s", n, diff, summary(c.Tokenizer))
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d texts; %d tokenizers wrong", texts, wrong)
}
