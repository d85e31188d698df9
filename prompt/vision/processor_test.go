package vision

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/lab/golden"
)

// processorDirs adds what a processor's class settings take from the rest of the model directory.
var processorDirs = map[string]struct {
	typ             string
	config          obj
	proc, tokenizer obj
	kw              Kwargs
	mistral         bool
}{
	"aya_vision":          {typ: "aya_vision"},
	"cohere2_vision":      {typ: "cohere2_vision"},
	"deepseek_ocr2":       {typ: "deepseek_ocr2"},
	"deepseek_vl":         {typ: "deepseek_vl"},
	"ernie4_5_vl":         {typ: "ernie4_5_vl_moe"},
	"gemma3":              {typ: "gemma3"},
	"gemma3_pan_scan":     {typ: "gemma3", kw: Kwargs{"do_pan_and_scan": true}},
	"gemma3n":             {typ: "gemma3n"},
	"gemma4_1120":         {typ: "gemma4", tokenizer: obj{"boi_token": "<boi>", "eoi_token": "<eoi>"}},
	"gemma4_280":          {typ: "gemma4", tokenizer: obj{"boi_token": "<boi>", "eoi_token": "<eoi>"}},
	"glm46v_classdefault": {typ: "glm46v"},
	"glm4_1v":             {typ: "glm4v"},
	"granite_docling":     {typ: "granite_docling"},
	"granite_docling_dir": {typ: "idefics3", proc: obj{"image_seq_len": 64}},
	"hunyuan_vl":          {typ: "hunyuan_vl"},
	"idefics2":            {typ: "idefics2"},
	"idefics3_8b":         {typ: "idefics3"},
	"internvl_12":         {typ: "internvl"},
	"internvl_6":          {typ: "internvl"},
	"janus":               {typ: "janus"},
	"kimi_k25":            {typ: "kimi_k25"},
	"lfm2_vl":             {typ: "lfm2_vl"},
	"llama4":              {typ: "llama4"},
	"llava15": {typ: "llava", proc: obj{"patch_size": 14, "num_additional_image_tokens": 1,
		"vision_feature_select_strategy": "default"}},
	"llava_next": {typ: "llava_next", proc: obj{"patch_size": 14, "num_additional_image_tokens": 1,
		"vision_feature_select_strategy": "default"}},
	"llava_onevision":     {typ: "llava_onevision"},
	"minicpmv4_6":         {typ: "minicpmv4_6"},
	"minimax_m3_vl":       {typ: "minimax_m3_vl"},
	"mistral_small_31_hf": {typ: "mistral3", proc: obj{"patch_size": 14, "spatial_merge_size": 2}},
	"mistral_small_31_mistral": {mistral: true, config: obj{"vision_encoder": obj{"image_size": 1540, "patch_size": 14,
		"spatial_merge_size": 2}}},
	"mllama":                 {typ: "mllama"},
	"molmo2":                 {typ: "molmo2", tokenizer: obj{"eos_token": "<|endoftext|>"}},
	"paddleocr_vl":           {typ: "paddleocr_vl"},
	"paligemma":              {typ: "paligemma"},
	"perception_lm":          {typ: "perception_lm", proc: obj{"patch_size": 14}},
	"phi4mm_36":              {typ: "phi4_multimodal"},
	"pixtral_hf":             {typ: "pixtral"},
	"pixtral_mistral":        {mistral: true, config: obj{"vision_encoder": obj{"image_size": 1024, "patch_size": 16}}},
	"qwen2_5_omni":           {typ: "qwen2_5_omni"},
	"qwen2_5_vl":             {typ: "qwen2_5_vl"},
	"qwen2_vl":               {typ: "qwen2_vl"},
	"qwen2_vl_classdefault":  {typ: "qwen2_vl"},
	"qwen2_vl_tuned":         {typ: "qwen2_vl"},
	"qwen3_5":                {typ: "qwen3_5"},
	"qwen3_vl":               {typ: "qwen3_vl"},
	"qwen3_vl_embedding_dir": {typ: "qwen3_vl"},
	"smolvlm2":               {typ: "smolvlm", proc: obj{"image_seq_len": 81}},
	"smolvlm_512":            {typ: "smolvlm", proc: obj{"image_seq_len": 64}},
}

type processorFamily struct {
	Family                 string
	Processor              string
	Image_processor        string
	Placeholder            string
	Tokenizer              string
	Image_processor_config obj
}

// rle is a list of tokens' texts, each with its number of repetitions.
type rle [][2]any

func (r rle) all(yield func(token string, n int) bool) {
	for _, run := range r {
		if !yield(run[0].(string), int(run[1].(float64))) {
			return
		}
	}
}

// stream returns stream of the tokens; plain converts the text of those that are not special.
func (r rle) stream(special map[string]bool, plain func(string) string) string {
	return stream(func(yield func(string, int) bool) {
		for token, n := range r.all {
			if !special[token] {
				token = plain(token)
			}
			yield(token, n)
		}
	}, special)
}

// mediaOf returns images of these sizes.
func mediaOf(sizes [][2]int) (media []Media) {
	for _, s := range sizes {
		media = append(media, Media{Width: s[0], Height: s[1]})
	}
	return media
}

// byteLevel converts a golden's token text to plain text.
func byteLevel(token string) string {
	return strings.NewReplacer("Ġ", " ", "Ċ", "\n", "ĉ", "\t", "▁", " ").Replace(token)
}

// stream writes tokens so that the results of two tokenizers of plain text compare equal: special tokens with their count, text as
// text.
func stream(tokens func(yield func(string, int) bool), special map[string]bool) string {
	var b strings.Builder
	last, n := "", 0
	flush := func() {
		if n > 0 {
			fmt.Fprintf(&b, "[%s*%d]", last, n)
		}
		last, n = "", 0
	}
	tokens(func(t string, k int) bool {
		if special[t] {
			if t != last {
				flush()
			}
			last, n = t, n+k
			return true
		}
		flush()
		for range k {
			b.WriteString(t)
		}
		return true
	})
	flush()
	return b.String()
}

func loadProcessor(t testing.TB, f processorFamily, reading Reading, tokens map[string]bool) (*Expander, *stubTokens) {
	t.Helper()
	d, ok := processorDirs[f.Family]
	if !ok {
		t.Fatalf("no directory for %s", f.Family)
	}
	var names []string
	for name := range tokens {
		if len(name) > 1 && strings.ContainsAny(name, "<>[]|_") && !strings.ContainsAny(name, "Ġ▁Ċ") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, c := range families() {
		if slices.Contains(c.types, d.typ) && (c.when == nil || d.typ == "llava") || d.mistral && c.name == "pixtral_native" ||
			d.typ == "mistral3" && c.name == "pixtral" {
			names = append(names, specialsOf(c)...)
		}
	}
	if f.Tokenizer == "real" {
		names = append(names, "\n\n")
	}
	stub := newStub(names...)
	files := obj{"tokenizer_config.json": d.tokenizer}
	if d.tokenizer == nil {
		delete(files, "tokenizer_config.json")
	}
	if d.mistral {
		files["params.json"] = d.config
	} else {
		pre := obj{"processor_class": f.Processor, "image_processor_type": f.Image_processor}
		maps.Copy(pre, f.Image_processor_config)
		files["preprocessor_config.json"] = pre
		files["config.json"] = obj{"model_type": d.typ}
		if d.typ == "pixtral" {
			files["config.json"] = obj{"model_type": "llava", "vision_config": obj{"model_type": "pixtral"}}
		}
		if d.proc != nil {
			files["processor_config.json"] = d.proc
		}
	}
	m, err := Load(dir(files), stub, Options{Reading: reading})
	if err != nil {
		t.Fatalf("%s: got %v, want no error", f.Family, err)
	}
	return m, stub
}

// processorRow is one expansion of a processor: of an image of one size, or of a whole prompt.
type processorRow struct {
	W, H  int
	RLE   rle
	Error string

	Case, Prompt string
	Images       [][2]int
	Tokens       rle `json:"tokens_rle"`
	Ranges       [][2]int
}

// eachProcessor calls do for each family with rows in a file, with its tokens and a model that knows these.
func eachProcessor(t *testing.T, file string, do func(f processorFamily, rows []processorRow, tokens map[string]bool,
	m *Expander, stub *stubTokens)) int {
	var fams []processorFamily
	golden.JSON(t, &fams, "testdata/processor_families.json.gz")
	var all map[string][]processorRow
	golden.JSON(t, &all, "testdata", file)
	for _, f := range fams {
		if len(all[f.Family]) == 0 {
			continue
		}
		tokens := map[string]bool{}
		for _, r := range all[f.Family] {
			for token := range append(r.RLE, r.Tokens...).all {
				tokens[token] = true
			}
		}
		m, stub := loadProcessor(t, f, transformers, tokens)
		do(f, all[f.Family], tokens, m, stub)
	}
	return len(all)
}

// TestProcessorCounts: the processor's own expansion of "A" + placeholder + "B" for every size.
func TestProcessorCounts(t *testing.T) {
	rows := 0
	families := eachProcessor(t, "processor_counts.json.gz", func(f processorFamily, recorded []processorRow,
		_ map[string]bool, m *Expander, stub *stubTokens) {
		special := stub.special()
		placeholder := f.Placeholder
		if processorDirs[f.Family].mistral {
			placeholder = "[IMG]"
		}
		for _, r := range recorded {
			rows++
			ids, spans, err := m.ExpandText(nil, "A"+placeholder+"B", []Media{{Width: r.W, Height: r.H}}, processorDirs[f.Family].kw)
			if r.Error != "" {
				if _, ok := errors.AsType[*RefusedError](err); !ok {
					t.Errorf("%s %dx%d: want a refusal (%s), have %d ids, %v", f.Family, r.W, r.H, r.Error, len(ids), err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s %dx%d: got %v, want no error", f.Family, r.W, r.H, err)
				continue
			}
			want := r.RLE.stream(special, byteLevel)
			have := streamIDs(stub, ids, special)
			if f.Tokenizer == "real" {
				// SentencePiece marks words with spaces, which the stub lacks.
				want, have = strings.ReplaceAll(want, " ", ""), strings.ReplaceAll(have, " ", "")
			}
			if processorDirs[f.Family].mistral {
				want = "A" + want + "B" // the golden holds only the image
			}
			if have != want {
				t.Errorf("%s %dx%d: want %.300s\nhave %.300s", f.Family, r.W, r.H, want, have)
				break
			}
			if len(spans) != 1 {
				t.Errorf("%s: got %d spans, want 1", f.Family, len(spans))
			}
		}
	})
	t.Logf("%d rows of %d families", rows, families)
}

func streamIDs(stub *stubTokens, ids []uint32, special map[string]bool) string {
	return stream(func(yield func(string, int) bool) {
		for _, id := range ids {
			yield(stub.DecodeText([]uint32{id}), 1)
		}
	}, special)
}

// Whole prompts of the families whose golden tokenizer is one token per byte.
func TestProcessorPrompts(t *testing.T) {
	rows, ranges := 0, 0
	families := eachProcessor(t, "processor_prompts.json.gz", func(f processorFamily, recorded []processorRow,
		tokens map[string]bool, m *Expander, stub *stubTokens) {
		bytewise := true
		for tok := range tokens {
			if len([]rune(tok)) > 1 && !strings.ContainsAny(tok, "<[]") {
				bytewise = false
			}
		}
		special := stub.special()
		for _, r := range recorded {
			rows++
			ids, spans, err := m.ExpandText(nil, r.Prompt, mediaOf(r.Images), processorDirs[f.Family].kw)
			if err != nil {
				t.Errorf("%s %s: got %v, want no error", f.Family, r.Case, err)
				continue
			}
			want := r.Tokens.stream(special, goldenBytes)
			if have := streamIDs(stub, ids, special); have != want {
				t.Errorf("%s %s: want %s\nhave %s", f.Family, r.Case, want, have)
				continue
			}
			if !bytewise || r.Ranges == nil {
				continue
			}
			var have [][2]int
			for _, s := range spans {
				have = append(have, [2]int{s.Offset, s.Length})
			}
			ranges++
			if !slices.Equal(have, r.Ranges) {
				t.Errorf("%s %s: want ranges %v, have %v", f.Family, r.Case, r.Ranges, have)
			}
		}
	})
	t.Logf("%d prompts of %d families, ranges of %d", rows, families, ranges)
}

// goldenBytes reverses GPT-2's printable bytes.
func goldenBytes(token string) string {
	var b strings.Builder
	for _, r := range token {
		switch {
		case r >= 256 && r < 256+33:
			b.WriteByte(byte(r - 256))
		case r >= 256+33 && r <= 256+66:
			b.WriteByte(byte(r - 256 - 33 + 127))
		case r == 256+67:
			b.WriteByte(173)
		case r < 256:
			b.WriteByte(byte(r))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
