package tokenizer

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sightline-router/sightline/lab/golden"
)

type goldenText struct{ Category, Text string }

// conform compares a tokenizer with reference ids, text by text.
func conform(t *testing.T, tok *Tokenizer, texts []goldenText, ids string) {
	t.Helper()
	var want [][]uint32
	golden.JSON(t, &want, ids)
	if len(want) != len(texts) {
		t.Fatalf("%d texts, %d results, want %d", len(texts), len(want), len(texts))
	}
	wrong := 0
	for i, text := range texts {
		got := tok.Encode(nil, text.Text, Options{})
		if !slices.Equal(got, want[i]) {
			wrong++
			if wrong <= 5 {
				t.Errorf("text %d (%s) %.80q:\n got %v\nwant %v", i, text.Category, text.Text, head(got), head(want[i]))
			}
		}
	}
	t.Logf("%d of %d texts equal", len(texts)-wrong, len(texts))
}

func head(ids []uint32) []uint32 { return ids[:min(len(ids), 40)] }

func TestConformanceTokenizer(t *testing.T) {
	dir := golden.Dir(t, "tokenizer")
	models, texts := golden.Models(t), []goldenText{}
	golden.JSON(t, &texts, dir, "texts.json")
	for name, model := range map[string]string{"qwen2_5": "qwen2.5-vl-7b-instruct", "llama3_2": "llama3.1", "gemma3": "gemma3"} {
		t.Run(name, func(t *testing.T) {
			tok, err := LoadJSON(golden.Read(t, models, model, "tokenizer.json"))
			if err != nil {
				t.Fatal(err)
			}
			conform(t, tok, texts, filepath.Join(dir, name+".ids.json"))
		})
	}
}

func TestConformanceTokenizerKinds(t *testing.T) {
	dir := golden.Dir(t, "tokenizer_kinds")
	models, texts := golden.Models(t), []goldenText{}
	golden.JSON(t, &texts, dir, "texts.json")
	fromFile := func(load func([]byte) (*Tokenizer, error), file string) func(testing.TB) (*Tokenizer, error) {
		return func(t testing.TB) (*Tokenizer, error) { return load(golden.Read(t, models, file)) }
	}
	fromMistral := func(load func([]byte) (*Tokenizer, error), file string) func(testing.TB) (*Tokenizer, error) {
		return func(t testing.TB) (*Tokenizer, error) { return load(golden.Read(t, golden.MistralCommon(t, file))) }
	}
	for name, load := range map[string]func(testing.TB) (*Tokenizer, error){
		"llava15_llama2_bpe_tokenizer_json": fromFile(LoadJSON, "llava-1.5-7b-hf/tokenizer.json"),
		"mistral_nemo_tokenizer_json":       fromFile(LoadJSON, "mistral-nemo-vocab/tokenizer.json"),
		"minicpm_v_4_5_tokenizer_json":      fromFile(LoadJSON, "minicpm-v-4.5/tokenizer.json"),
		"qwen3_tokenizer_json":              fromFile(LoadJSON, "qwen3-vl/tokenizer.json"),
		"gemma3_tokenizer_json":             fromFile(LoadJSON, "gemma3/tokenizer.json"),
		"granite_docling_auto": func(testing.TB) (*Tokenizer, error) {
			return Load(os.DirFS(filepath.Join(models, "granite-docling-258m")), nil)
		},
		"llava15_sentencepiece_model": fromFile(LoadSentencePiece, "llava-1.5-7b-hf/tokenizer.model"),
		"mistral_spm_v1":              fromMistral(LoadSentencePiece, "tokenizer.model.v1"),
		"mistral_spm_v3":              fromMistral(LoadSentencePiece, "mistral_instruct_tokenizer_240323.model.v3"),
		"tekken_240718":               fromMistral(LoadTekken, "tekken_240718.json"),
		"tekken_240911":               fromMistral(LoadTekken, "tekken_240911.json"),
	} {
		t.Run(name, func(t *testing.T) {
			tok, err := load(t)
			if err != nil {
				t.Fatal(err)
			}
			conform(t, tok, texts, filepath.Join(dir, name+".ids.json"))
		})
	}
}
