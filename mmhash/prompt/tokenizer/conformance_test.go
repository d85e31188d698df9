package tokenizer

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// goldenDir and modelsDir give the directories of reference results and model files, which are not part of the repository.
func outside(t testing.TB, variable string) string {
	dir := os.Getenv(variable)
	if dir == "" {
		t.Skipf("%s is not set: the directory with reference data is not here", variable)
	}
	return dir
}

// readMaybeGzip reads path, or path.gz unpacked.
func readMaybeGzip(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		b, err = os.ReadFile(path + ".gz")
		if err == nil {
			var z *gzip.Reader
			if z, err = gzip.NewReader(bytes.NewReader(b)); err == nil {
				b, err = io.ReadAll(z)
			}
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

type goldenText struct{ Category, Text string }

func golden[T any](t testing.TB, path string) (v T) {
	t.Helper()
	if err := json.Unmarshal(readMaybeGzip(t, path), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// conform compares a tokenizer with reference ids, text by text.
func conform(t *testing.T, tok *Tokenizer, texts []goldenText, want [][]uint32, opt Options) {
	t.Helper()
	if len(want) != len(texts) {
		t.Fatalf("%d texts, %d results", len(texts), len(want))
	}
	wrong := 0
	for i, text := range texts {
		got := tok.Encode(nil, text.Text, opt)
		if !slices.Equal(got, want[i]) {
			if wrong++; wrong <= 5 {
				t.Errorf("text %d (%s) %.80q:\n got %v\nwant %v", i, text.Category, text.Text, head(got), head(want[i]))
			}
		}
	}
	t.Logf("%d of %d texts equal", len(texts)-wrong, len(texts))
}

func head(ids []uint32) []uint32 { return ids[:min(len(ids), 40)] }

func TestConformanceTokenizer(t *testing.T) {
	dir := filepath.Join(outside(t, "SIGHTLINE_GOLDEN"), "tokenizer")
	models := outside(t, "SIGHTLINE_MODELS")
	texts := golden[[]goldenText](t, filepath.Join(dir, "texts.json"))
	for name, model := range map[string]string{"qwen2_5": "qwen2.5-vl-7b-instruct", "llama3_2": "llama3.1", "gemma3": "gemma3"} {
		t.Run(name, func(t *testing.T) {
			tok, err := LoadJSON(readMaybeGzip(t, filepath.Join(models, model, "tokenizer.json")))
			if err != nil {
				t.Fatal(err)
			}
			conform(t, tok, texts, golden[[][]uint32](t, filepath.Join(dir, name+".ids.json")), Options{})
		})
	}
}
