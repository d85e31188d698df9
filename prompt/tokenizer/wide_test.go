package tokenizer

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sightline-router/sightline/lab/golden"
)

// TestWideEqualsMerging compares long words of three-byte characters, complete and broken, with merging pair by pair. The merges
// are random, so that many cross from one character into a part of the next.
func TestWideEqualsMerging(t *testing.T) {
	parts := []string{"中", "文", "字", "中文", "文字中", "語", "々", "\xe4", "\xb8\xad", "\xad", "é", "a"}
	cuts, joined := 0, 0
	for _, merges := range []int{10, 60, 200, 800} {
		m := chatTokenizer(t, merges).model
		s := new(scratch)
		r := rand.New(rand.NewPCG(4, uint64(merges)))
		for range 600 {
			var word []byte
			for n := 1 + r.IntN(90); len(word) < n; {
				word = append(word, parts[min(r.IntN(len(parts)), r.IntN(len(parts)))]...)
			}
			want := mergeNaively(m, m.symbols(nil, word))
			if got := m.encodeWide(nil, s, word, 0, len(word)); !slices.Equal(got, want) {
				t.Fatalf("%d merges, %q: got %v, pair by pair %v, want %v", merges, word, got, want, want)
			}
			for i := 0; i < len(word); {
				if stop := m.wide.piece(word, i, len(word)); stop-i == 3 {
					cuts, i = cuts+1, stop
				} else {
					joined, i = joined+1, stop
				}
			}
		}
	}
	if cuts < 1000 || joined < 1000 {
		t.Errorf("%d pieces of one character, %d others: both should be many, want at least 1000, at least 1000", cuts, joined)
	}
}

// TestConformanceWide does the same with real vocabularies, against merging with a heap: any wide characters, and the
// tokens of the vocabulary itself in any order.
func TestConformanceWide(t *testing.T) {
	models := golden.Models(t)
	for _, model := range []string{"qwen2.5-vl-7b-instruct", "llama3.1"} {
		tok, err := LoadJSON(golden.Read(t, models, model, "tokenizer.json"))
		if err != nil {
			t.Fatal(err)
		}
		m, s := tok.model, new(scratch)
		r := rand.New(rand.NewPCG(5, 6))
		var wide [][]byte // tokens with a byte that begins a wide character, or continues one
		for id := range m.vocab.span() {
			if text, ok := m.textOf(nil, id); ok && slices.ContainsFunc(text, func(c byte) bool { return c >= 0xE0 || c&0xC0 == 0x80 }) {
				wide = append(wide, text)
			}
		}
		for range 3000 {
			var word []byte
			for n := 30 + r.IntN(400); len(word) < n; {
				switch r.IntN(4) {
				case 0:
					word = append(word, string(rune(0x3000+r.IntN(0xD000)))...)
				case 1:
					word = append(word, string(rune(0x4E00+r.IntN(0x1000)))...)
				default:
					word = append(word, wide[r.IntN(len(wide))]...)
				}
			}
			want := m.symbols(nil, word)
			want = want[:m.mergeHeap(s, want)]
			if got := m.encodeWide(nil, s, word, 0, len(word)); !slices.Equal(got, want) {
				t.Fatalf("%s, %q: %v, merging %v; got %v, want %v", model, word, head(got), head(want), got, want)
			}
		}
	}
}
