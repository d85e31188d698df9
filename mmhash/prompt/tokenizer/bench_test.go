package tokenizer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func BenchmarkEncode(b *testing.B) {
	models := outside(b, "SIGHTLINE_MODELS")
	golden := filepath.Join(outside(b, "SIGHTLINE_GOLDEN"), "tokenizer")
	texts := benchTexts(b, golden)
	for _, model := range []string{"qwen2.5-vl-7b-instruct", "llama3.1", "gemma3"} {
		tok, err := LoadJSON(readMaybeGzip(b, filepath.Join(models, model, "tokenizer.json")))
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

// benchTexts gives about 8,000 tokens of prose, and the long runs that must not cost more per byte.
func benchTexts(b testing.TB, dir string) []goldenText {
	var prose, mixed, han strings.Builder
	for _, text := range golden[[]goldenText](b, filepath.Join(dir, "texts.json")) {
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
	return []goldenText{
		{"prose", prose.String()},
		{"mixed", mixed.String()},
		{"1MB-letter", strings.Repeat("a", 1<<20)},
		{"1MB-spaces", strings.Repeat(" ", 1<<20)},
		{"1MB-han", strings.Repeat(hanText, 1+(1<<20)/(len(hanText)+1))[:1<<20/3*3]},
		{"1MB-one-han", strings.Repeat("中", 1<<20/3)},
	}
}

func BenchmarkLoad(b *testing.B) {
	models := outside(b, "SIGHTLINE_MODELS")
	file, err := os.ReadFile(filepath.Join(models, "qwen2.5-vl-7b-instruct", "tokenizer.json"))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := LoadJSON(file); err != nil {
			b.Fatal(err)
		}
	}
}
