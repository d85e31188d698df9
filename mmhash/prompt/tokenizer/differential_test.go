package tokenizer

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestDifferential compares with the package tokenizers==0.23.3 on random tokenizers and texts, made by
// testdata/differential.py. SIGHTLINE_PYTHON names a Python that has it; SIGHTLINE_SEED and SIGHTLINE_COUNT vary the run.
func TestDifferential(t *testing.T) {
	python := outside(t, "SIGHTLINE_PYTHON")
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
		var c struct {
			Tokenizer string
			Rows      []struct {
				Text                        string
				IDs, Special, Plain, Decode []uint32
				Decoded, Skipped            string
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		tok, err := LoadJSON([]byte(c.Tokenizer))
		if err != nil && strings.Contains(err.Error(), "is not determined") {
			continue
		}
		if err != nil {
			t.Errorf("tokenizer %d: %v\n%s", n, err, summary(c.Tokenizer))
			continue
		}
		bad := ""
		for _, r := range c.Rows {
			texts++
			check := func(what string, got, want any) {
				if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w && bad == "" {
					bad = fmt.Sprintf("%s of %q (%v):\n got %.400q\nwant %.400q", what, r.Text, r.Decode, g, w)
				}
			}
			ids := tok.Encode(nil, r.Text, Options{})
			check("ids", ids, r.IDs)
			check("with special", tok.Encode(nil, r.Text, Options{AddSpecial: true}), r.Special)
			check("plain", tok.Encode(nil, r.Text, Options{PlainSpecials: true}), r.Plain)
			check("decoded", tok.Decode(r.Decode, false), r.Decoded)
			check("decoded without special", tok.Decode(r.Decode, true), r.Skipped)
			if again := tok.Encode(nil, r.Text, Options{}); !slices.Equal(again, ids) {
				bad = fmt.Sprintf("%q twice: %v, %v", r.Text, ids, again)
			}
		}
		if bad != "" {
			if wrong++; wrong <= 12 {
				t.Errorf("tokenizer %d: %s\n%s", n, bad, summary(c.Tokenizer))
				if dir := os.Getenv("DUMP"); dir != "" {
					os.WriteFile(fmt.Sprintf("%s/%s-%d.json", dir, seed, n), []byte(c.Tokenizer), 0o644)
				}
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d texts; %d tokenizers wrong", texts, wrong)
}

// summary is a tokenizer.json without its lists.
func summary(spec string) string {
	var v map[string]any
	if json.Unmarshal([]byte(spec), &v) != nil {
		return spec
	}
	m := v["model"].(map[string]any)
	delete(m, "vocab")
	delete(m, "merges")
	b, _ := json.Marshal(v)
	return strings.ReplaceAll(string(b), `\u003c`, "<")
}
