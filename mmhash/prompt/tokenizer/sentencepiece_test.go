package tokenizer

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// compareSentencePiece reads models and reference ids, one JSON object a line, as testdata/sentencepiece.py writes them.
func compareSentencePiece(t *testing.T, r io.Reader) (models int) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<20)
	for ; lines.Scan(); models++ {
		var c struct {
			Name  string
			Model []byte
			Rows  []struct {
				Text string
				IDs  []uint32
			}
		}
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		tok, err := LoadSentencePiece(c.Model)
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		for _, row := range c.Rows {
			if got := tok.Encode(nil, row.Text, Options{}); !slices.Equal(got, row.IDs) {
				t.Errorf("%s: %q:\n got %v\nwant %v", c.Name, row.Text, got, row.IDs)
				break
			}
		}
	}
	if lines.Err() != nil {
		t.Fatal(lines.Err())
	}
	return models
}

// testdata/sentencepiece.jsonl.gz: python sentencepiece.py 5 identity.
func TestSentencePiece(t *testing.T) {
	b, err := os.ReadFile("testdata/sentencepiece.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if n := compareSentencePiece(t, z); n != 32 {
		t.Errorf("%d models, want 32", n)
	}
}

// TestDifferentialSentencePiece needs a Python with sentencepiece==0.2.3 in SIGHTLINE_PYTHON.
func TestDifferentialSentencePiece(t *testing.T) {
	python := outside(t, "SIGHTLINE_PYTHON")
	seed := os.Getenv("SIGHTLINE_SEED")
	if seed == "" {
		seed = "1"
	}
	out, err := exec.Command(python, "testdata/sentencepiece.py", seed).Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d models", compareSentencePiece(t, bytes.NewReader(out)))
}

func TestSentencePieceBadFiles(t *testing.T) {
	for in, want := range map[string]string{
		"":                     "no pieces",
		"\x0a\x05":             "unexpected EOF",
		"\x0a\x03\x0a\x01\xff": "not UTF-8",
		"\x0a\x03\x0a\x01a":    "no piece of type unknown",
		"\x0a\x05\x0a\x01a\x18\x02\x12\x02\x18\x03": "model_type 3",
		"\x0f": "wire type",
	} {
		if _, err := LoadSentencePiece([]byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q in it", in, err, want)
		}
	}
}

func tekkenFile(t *testing.T, change func(map[string]any)) []byte {
	vocab := []map[string]any{}
	add := func(text string) {
		vocab = append(vocab, map[string]any{"rank": len(vocab), "token_bytes": []byte(text), "token_str": nil})
	}
	for b := range 256 {
		add(string([]byte{byte(b)}))
	}
	for _, w := range []string{"th", "he", "the", " t", " the", "\xe4\xb8", "中"} {
		add(w)
	}
	file := map[string]any{"vocab": vocab, "config": map[string]any{"pattern": patternLlama3, "default_vocab_size": len(vocab) + 20, "default_num_special_tokens": 20, "version": "v3"}}
	if change != nil {
		change(file)
	}
	b, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestTekken(t *testing.T) {
	tok, err := LoadTekken(tekkenFile(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	// By rank: "th" before "he", " t" before " the" can form; a whole word that is listed needs no merges.
	for text, want := range map[string]string{
		"the": "[278]", " the": "[280]", "athe": "[117 278]", "the the": "[278 280]", "[IMG]": "[111 93 97 91 113]", "中": "[282]",
	} {
		if got := fmt.Sprint(tok.Encode(nil, text, Options{})); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
		if back := tok.Decode(tok.Encode(nil, text, Options{AddSpecial: true}), true); back != text {
			t.Errorf("%q comes back as %q", text, back)
		}
	}
	if id, ok := tok.ID("[IMG]"); !ok || id != 10 || !tok.IsSpecial(10) {
		t.Errorf("[IMG] is %d, %v", id, ok)
	}
	for want, change := range map[string]func(map[string]any){
		"do not fit":    func(f map[string]any) { f["config"].(map[string]any)["default_vocab_size"] = 3 },
		"want the rank": func(f map[string]any) { f["config"].(map[string]any)["default_vocab_size"] = 400 },
		"missing, and":  func(f map[string]any) { f["config"].(map[string]any)["version"] = "v13" },
		"is missing":    func(f map[string]any) { f["vocab"] = f["vocab"].([]map[string]any)[1:] },
	} {
		if _, err := LoadTekken(tekkenFile(t, change)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}
