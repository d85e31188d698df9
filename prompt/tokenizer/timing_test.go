package tokenizer

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/lab/golden"
)

// TestConformanceSpeed prints how many times faster than the package tokenizers==0.23.3 this one encodes prose, both in one run,
// and fails if that is less than ten times, because the machine may be busy; the goal on a quiet machine is 25 times.
func TestConformanceSpeed(t *testing.T) {
	python := golden.Folder(t, "SIGHTLINE_PYTHON")
	models := golden.Models(t)
	prose := benchTexts(t, golden.Dir(t, "tokenizer"))[0].Text
	dir := t.TempDir()
	textFile, jsonFile := filepath.Join(dir, "text.txt"), filepath.Join(dir, "tokenizer.json")
	if err := os.WriteFile(textFile, []byte(prose), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, model := range []string{"qwen2.5-vl-7b-instruct", "llama3.1", "gemma3"} {
		file := golden.Read(t, models, model, "tokenizer.json")
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
		ours, ids := fastest(tok, prose, 50)
		ratio := theirs / ours.Seconds()
		t.Logf("%s: load %v; %d tokens: %v, reference %.2f ms: %.0f times", model, load.Round(time.Millisecond), ids, ours, theirs*1e3, ratio)
		if ratio < 10 {
			t.Errorf("%s: only %.1f times faster", model, ratio)
		}
	}
}

// fastest returns the shortest time of n encodings of text, and its tokens.
func fastest(tok *Tokenizer, text string, n int) (best time.Duration, tokens int) {
	ids := tok.Encode(nil, text, Options{})
	best = time.Hour
	for range n {
		start := time.Now()
		ids = tok.Encode(ids[:0], text, Options{})
		best = min(best, time.Since(start))
	}
	return best, len(ids)
}

// TestConformanceWorstCase prints the cost of a byte of long runs relative to a byte of prose. The goal on a quiet machine is
// three; it fails at six.
func TestConformanceWorstCase(t *testing.T) {
	models := golden.Models(t)
	texts := benchTexts(t, golden.Dir(t, "tokenizer"))
	prose := texts[0].Text
	const limit = 6
	for _, model := range []string{"qwen2.5-vl-7b-instruct", "llama3.1", "gemma3"} {
		tok, err := LoadJSON(golden.Read(t, models, model, "tokenizer.json"))
		if err != nil {
			t.Fatal(err)
		}
		texts[0] = goldenText{"prose", strings.Repeat(prose, 1+(1<<20)/len(prose))}
		best := make([]float64, len(texts))                                                    // per byte
		for round := 0; round < 8 || round < 60 && slices.Max(best) > limit*best[0]; round++ { // more of them on a busy machine
			for i, text := range texts {
				took, _ := fastest(tok, text.Text, 1)
				if perByte := float64(took) / float64(len(text.Text)); best[i] == 0 || perByte < best[i] {
					best[i] = perByte
				}
			}
		}
		for i, text := range texts[1:] {
			ratio := best[i+1] / best[0]
			t.Logf("%s, %s: %.1f times prose", model, text.Category, ratio)
			if ratio > limit {
				t.Errorf("%s, %s: a byte costs as much as %.1f of prose", model, text.Category, ratio)
			}
		}
	}
}
