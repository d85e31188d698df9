package tokenizer

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestMergesThatCannotHappen compares models in which tokens arise in many ways, some before their parts, with merging strings by
// the list as given.
func TestMergesThatCannotHappen(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	dropped := 0
	for range 300 {
		texts := strings.Split("a b c", " ")
		for len(texts) < 25 {
			if text := texts[r.IntN(len(texts))] + texts[r.IntN(len(texts))]; !slices.Contains(texts, text) {
				texts = append(texts, text)
			}
		}
		vocab, rank := map[string]int{}, map[[2]string]int{}
		var merges [][2]string
		for id, text := range texts {
			vocab[text] = id
			for i := 1; i < len(text); i++ {
				if slices.Contains(texts, text[:i]) && slices.Contains(texts, text[i:]) {
					merges = append(merges, [2]string{text[:i], text[i:]})
				}
			}
		}
		for range r.IntN(6) {
			i, j := r.IntN(len(merges)), r.IntN(len(merges))
			merges[i], merges[j] = merges[j], merges[i]
		}
		merges = append(merges, merges[r.IntN(len(merges))]) // the later one is used
		for i, m := range merges {
			rank[m] = i
		}
		spec, err := json.Marshal(map[string]any{"model": map[string]any{"type": "BPE", "vocab": vocab, "merges": merges}})
		if err != nil {
			t.Fatal(err)
		}
		tok, err := LoadJSON(spec)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(tok.model.pairs.slots); n < slotsFor(len(merges)) {
			dropped++
		}
		for range 20 {
			var text []byte
			for range 1 + r.IntN(60) {
				text = append(text, "abc"[r.IntN(3)])
			}
			words := strings.Split(string(text), "")
			for {
				best, at := len(merges), 0
				for i := 1; i < len(words); i++ {
					if n, ok := rank[[2]string{words[i-1], words[i]}]; ok && n < best {
						best, at = n, i
					}
				}
				if at == 0 {
					break
				}
				words = slices.Replace(words, at-1, at+1, words[at-1]+words[at])
			}
			var want []uint32
			for _, word := range words {
				want = append(want, uint32(vocab[word]))
			}
			if got := tok.Encode(nil, string(text), Options{}); !slices.Equal(got, want) {
				t.Fatalf("%s of %s: %v, want %v", text, spec, got, want)
			}
		}
	}
	if dropped == 0 {
		t.Errorf("no model left merges out: got %d, want some", dropped)
	}
}
