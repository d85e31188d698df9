package vllm

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/prompt/tokenizer"
)

// TestNeighboursByType: what transformers makes of a tokenizer.json and the files beside it, by model type (prompt/tokenizer/testdata).
func TestNeighboursByType(t *testing.T) {
	f, err := os.Open("../../prompt/tokenizer/testdata/neighbours.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		Texts []string
		JSON  map[string]string `json:"tokenizer.json"`
		Cases []struct {
			Kind  string
			Files map[string]json.RawMessage
			IDs   [][]uint32
		}
	}
	b, err := io.ReadAll(z)
	if err != nil || json.Unmarshal(b, &r) != nil {
		t.Fatalf("does not load %v, want no error, no error", err)
	}
	v, err := rules.ParseVersion("0.32.0")
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, c := range r.Cases {
		if c.Kind == "large" || c.IDs == nil || bytes.Contains(c.Files["config.json"], []byte(`"llama"`)) && compared > 300 {
			continue
		}
		dir := t.TempDir()
		c.Files["tokenizer.json"] = json.RawMessage(r.JSON[c.Kind])
		for name, text := range c.Files {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		m, err := prompt.Load(dir, prompt.Options{Dialect: Dialect(v)})
		if err != nil {
			t.Fatal(err)
		}
		if m.Tokenizer().Unlike() != "" || m.Fault() != nil { // no scanner knows the pattern of one
			continue
		}
		compared++
		for i, text := range r.Texts {
			if got := m.Tokenizer().Encode(nil, text, tokenizer.Options{AddSpecial: true}); !slices.Equal(got, c.IDs[i]) {
				t.Errorf("%s %s: %q: got %v, want %v", c.Files["config.json"], c.Files["tokenizer_config.json"], text, got, c.IDs[i])
				break
			}
		}
	}
	if compared < 300 {
		t.Errorf("got %d directories compared, want 300", compared)
	}
}
