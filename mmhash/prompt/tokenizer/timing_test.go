package tokenizer

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestConformanceSpeed prints how many times faster than the package tokenizers==0.23.3 this one encodes prose, both in one run, and
// fails where that is less than ten times: the machine may be busy, the goal of 25 times is for a quiet one.
func TestConformanceSpeed(t *testing.T) {
	python := outside(t, "SIGHTLINE_PYTHON")
	models := outside(t, "SIGHTLINE_MODELS")
	prose := benchTexts(t, filepath.Join(outside(t, "SIGHTLINE_GOLDEN"), "tokenizer"))[0].Text
	dir := t.TempDir()
	textFile, jsonFile := filepath.Join(dir, "text.txt"), filepath.Join(dir, "tokenizer.json")
	if err := os.WriteFile(textFile, []byte(prose), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, model := range []string{"qwen2.5-vl-7b-instruct", "llama3.1", "gemma3"} {
		file := readMaybeGzip(t, filepath.Join(models, model, "tokenizer.json"))
		if err := os.WriteFile(jsonFile, file, 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(python, "testdata/timing.py", jsonFile, textFile).Output()
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		tok, err := LoadJSON(file)
		if err != nil {
			t.Fatal(err)
		}
		load := time.Since(start)
		ids := tok.Encode(nil, prose, Options{})
		ours := time.Hour
		for range 50 {
			start := time.Now()
			ids = tok.Encode(ids[:0], prose, Options{})
			ours = min(ours, time.Since(start))
		}
		ratio := theirs / ours.Seconds()
		t.Logf("%s: load %v; %d tokens: %v, reference %.2f ms: %.0f times", model, load.Round(time.Millisecond), len(ids), ours, theirs*1e3, ratio)
		if ratio < 10 {
			t.Errorf("%s: only %.1f times faster", model, ratio)
		}
	}
}
