package vision

import (
	"errors"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

var qwenSpecials = []string{"<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"}

func qwen(t testing.TB, opts Options) (*Expander, *stubTokens) {
	t.Helper()
	tok := newStub(qwenSpecials...)
	m, err := Load(dir(obj{"config.json": obj{"model_type": "qwen2_5_vl", "vocab_size": 152064},
		"preprocessor_config.json": obj{"min_pixels": 3136, "max_pixels": 12845056}}), tok, opts)
	if err != nil {
		t.Fatal(err)
	}
	return m, tok
}

// TestExpandOrder: images replace placeholders in prompt order, whoever wrote these.
func TestExpandOrder(t *testing.T) {
	m, tok := qwen(t, Options{})
	pad := tok.ids["<|image_pad|>"]
	small, large := Media{Width: 56, Height: 56}, Media{Width: 112, Height: 56} // 4 and 8 tokens
	for _, c := range []struct {
		name, prompt string
		media        []Media
		want         string // p = one pad
		spans        []Span
	}{
		{"text only", "hi", nil, "hi", nil},
		{"one", "a<|image_pad|>b", []Media{small}, "appppb", []Span{{0, 1, 4}}},
		{"two sizes", "<|image_pad|>x<|image_pad|>", []Media{small, large}, "ppppxpppppppp", []Span{{0, 0, 4}, {1, 5, 8}}},
		{"typed by the user first", "<|image_pad|> and <|image_pad|>", []Media{large}, "pppppppp and p", []Span{{0, 0, 8}}},
		{"typed, no image", "see <|image_pad|>", nil, "see p", nil},
	} {
		ids, spans, err := m.Expand([]uint32{7}, tok.EncodeText(nil, c.prompt), c.media, nil)
		if err != nil {
			t.Errorf("%s: got %v, want no error", c.name, err)
			continue
		}
		want := []uint32{7}
		for _, r := range c.want {
			if r == 'p' {
				want = append(want, pad)
			} else {
				want = append(want, uint32(r))
			}
		}
		if !slices.Equal(ids, want) || !slices.Equal(spans, c.spans) {
			t.Errorf("%s: want %v %v\nhave %v %v", c.name, want, c.spans, ids, spans)
		}
	}
}

func TestRefusals(t *testing.T) {
	m, tok := qwen(t, Options{})
	prompt := tok.EncodeText(nil, "a<|image_pad|>b")
	for _, c := range []struct {
		name   string
		prompt []uint32
		media  []Media
		kw     Kwargs
		status int
	}{
		{"fewer placeholders than images", prompt, []Media{{Width: 56, Height: 56}, {Width: 56, Height: 56}}, nil, 500},
		{"aspect ratio", prompt, []Media{{Width: 201, Height: 1}}, nil, 400},
		{"no pixels", prompt, []Media{{Width: 0, Height: 5}}, nil, 400},
		{"negative", prompt, []Media{{Width: -1, Height: 5}}, nil, 400},
		{"huge", prompt, []Media{{Width: 1 << 31, Height: 1 << 31}}, nil, 400},
		{"half a size", prompt, []Media{{Width: 56, Height: 56}}, Kwargs{"size": obj{"longest_edge": 3136.0}}, 400},
		{"a kwarg of the wrong type", prompt, []Media{{Width: 56, Height: 56}}, Kwargs{"max_pixels": "many"}, 400},
		{"audio", prompt, []Media{{Modality: "audio"}}, nil, 400},
	} {
		_, _, err := m.Expand(nil, c.prompt, c.media, c.kw)
		var refusal *RefusedError
		if !errors.As(err, &refusal) || refusal.Status != c.status {
			t.Errorf("%s: want a refusal with %d, have %v", c.name, c.status, err)
		}
	}
	// 200:1 itself is allowed.
	if _, _, err := m.Count(Media{Width: 200, Height: 1}, nil); err != nil {
		t.Errorf("200:1: got %v, want no error", err)
	}
	// A medium that cannot be counted leaves the exact prefix.
	ids, spans, err := m.Expand(nil, tok.EncodeText(nil, "a<|image_pad|>bc<|video_pad|>d"),
		[]Media{{Width: 56, Height: 56}, {Modality: "video", Width: 64, Height: 64}}, nil)
	var undecided *UndecidableError
	if !errors.As(err, &undecided) || undecided.Modality != "video" || len(ids) != 1+4+2 || len(spans) != 1 {
		t.Errorf(`video: %v, %d ids, %v, want errors.As(err, &undecided), undecided.Modality == "video", len(ids) == 1+4+2, len(spans) == 1`,
			err, len(ids), spans)
	}
}

// TestSettings: files of the directory, the server's flag, the request, in this order of increasing precedence.
func TestSettings(t *testing.T) {
	file := obj{"min_pixels": 3136, "max_pixels": 100352}
	for _, c := range []struct {
		name   string
		files  obj
		server Kwargs
		kw     Kwargs
		want   int // tokens of 1000 x 1000
	}{
		{"file", obj{"preprocessor_config.json": file}, nil, nil, 121},
		{"server", obj{"preprocessor_config.json": file}, Kwargs{"max_pixels": 50176.0}, nil, 64},
		{"request beats server", obj{"preprocessor_config.json": file}, Kwargs{"max_pixels": 50176.0}, Kwargs{"max_pixels": 12544.0}, 16},
		{"images_kwargs beats bare", obj{"preprocessor_config.json": file}, Kwargs{"max_pixels": 50176.0},
			Kwargs{"images_kwargs": obj{"max_pixels": 12544.0}}, 16},
		{"request size beats the file's bounds", obj{"preprocessor_config.json": file}, nil,
			Kwargs{"size": obj{"shortest_edge": 3136.0, "longest_edge": 12544.0}}, 16},
		{"server bounds beat request size", obj{"preprocessor_config.json": file}, Kwargs{"max_pixels": 50176.0, "min_pixels": 3136.0},
			Kwargs{"size": obj{"shortest_edge": 3136.0, "longest_edge": 12544.0}}, 64},
		{"size in the file", obj{"preprocessor_config.json": obj{"size": obj{"shortest_edge": 3136, "longest_edge": 12544}}}, nil, nil, 16},
		{"null counts as absent", obj{"preprocessor_config.json": obj{"max_pixels": nil, "patch_size": nil}}, nil, nil, 1225},
		{"class defaults", obj{"preprocessor_config.json": obj{}}, nil, nil, 1225},
		{"a nested image_processor replaces the file whole", obj{"preprocessor_config.json": obj{"max_pixels": 12544, "patch_size": 16},
			"processor_config.json": obj{"image_processor": obj{"merge_size": 2}}}, nil, nil, 1225},
	} {
		c.files["config.json"] = obj{"model_type": "qwen2_vl"}
		m, err := Load(dir(c.files), newStub(qwenSpecials...), Options{ProcessorKwargs: c.server})
		if err != nil {
			t.Errorf("%s: got %v, want no error", c.name, err)
			continue
		}
		if n, _, err := m.Count(Media{Width: 1000, Height: 1000}, c.kw); n != c.want || err != nil {
			t.Errorf("%s: want %d tokens, have %d, %v", c.name, c.want, n, err)
		}
	}
}

func TestLoadErrors(t *testing.T) {
	for _, c := range []struct {
		name  string
		files obj
		tok   []string
		want  any    // type of the error, nil = none
		text  string // in the error
	}{
		{"text model", obj{"config.json": obj{"model_type": "llama"}}, nil, nil, ""},
		{"empty directory", obj{}, nil, nil, ""},
		{"unknown multimodal", obj{"config.json": obj{"model_type": "newvl", "architectures": []string{"NewVL"}, "vision_config": obj{}}},
			nil, &UnknownModelError{}, "newvl"},
		{"no processor file", obj{"config.json": obj{"model_type": "qwen2_vl"}}, qwenSpecials, &MissingError{}, "preprocessor_config.json"},
		{"no placeholder token", obj{"config.json": obj{"model_type": "qwen2_vl"}, "preprocessor_config.json": obj{}}, nil,
			&MissingError{}, "<|image_pad|>"},
		{"ids disagree", obj{"config.json": obj{"model_type": "qwen2_vl", "image_token_id": 5}, "preprocessor_config.json": obj{}},
			qwenSpecials, &MissingError{}, "says 5"},
		{"a setting of the wrong type", obj{"config.json": obj{"model_type": "qwen2_vl"}, "preprocessor_config.json": obj{"patch_size": "big"}},
			qwenSpecials, &MissingError{}, "patch_size"},
		{"a required value", obj{"config.json": obj{"model_type": "kimi_k3"}, "preprocessor_config.json": obj{}},
			[]string{"<|media_pad|>"}, &MissingError{}, "in_patch_limit"},
		{"a hostile number of tiles", obj{"config.json": obj{"model_type": "internvl_chat", "force_image_size": 448,
			"max_dynamic_patch": 1 << 30}}, []string{"<img>", "</img>", "<IMG_CONTEXT>"}, &MissingError{}, "max_dynamic_patch"},
	} {
		m, err := Load(dir(c.files), newStub(c.tok...), Options{})
		if c.want == nil {
			if err != nil || m.Multimodal() {
				t.Errorf("%s: want a text model, have %v, %v", c.name, m.Family(), err)
			}
			continue
		}
		if err == nil || reflect.TypeOf(err) != reflect.TypeOf(c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: want a %T naming %q, have %v", c.name, c.want, c.text, err)
		}
	}
	if _, err := Load(fstest.MapFS{"config.json": {Data: []byte("[")}}, newStub(), Options{}); err == nil {
		t.Errorf("broken JSON is read: got %v, want an error", err)
	}
	// The kimi tokenizer overrides its config.
	m, _ := loadRule(t, "kimi_k25", vllm)
	if len(m.Warnings()) != 1 {
		t.Errorf("warnings %v, want one about the id", m.Warnings())
	}
}

// TestTensorRTIDs: TensorRT-LLM puts an id above the vocabulary at Qwen's media positions.
func TestTensorRTIDs(t *testing.T) {
	m, tok := qwen(t, Options{Reading: trtllm})
	ids, spans, err := m.ExpandText(nil, "a<|vision_start|><|image_pad|><|vision_end|>", []Media{{Width: 56, Height: 56}}, nil)
	want := []uint32{'a', tok.ids["<|vision_start|>"], 152065, 152065, 152065, 152065, tok.ids["<|vision_end|>"]}
	if err != nil || !slices.Equal(ids, want) || !slices.Equal(spans, []Span{{0, 2, 4}}) {
		t.Errorf("want %v, have %v %v %v", want, ids, spans, err)
	}
	if id, ok := m.EmbedID("image"); !ok || id != 152065 {
		t.Errorf("embed id %d: got %v, want true, 152065", id, ok)
	}
}

// TestLeftOverPlaceholders: the Hugging Face processors count placeholders, vLLM uses the first ones.
func TestLeftOverPlaceholders(t *testing.T) {
	text := "<|image_pad|><|image_pad|>"
	for reading, want := range map[Reading]bool{vllm: true, sglang: false, trtllm: false, transformers: false} {
		m, _ := qwen(t, Options{Reading: reading})
		_, _, err := m.ExpandText(nil, text, []Media{{Width: 56, Height: 56}}, nil)
		var refusal *RefusedError
		if want != (err == nil) || err != nil && !errors.As(err, &refusal) {
			t.Errorf("%+v: %v", reading, err)
		}
	}
}

func TestPlaceholder(t *testing.T) {
	for _, c := range []struct {
		rule, modality string
		k              int
		want           string
		ok             bool
	}{
		{"qwen2_vl", "image", 1, "<|vision_start|><|image_pad|><|vision_end|>", true},
		{"qwen2_vl", "video", 1, "<|vision_start|><|video_pad|><|vision_end|>", true},
		{"qwen2_vl", "audio", 1, "", false},
		{"phi4mm_36", "image", 2, "<|image_2|>", true},
		{"gemma3", "image", 1, "<start_of_image>", true},
		{"internvl_12", "image", 1, "<image>", true},
		{"pixtral_hf", "image", 1, "", false},
		{"llama4", "image", 1, "<|image|>", true},
	} {
		m, _ := loadRule(t, c.rule, vllm)
		if text, ok := m.Placeholder(c.modality, c.k); text != c.want || ok != c.ok {
			t.Errorf("%s: want %q %v, have %q %v", c.rule, c.want, c.ok, text, ok)
		}
	}
}

// TestNewlineMerge: two adjacent images share a newline token (Gemma 3 in vLLM).
func TestNewlineMerge(t *testing.T) {
	m, _ := loadRule(t, "gemma3", vllm)
	tok := m.tok
	prompt := tok.EncodeText(nil, "a\n<start_of_image><start_of_image>b")
	ids, spans, err := m.Expand(nil, prompt, []Media{{Width: 10, Height: 10}, {Width: 10, Height: 10}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := []Span{{0, 1, 260}, {1, 260, 260}}; !slices.Equal(spans, want) || len(ids) != 1+1+258+1+258+1+1 {
		t.Errorf("want spans %v, have %v of %d ids", want, spans, len(ids))
	}
	for i, want := range map[int]string{1: "\n\n\n", 260: "\n\n\n\n"} {
		if id, _ := tok.ID(want); ids[i] != id {
			t.Errorf("token %d: want %q, have %d", i, want, ids[i])
		}
	}
}

// TestExpandDecoded: vLLM's second way, where the placeholder's text merged with its neighbours.
func TestExpandDecoded(t *testing.T) {
	tok := newStub("<img>", "</img>", "<IMG_CONTEXT>", "<image>\n") // "<image>" is not a token
	m, err := Load(dir(obj{"config.json": obj{"model_type": "internvl_chat", "force_image_size": 448, "use_thumbnail": true}}), tok, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ids, spans, err := m.Expand(nil, tok.EncodeText(nil, "x<image>\n<IMG_CONTEXT>y<image>z"),
		[]Media{{Width: 10, Height: 10}, {Width: 10, Height: 10}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	// x <img> 256 </img> \n (a typed context token) y <img> 256 </img> z
	if want := []Span{{0, 1, 258}, {1, 262, 258}}; !slices.Equal(spans, want) || len(ids) != 521 {
		t.Errorf("want %v, have %v, %d ids", want, spans, len(ids))
	}
}

// TestParallel: an Expander is shared by all requests.
func TestParallel(t *testing.T) {
	m, _ := loadRule(t, "idefics3_8b", vllm)
	prompt := m.tok.EncodeText(nil, "a<image>b")
	want, _, _ := m.Expand(nil, prompt, []Media{{Width: 1280, Height: 720}}, nil)
	done := make(chan bool)
	for i := range 8 {
		go func() {
			for j := range 50 {
				_, _, err := m.Expand(nil, prompt, []Media{{Width: 100 + 37*i, Height: 1000 - 11*j}},
					Kwargs{"max_image_size": obj{"longest_edge": float64(200 + i)}})
				have, _, err2 := m.Expand(nil, prompt, []Media{{Width: 1280, Height: 720}}, nil)
				if err != nil || err2 != nil || !slices.Equal(have, want) {
					t.Error(err, err2, "or another result than alone")
					break
				}
			}
			done <- true
		}()
	}
	for range 8 {
		<-done
	}
}

func FuzzExpand(f *testing.F) {
	rules := make([]string, 0, len(ruleDirs))
	for r := range ruleDirs {
		rules = append(rules, r)
	}
	slices.Sort(rules)
	for i := range rules {
		f.Add(byte(i), 640, 480, 100, 1000, "a <image><|image_pad|><image>\n<|image_1|>", `{"max_pixels": 50176, "num_crops": 3}`, byte(i%4))
	}
	type key struct {
		rule    string
		reading Reading
	}
	models := map[key]*Expander{} // fuzzing runs one input at a time in a process
	f.Fuzz(func(t *testing.T, rule byte, w1, h1, w2, h2 int, text, kwargs string, engine byte) {
		k := key{rules[int(rule)%len(rules)], []Reading{vllm, sglang, trtllm, transformers}[engine%4]}
		m := models[k]
		if m == nil {
			m, _ = loadRule(t, k.rule, k.reading)
			models[k] = m
		}
		kw, err := ParseKwargs([]byte(kwargs))
		if err != nil {
			kw = nil
		}
		if p, ok := m.Placeholder("image", 1); ok {
			text = p + text
		}
		media := []Media{{Width: w1, Height: h1}, {Width: w2, Height: h2}}
		ids, spans, err := m.ExpandText(nil, text, media, kw)
		if err != nil {
			return
		}
		if len(spans) != len(media) {
			t.Fatalf("%d spans for %d images, want %d", len(spans), len(media), len(media))
		}
		for _, s := range spans {
			if s.Offset < 0 || s.Length < 0 || s.Offset+s.Length > len(ids)+1 {
				t.Fatalf("span %v of %d ids: got %d, want Offset at least 0, Length at least 0, at most %d", s, len(ids), s.Offset+s.Length, len(ids)+1)
			}
		}
	})
}

func FuzzLoad(f *testing.F) {
	for _, d := range ruleDirs {
		f.Add(marshal(d.config), marshal(d.pre), marshal(d.proc), 640, 480)
	}
	var specials []string
	for _, fam := range families() {
		specials = append(specials, specialsOf(fam)...)
	}
	tok := newStub(specials...)
	f.Fuzz(func(t *testing.T, config, pre, proc []byte, w, h int) {
		m, err := Load(fstest.MapFS{"config.json": {Data: config}, "preprocessor_config.json": {Data: pre},
			"processor_config.json": {Data: proc}}, tok, Options{})
		if err != nil {
			return
		}
		embed, total, err := m.Count(Media{Width: w, Height: h}, nil)
		if err == nil && (embed < 0 || embed > total || embed > MaxTokens) {
			t.Fatalf("%d embeds of %d", embed, total)
		}
	})
}

// TestExpandExact checks that the ids of a prompt are allocated once, as large as they become.
func TestExpandExact(t *testing.T) {
	const images = 500
	for name, reading := range map[string]Reading{"ids": {}, "text": {Processor: true}} {
		m, tok := qwen(t, Options{Reading: reading})
		m = m.With(tok, 1<<20)
		prompt := strings.Repeat("<|image_pad|>", images)
		media := slices.Repeat([]Media{{Width: 56, Height: 56}, {Width: 560, Height: 560}}, images/2)
		given := tok.EncodeText(nil, prompt)
		var ids []uint32
		var err error
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if reading.Processor {
			ids, _, err = m.ExpandText(nil, prompt, media, nil)
		} else {
			ids, _, err = m.Expand(nil, given, media, nil)
		}
		runtime.ReadMemStats(&after)
		took := after.TotalAlloc - before.TotalAlloc
		if err != nil || len(ids) != images/2*(4+400) || took > uint64(4*4*len(ids)) {
			t.Errorf("%s: %d ids, %d KiB allocated, %v; got %d, want no error, %d, at most %d",
				name, len(ids), took>>10, err, took, images/2*(4+400), uint64(4*4*len(ids)))
		}
	}
}

func BenchmarkExpand(b *testing.B) {
	m, tok := qwen(b, Options{})
	prompt := tok.EncodeText(nil, strings.Repeat("some words of text ", 400)+strings.Repeat("<|image_pad|>", 4))
	media := []Media{{Width: 1280, Height: 720}, {Width: 640, Height: 480}, {Width: 1920, Height: 1080}, {Width: 300, Height: 300}}
	var out []uint32
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		var err error
		out, _, err = m.Expand(out[:0], prompt, media, nil)
		if err != nil {
			b.Fatal(err)
		}
		n += len(out)
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds()/1e6, "Mtokens/s")
}

func BenchmarkExpandTiles(b *testing.B) {
	m, _ := loadRule(b, "idefics3_8b", vllm)
	prompt := m.tok.EncodeText(nil, strings.Repeat("some words of text ", 400)+"<image>")
	media := []Media{{Width: 1280, Height: 720}}
	var out []uint32
	b.ReportAllocs()
	for b.Loop() {
		out, _, _ = m.Expand(out[:0], prompt, media, nil)
	}
}
