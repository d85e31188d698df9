package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/lab/golden"
)

func BenchmarkEncode(b *testing.B) {
	models, texts := golden.Models(b), benchTexts(b, golden.Dir(b, "tokenizer"))
	for _, model := range []string{"qwen2.5-vl-7b-instruct", "llama3.1", "gemma3"} {
		tok, err := LoadJSON(golden.Read(b, models, model, "tokenizer.json"))
		if err != nil {
			b.Error(err)
			continue
		}
		for _, text := range texts {
			b.Run(model+"/"+text.Category, func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(text.Text)))
				ids := tok.Encode(nil, text.Text, Options{})
				for b.Loop() {
					ids = tok.Encode(ids[:0], text.Text, Options{})
				}
				b.ReportMetric(float64(len(ids)), "tokens")
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(ids)), "ns/token")
			})
		}
	}
}

// benchTexts returns about 8,000 tokens of prose, and long runs that must not cost more per byte.
func benchTexts(b testing.TB, dir string) []goldenText {
	var prose, mixed, han strings.Builder
	var texts []goldenText
	golden.JSON(b, &texts, dir, "texts.json")
	for _, text := range texts {
		if len(text.Text) > 1000 && text.Category == "english" && prose.Len() < 36000 {
			prose.WriteString(text.Text)
		}
		if mixed.Len() < 1<<16 {
			mixed.WriteString(text.Text)
		}
		for _, r := range text.Text {
			if r >= 0x4E00 && r < 0x9FFF && han.Len() < 1<<20 {
				han.WriteRune(r)
			}
		}
	}
	hanText := han.String()
	var shuffled strings.Builder
	runes, r := []rune(hanText), rand.New(rand.NewPCG(1, 2))
	for shuffled.Len() < 1<<20 {
		i := r.IntN(len(runes) - 4)
		shuffled.WriteString(string(runes[i : i+2+r.IntN(3)]))
	}
	random := func(first, count int) string {
		var b strings.Builder
		for b.Len() < 1<<20 {
			b.WriteRune(rune(first + r.IntN(count)))
		}
		return b.String()
	}
	return []goldenText{
		{"prose", prose.String()},
		{"mixed", mixed.String()},
		{"1MB-letter", strings.Repeat("a", 1<<20)},
		{"1MB-spaces", strings.Repeat(" ", 1<<20)},
		{"1MB-han", strings.Repeat(hanText, 1+(1<<20)/(len(hanText)+1))[:1<<20/3*3]},
		{"1MB-han-shuffled", shuffled.String()},
		{"1MB-han-random", random(0x4E00, 0x5200)},
		{"1MB-hangul-random", random(0xAC00, 0x2BA0)},
		{"1MB-kana-random", random(0x3041, 0x56)},
		{"1MB-one-han", strings.Repeat("中", 1<<20/3)},
		{"1MB-one-sign", strings.Repeat("=", 1<<20)},
		{"1MB-one-mark", strings.Repeat("\u0301", 1<<19)},
		{"1MB-one-bar", strings.Repeat("▁", 1<<20/3)},
	}
}

func BenchmarkLoad(b *testing.B) {
	file := golden.Read(b, golden.Models(b, "qwen2.5-vl-7b-instruct", "tokenizer.json"))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := LoadJSON(file); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkConversation encodes the last of 30 turns of a growing conversation, with and without the cache of turns.
func BenchmarkConversation(b *testing.B) {
	prose := benchTexts(b, golden.Dir(b, "tokenizer"))[0].Text
	tok, err := LoadJSON(golden.Read(b, golden.Models(b, "qwen2.5-vl-7b-instruct", "tokenizer.json")))
	if err != nil {
		b.Fatal(err)
	}
	var text strings.Builder
	for i := range 30 {
		text.WriteString("<|im_start|>user\n" + prose[i*1000:i*1000+1000] + "<|im_end|>\n")
	}
	cache := tok.NewCache(8<<20, 1)
	for name, encode := range map[string]func([]uint32, string, Options) []uint32{"cached": cache.Encode, "plain": tok.Encode} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			ids := encode(nil, text.String(), Options{})
			for b.Loop() {
				ids = encode(ids[:0], text.String(), Options{})
			}
			b.ReportMetric(float64(len(ids)), "tokens")
		})
	}
}
