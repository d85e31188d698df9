package vision

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/sightline-router/sightline/lab/golden"
	"github.com/sightline-router/sightline/prompt/tokenizer"
)

// Tests with real vocabularies and a real engine's recordings. They read the
// directories named by SIGHTLINE_GOLDEN and SIGHTLINE_MODELS and are skipped
// where those are unset: the files are not part of this repository.

type realTokens struct{ *tokenizer.Tokenizer }

func (t realTokens) EncodeText(dst []uint32, text string) []uint32 {
	return t.Encode(dst, text, tokenizer.Options{})
}

func (t realTokens) DecodeText(ids []uint32) string { return t.Decode(ids, false) }

func loadTokens(t *testing.T, data []byte) realTokens {
	t.Helper()
	tok, err := tokenizer.Load(fstest.MapFS{"tokenizer.json": {Data: data}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return realTokens{tok}
}

// recordedDir assembles one of the model directories of the recordings.
func recordedDir(t *testing.T, name string) fstest.MapFS {
	t.Helper()
	base := golden.Dir(t, "vllm", "model_dirs")
	var manifest map[string]map[string]struct{ Here, From string }
	golden.JSON(t, &manifest, base, "manifest.json")
	out := fstest.MapFS{}
	for file, where := range manifest[name] {
		path := golden.Models(t, where.From)
		if where.Here != "" {
			path = filepath.Join(base, where.Here)
		}
		if strings.HasPrefix(where.From, "pip package") {
			continue
		}
		out[file] = &fstest.MapFile{Data: golden.Read(t, path)}
	}
	return out
}

// Whole prompts of the Hugging Face processors with real vocabularies.
func TestConformanceProcessorPrompts(t *testing.T) {
	recordings, models := golden.Dir(t), golden.Models(t)
	var fams []processorFamily
	golden.JSON(t, &fams, recordings, "processor", "families.json")
	rename := func(data []byte, pairs ...string) []byte {
		return []byte(strings.NewReplacer(pairs...).Replace(string(data)))
	}
	in := func(parts ...string) []byte {
		return golden.Read(t, golden.Models(t, parts...))
	}
	vocab := map[string]func() []byte{
		"gemma3": func() []byte { return in("gemma3", "tokenizer.json.gz") },
		"qwen2":  func() []byte { return in("qwen2.5-vl-7b-instruct", "tokenizer.json") },
		"qwen3":  func() []byte { return in("qwen3-vl", "tokenizer.json.gz") },
		"llava":  func() []byte { return in("llava-1.5-7b-hf", "tokenizer.json") },
		"onevis": func() []byte {
			return rename(in("qwen2.5-vl-7b-instruct", "tokenizer.json"), "<|object_ref_start|>", "<image>")
		},
		"intern":  func() []byte { return recordedDir(t, "internvl")["tokenizer.json"].Data },
		"granite": nil, // vocab.json and merges.txt, read below
		"pixtral": func() []byte {
			return rename(in("mistral-nemo-vocab", "tokenizer.json.gz"), `"<pad>"`, `"[IMG]"`, "[MIDDLE]", "[IMG_BREAK]",
				"[SUFFIX]", "[IMG_END]", "<SPECIAL_17>", "[SYSTEM_PROMPT]", "<SPECIAL_18>", "[/SYSTEM_PROMPT]")
		},
	}
	use := map[string]string{"gemma3": "gemma3", "gemma3_pan_scan": "gemma3", "granite_docling_dir": "granite",
		"internvl_12": "intern", "internvl_6": "intern", "llava15": "llava",
		"llava_next": "llava", "llava_onevision": "onevis", "mistral_small_31_hf": "pixtral", "pixtral_hf": "pixtral",
		"qwen2_5_vl": "qwen2", "qwen2_vl": "qwen2",
		"qwen2_vl_classdefault": "qwen2", "qwen2_vl_tuned": "qwen2", "qwen3_vl": "qwen3", "qwen3_vl_embedding_dir": "qwen3"}
	loaded := map[string]realTokens{}
	rows, seen := 0, 0
	for _, f := range fams {
		path := filepath.Join(recordings, "processor", "prompts", f.Family+".json.gz")
		if _, err := os.Stat(path); err != nil || use[f.Family] == "" {
			continue
		}
		var prompts []struct {
			Case   string
			Images [][2]int
			Prompt string
			IDs    [][2]int `json:"ids_rle"`
			Ranges [][2]int
			Error  string
		}
		golden.JSON(t, &prompts, path)
		tok, ok := loaded[use[f.Family]]
		if !ok {
			if make := vocab[use[f.Family]]; make != nil {
				tok = loadTokens(t, make())
			} else {
				plain, err := tokenizer.Load(os.DirFS(filepath.Join(models, "granite-docling-258m")), nil)
				if err != nil {
					t.Error(err)
					continue
				}
				tok = realTokens{plain}
			}
			loaded[use[f.Family]] = tok
		}
		d := processorDirs[f.Family]
		pre := obj{}
		maps.Copy(pre, f.Image_processor_config)
		config := obj{"model_type": d.typ}
		if d.typ == "pixtral" {
			config = obj{"model_type": "llava", "vision_config": obj{"model_type": "pixtral"}}
		}
		files := obj{"config.json": config, "preprocessor_config.json": pre}
		if d.proc != nil {
			files["processor_config.json"] = d.proc
		}
		m, err := Load(dir(files), tok, Options{Reading: transformers})
		if err != nil {
			t.Errorf("%s: got %v, want no error", f.Family, err)
			continue
		}
		seen++
		for _, p := range prompts {
			if p.Error != "" {
				continue
			}
			rows++
			ids, spans, err := m.ExpandText(nil, p.Prompt, mediaOf(p.Images), nil)
			if err != nil {
				t.Errorf("%s %s: got %v, want no error", f.Family, p.Case, err)
				continue
			}
			if want := unroll(p.IDs); !slices.Equal(ids, want) {
				t.Errorf("got %s %s: %s, want slices.Equal(ids, want)", f.Family, p.Case, firstDifference(want, ids))
			}
			if p.Ranges != nil {
				for i, s := range spans {
					if p.Ranges[i] != [2]int{s.Offset, s.Length} {
						t.Errorf("%s %s: span %d: want %v, have %v", f.Family, p.Case, i, p.Ranges[i], s)
					}
				}
			}
		}
	}
	t.Logf("%d prompts of %d families", rows, seen)
}

func unroll(runs [][2]int) []uint32 {
	var out []uint32
	for _, r := range runs {
		out = appendRun(out, uint32(r[0]), r[1])
	}
	return out
}

func firstDifference(want, have []uint32) string {
	i := 0
	for i < len(want) && i < len(have) && want[i] == have[i] {
		i++
	}
	cut := func(s []uint32) []uint32 { return s[min(max(i-3, 0), len(s)):min(i+12, len(s))] }
	return fmt.Sprintf("%d ids, have %d; differ at %d: want …%v, have …%v", len(want), len(have), i, cut(want), cut(have))
}

var recordedImage = regexp.MustCompile(`@@([\w.]+)@@|18099/(?:redir/)?([\w.]+)"`)

// TestConformanceVLLM uses the recordings of a running vLLM: it replaces the spans of each prompt by placeholders and expands it
// again.
func TestConformanceVLLM(t *testing.T) {
	recordings := golden.Dir(t)
	var images map[string]struct{ Size [2]int }
	golden.JSON(t, &images, recordings, "vllm", "images", "index.json")
	var workers map[string]struct{ Flags []string }
	golden.JSON(t, &workers, recordings, "vllm", "workers.json")
	for _, file := range golden.Files(t, recordings, "vllm", "cases", "*.jsonl") {
		worker := strings.TrimSuffix(filepath.Base(file), ".jsonl")
		t.Run(worker, func(t *testing.T) {
			flags := workers[worker].Flags
			name := flags[1]
			model := recordedDir(t, name)
			var tok Tokens
			if model["tokenizer.json"] != nil {
				tok = loadTokens(t, model["tokenizer.json"].Data)
			} else {
				// mistral-common's file is read by another package; only the ids of its control tokens are needed here.
				stub := newStub("[IMG]", "[IMG_BREAK]", "[IMG_END]")
				stub.ids["[IMG]"], stub.ids["[IMG_BREAK]"], stub.ids["[IMG_END]"] = 10, 12, 13
				tok = stub
			}
			var err error
			opts := Options{}
			if i := slices.Index(flags, "--mm-processor-kwargs"); i >= 0 {
				opts.ProcessorKwargs, err = ParseKwargs([]byte(flags[i+1]))
				if err != nil {
					t.Fatal(err)
				}
			}
			m, err := Load(fs.FS(model), tok, opts)
			if err != nil {
				t.Fatal(err)
			}
			if name == "llama3" != !m.Multimodal() {
				t.Fatalf("%s: family %q", name, m.Family())
			}
			checked, spansSeen, skipped := replay(t, m, tok, file, images)
			t.Logf("%s: %d prompts, %d spans, %d skipped", m.Family(), checked, spansSeen, skipped)
		})
	}
}

type recordedCase struct {
	ID      string
	Status  int
	Request json.RawMessage
	Prompt  []any `json:"prompt_token_rle"`
	MM      []struct {
		Modality       string
		Offset, Length int
	}
	MMSource string `json:"mm_source"`
}

func replay(t *testing.T, m *Expander, tok Tokens, file string, images map[string]struct{ Size [2]int }) (checked, spansSeen, skipped int) {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewReaderSize(f, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var c recordedCase
			if err := json.Unmarshal(line, &c); err != nil {
				t.Fatal(err)
			}
			var media []Media
			video := false
			for _, hit := range recordedImage.FindAllSubmatch(c.Request, -1) {
				name := string(hit[1]) + string(hit[2])
				im, ok := images[name]
				video = video || strings.HasSuffix(name, ".mp4")
				if !ok {
					continue
				}
				w, h := im.Size[0], im.Size[1]
				if strings.Contains(name, "exif6") || strings.Contains(name, "exif8") {
					w, h = h, w
				}
				media = append(media, Media{Width: w, Height: h})
			}
			var req struct {
				Kwargs json.RawMessage `json:"mm_processor_kwargs"`
			}
			_ = json.Unmarshal(c.Request, &req)
			kw, _ := ParseKwargs(req.Kwargs)
			switch {
			case c.Status != 200:
				if len(kw) > 0 && c.Status == 400 && len(media) > 0 {
					var refusal *RefusedError
					if _, _, err := m.Count(media[0], kw); !errors.As(err, &refusal) {
						t.Errorf("%s: want a refusal, have %v", c.ID, err)
					}
					checked++
				}
			case len(c.MM) == 0 && len(media) == 0:
			case video, c.Prompt == nil, len(c.MM) != len(media), strings.Contains(c.ID, "uuid-empty"):
				skipped++ // videos, ids not recorded, reused uuids
			default:
				checked++
				spansSeen += replayOne(t, m, tok, c, media, kw)
			}
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func replayOne(t *testing.T, m *Expander, tok Tokens, c recordedCase, media []Media, kw Kwargs) int {
	var want []uint32
	for _, e := range c.Prompt {
		switch v := e.(type) {
		case float64:
			want = append(want, uint32(v))
		case []any:
			want = appendRun(want, uint32(v[0].(float64)), int(v[1].(float64)))
		}
	}
	// Put the placeholder back in the text.
	text := tok.DecodeText(want)
	var ids []uint32
	switch m.Family() {
	case "gemma3":
		full := "\n\n<start_of_image>" + strings.Repeat("<image_soft_token>", 256) + "<end_of_image>\n\n"
		ids = tok.EncodeText(nil, strings.ReplaceAll(text, full, "<start_of_image>"))
	case "internvl_chat":
		ids = tok.EncodeText(nil, regexp.MustCompile(`<img>(<IMG_CONTEXT>)+</img>`).ReplaceAllString(text, "<image>"))
	default:
		r := placeholderOf(m.placeholders, "image")
		from := 0
		for _, s := range c.MM {
			ids = append(append(ids, want[from:s.Offset]...), r.targets...)
			from = s.Offset + s.Length
			if c.MMSource != "" {
				// Taken from events: the length ends with the last full block.
				for from = s.Offset; from < len(want) && want[from] == r.id; from++ {
				}
			}
		}
		ids = append(ids, want[from:]...)
	}
	have, spans, err := m.Expand(nil, ids, media, kw)
	if err != nil {
		t.Errorf("%s: got %v, want no error", c.ID, err)
		return 0
	}
	if !slices.Equal(want, have) {
		t.Errorf("got %s: %s, want slices.Equal(want, have)", c.ID, firstDifference(want, have))
		return 0
	}
	for i, s := range spans {
		if s.Offset != c.MM[i].Offset || s.Length != c.MM[i].Length && c.MMSource == "" {
			t.Errorf("%s: span %d: want %v, have %v", c.ID, i, c.MM[i], s)
		}
	}
	return len(spans)
}

// Rendered chats of real model directories: ids, expanded ids and ranges.
func TestConformanceChat(t *testing.T) {
	models := golden.Models(t)
	var rows []struct {
		Model, Case, Text string
		Images            [][2]int
		IDs               []uint32
		RLE               [][2]int `json:"expanded_rle"`
		Ranges            [][2]int
	}
	golden.JSON(t, &rows, models, "golden_chat.json")
	loaded := map[string]*Expander{}
	n := 0
	for _, r := range rows {
		m := loaded[r.Model]
		if m == nil {
			m = loadModelDir(t, filepath.Join(models, r.Model), Options{})
			loaded[r.Model] = m
		}
		if r.IDs == nil {
			continue // the template refuses these messages
		}
		n++
		ids, spans, err := m.Expand(nil, r.IDs, mediaOf(r.Images), nil)
		if err != nil {
			t.Errorf("%s %s: got %v, want no error", r.Model, r.Case, err)
			continue
		}
		if want := unroll(r.RLE); !slices.Equal(ids, want) {
			t.Errorf("got %s %s: %s, want slices.Equal(ids, want)", r.Model, r.Case, firstDifference(want, ids))
		}
		var have [][2]int
		for _, s := range spans {
			have = append(have, [2]int{s.Offset, s.Length})
		}
		if !slices.Equal(have, r.Ranges) {
			t.Errorf("%s %s: want ranges %v, have %v", r.Model, r.Case, r.Ranges, have)
		}
	}
	t.Logf("%d chats of %d models", n, len(loaded))
}

// Prompts of SGLang's own processor; the ids before it writes its pads.
func TestConformanceSGLang(t *testing.T) {
	recordings, models := golden.Dir(t), golden.Models(t)
	sizes := map[string][2]int{}
	for _, kind := range []string{"jpg", "png", "gif", "webp"} {
		var v map[string]struct{ Size [2]int }
		golden.JSON(t, &v, recordings, "images", kind, "variants.json")
		for name, im := range v {
			sizes[kind+"/"+name] = im.Size
		}
	}
	for _, name := range []string{"qwen2.5-vl-7b-instruct", "qwen3-vl"} {
		var rec struct {
			Rows []struct {
				Case, Prompt string
				Images       []string
				RLE          [][2]int `json:"input_ids_rle"`
				Items        []struct{ Offsets [][2]int }
			}
		}
		golden.JSON(t, &rec, recordings, "sglang", "image_items_"+name+".json")
		m := loadModelDir(t, filepath.Join(models, name), Options{Reading: sglang})
		n := 0
		for _, r := range rec.Rows {
			var media []Media
			for _, im := range r.Images {
				size, ok := sizes[im]
				if !ok {
					continue
				}
				md := Media{Width: size[0], Height: size[1]}
				media = append(media, md)
			}
			if len(media) != len(r.Images) {
				continue // an image whose size is not listed
			}
			n++
			ids, spans, err := m.ExpandText(nil, r.Prompt, media, nil)
			if err != nil {
				t.Errorf("%s %s: got %v, want no error", name, r.Case, err)
				continue
			}
			if want := unroll(r.RLE); !slices.Equal(ids, want) {
				t.Errorf("got %s %s: %s, want slices.Equal(ids, want)", name, r.Case, firstDifference(want, ids))
				continue
			}
			var want [][2]int
			for _, it := range r.Items {
				want = append(want, it.Offsets...)
			}
			for i, s := range spans {
				if want[i] != [2]int{s.Offset, s.Offset + s.Length - 1} {
					t.Errorf("%s %s: want offsets %v, have %v", name, r.Case, want[i], s)
				}
			}
		}
		t.Logf("%s: %d of %d prompts", name, n, len(rec.Rows))
	}
}

// loadModelDir loads a directory whose tokenizer may be gzipped.
func loadModelDir(t *testing.T, path string, opts Options) *Expander {
	t.Helper()
	dir := golden.Unpacked(t, path)
	m, err := Load(os.DirFS(dir), loadTokens(t, golden.Read(t, dir, "tokenizer.json")), opts)
	if err != nil {
		t.Fatalf("%s: got %v, want no error", path, err)
	}
	return m
}

// TestConformanceModelDirs: every available model directory loads as its family, and counts.
func TestConformanceModelDirs(t *testing.T) {
	models := golden.Models(t)
	for _, c := range []struct {
		dir, family  string
		embed, total int // of 1280 x 720
	}{
		{"qwen2.5-vl-7b-instruct", "qwen2_vl", 1196, 1196},
		{"qwen3-vl", "qwen3_vl", 880, 880},
		{"llava-1.5-7b-hf", "llava", 576, 576},
		{"internvl2-2b", "internvl_chat", 2304, 2306},
		{"granite-docling-258m", "idefics3", 832, 862},
		{"llama3.1", "", 0, 0},
	} {
		d := os.DirFS(golden.Unpacked(t, filepath.Join(models, c.dir)))
		tok, err := tokenizer.Load(d, nil)
		if err != nil {
			t.Errorf("%s: tokenizer: got %v, want no error", c.dir, err)
			continue
		}
		m, err := Load(d, realTokens{tok}, Options{})
		if err != nil || m.Family() != c.family {
			t.Errorf("%s: want %s, have %q, %v", c.dir, c.family, m.Family(), err)
			continue
		}
		if c.family == "" {
			continue
		}
		if embed, total, err := m.Count(Media{Width: 1280, Height: 720}, nil); embed != c.embed || total != c.total || err != nil {
			t.Errorf("%s: want %d of %d tokens, have %d of %d, %v", c.dir, c.embed, c.total, embed, total, err)
		}
	}
}
