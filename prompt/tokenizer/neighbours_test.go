package tokenizer

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// recorded is what testdata/neighbours.py recorded of transformers.
type recorded struct {
	Transformers string
	Keys, Looked []string
	Texts        []string
	JSON         map[string]string `json:"tokenizer.json"`
	Cases        []struct {
		Kind  string
		Files map[string]json.RawMessage
		IDs   [][]uint32 // null: transformers does not load it
	}
}

func readRecorded(t *testing.T) (r recorded) {
	t.Helper()
	f, err := os.ReadFile("testdata/neighbours.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(f))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil || json.Unmarshal(b, &r) != nil {
		t.Fatalf("testdata/neighbours.json.gz does not load %v, want no error, no error", err)
	}
	var large map[string]any
	if err := json.Unmarshal([]byte(r.JSON["bytes"]), &large); err != nil {
		t.Fatal(err)
	}
	vocab := large["model"].(map[string]any)["vocab"].(map[string]any)
	for i := range 100_001 {
		vocab["Ġ#"+strconv.Itoa(i)] = len(vocab)
	}
	for _, a := range large["added_tokens"].([]any) {
		a := a.(map[string]any)
		a["id"] = a["id"].(float64) + 100_001
	}
	large["post_processor"] = nil
	b, _ = json.Marshal(large)
	r.JSON["large"] = string(b)
	return r
}

// classFor stands for the engine's choice of a class (engine/vllm has its own test).
func classFor(name string) Class {
	switch class := Class(strings.TrimSuffix(name, "Fast")); {
	case Listed(class):
		return class
	case slices.Contains([]Class{"RobertaTokenizer", "CodeLlamaTokenizer"}, class):
		return Unlisted
	}
	return AsFile
}

// TestNeighbours: the ids are those of transformers, or the tokenizer says that they are not.
func TestNeighbours(t *testing.T) {
	r := readRecorded(t)
	exact, failed, unlike := 0, 0, map[string]int{}
	for _, c := range r.Cases {
		var kind struct {
			Type string `json:"model_type"`
		}
		dir := files("tokenizer.json", r.JSON[c.Kind])
		for name, b := range c.Files {
			dir[name] = files(name, string(b))[name]
		}
		if err := json.Unmarshal(c.Files["config.json"], &kind); err != nil {
			t.Fatal(err)
		}
		if !slices.Contains([]string{"llama", "mistral3", "pixtral"}, kind.Type) {
			continue // TestNeighboursByType in engine/vllm
		}
		classOf := classFor
		if kind.Type != "llama" {
			classOf = func(string) Class { return AsFile }
		}
		tok, err := Load(dir, classOf)
		if err != nil {
			if !strings.Contains(err.Error(), "no scanner knows it") {
				t.Errorf("%s: got %v, want a tokenizer", c.Files, err)
			}
			continue
		}
		if c.IDs == nil {
			failed++
			continue
		}
		if tok.Unlike() != "" {
			unlike[tok.Unlike()]++
			continue
		}
		exact++
		for i, text := range r.Texts {
			got := tok.Encode(nil, text, Options{AddSpecial: true})
			if fmt.Sprint(got) != fmt.Sprint(c.IDs[i]) {
				t.Errorf("%s %s: %q: got %v, want %v", c.Kind, c.Files, text, got, c.IDs[i])
				break
			}
		}
	}
	t.Logf("transformers %s: %d directories equal, %d that it does not load, not exact: %v", r.Transformers, exact, failed, unlike)
	if exact < 400 {
		t.Errorf("got %d directories compared, want 400", exact)
	}
}

// TestEveryKeyIsKnown: each key and file that transformers looks for is in a table here.
func TestEveryKeyIsKnown(t *testing.T) {
	r := readRecorded(t)
	for _, key := range r.Keys {
		if _, ok := keys[key]; !ok {
			t.Errorf("transformers %s reads the key %s: got no entry in keys, want one", r.Transformers, key)
		}
	}
	for _, file := range r.Looked {
		if _, ok := neighbours[file]; !ok {
			t.Errorf("transformers %s reads the file %s: got no entry in neighbours, want one", r.Transformers, file)
		}
	}
	if len(r.Keys) < 60 || len(r.Looked) < 5 {
		t.Errorf("got %d keys and %d files, want what transformers reads", len(r.Keys), len(r.Looked))
	}
}
