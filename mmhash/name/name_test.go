package name

import (
	"encoding/base64"
	"errors"
	"testing"
)

// The pictures and digests below were made with the hasher of vLLM itself (releases of each generation), model
// Qwen/Qwen2.5-VL-7B-Instruct.
const (
	rgb  = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEklEQVR42mP4z8DAAMIM/4EAAB/uBfvxq7p3AAAAAElFTkSuQmCC"
	rgba = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAYAAABytg0kAAAAFElEQVR42mP4z8DwHwgbGMA0EAAAP9cIeV/HbbEAAAAASUVORK5CYII="
	pal  = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAMAAABFaP0WAAAABlBMVEUKFB4oMjzVG7TpAAAADElEQVR42mNgYARCAAAMAAMVnhj8AAAAAElFTkSuQmCC"
)

func fields(t testing.TB, json string) Fields {
	t.Helper()
	f, err := ParseFields([]byte(json))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestVLLM(t *testing.T) {
	kw := `{"max_pixels":1003520}`
	for _, c := range []struct {
		gens   []Generation
		file   string
		mode   string
		alg    Algorithm
		uuid   string
		kwargs string
		want   string
	}{
		{[]Generation{H2}, rgb, "RGB", BLAKE3, "", "", "2a49174bb672516855d853d5900035cad4c8beeb7d2100f17e56d0fb78058a06"},
		{[]Generation{H3, H4, H5}, rgb, "RGB", BLAKE3, "", "", "4c83171ba3c124d2b02f97bcb3381cede24a3906d6590b187deeeb9c9285ca43"},
		{[]Generation{H6}, rgb, "RGB", BLAKE3, "", "", "37284b8b0ad11582315bc3873e9aa62ee57a1e4548f3cdff3c024349b6068b5b"},
		{[]Generation{H3, H4, H5}, rgb, "RGB", SHA256, "", "", "8f630adf9a280c4df94e667134fde2168a8ee01d2df731f513b79c20e1d364e8"},
		{[]Generation{H6}, rgb, "RGB", SHA256, "", "", "1689cd35fd13de0bf468e90f1a631cc58f66e221bc42fd7100b7df8477e7892d"},
		{[]Generation{H4, H5}, rgba, "RGBA", BLAKE3, "", "", "f072c4a0c99fceb95f90b53eec7ebb26941bc0aaa5d423f0bd3e9ebfc1abe4d3"},
		{[]Generation{H6}, rgba, "RGBA", BLAKE3, "", "", "4b2b1c374bc7e666636ef339de1eabe9014d9829f89db3382b4e631551e0fd03"},
		{[]Generation{H4, H5}, pal, "P", BLAKE3, "", "", "55748987d2c6014e482ccfafd3d7ba80fecb34af516116d6b222fc654ca28e60"},
		{[]Generation{H6}, pal, "P", BLAKE3, "", "", "91b74fc46c69169b5c774538de2ec5f10dfe097a80b4745ed53d91ae372a1e1b"},
		{[]Generation{H3, H4}, rgb, "RGB", BLAKE3, "", kw, "e2b6769d5b920cce377da6da461f97bac623d6aa5d687eb5aaad67797eba5dad"},
		{[]Generation{H2, H3, H4, H5, H6}, rgb, "RGB", BLAKE3, "my-uuid-1", "", "my-uuid-1"},
		{[]Generation{H3, H4}, rgb, "RGB", BLAKE3, "my-uuid-1", kw, "9ea050b4f9d6b87ff333ca312daa275818cb318c6bee99aa0ae4a79f5e7bf46e"},
	} {
		file, _ := base64.StdEncoding.DecodeString(c.file)
		for _, g := range c.gens {
			v := &VLLM{Generation: g, Algorithm: c.alg, Model: "Qwen/Qwen2.5-VL-7B-Instruct"}
			r, err := v.Recipe(Item{Mode: c.mode, Bytes: int64(len(file)), UUID: c.uuid, HasUUID: c.uuid != "", ProcessorKwargs: fields(t, c.kwargs)})
			if got := r.Of(file); err != nil || got != c.want {
				t.Errorf("%v %s %v uuid %q kwargs %s: %s %v, want %s", g, c.mode, c.alg, c.uuid, c.kwargs, got, err, c.want)
			}
		}
	}
	file, _ := base64.StdEncoding.DecodeString(rgb)
	rust := &VLLM{Generation: H6, Algorithm: SHA512, Model: "m", Rust: true}
	r, _ := rust.Recipe(Item{Mode: "RGB", Bytes: 75, ProcessorKwargs: fields(t, kw)})
	if got := r.Of(file); got != "f531b9e47004fccda30d996ca0bf046cd4f94241ab04843cb055cbc72bec0810" {
		t.Errorf("Rust frontend: %s", got)
	}
}

// TestVLLMRules: what changes a name and what does not.
func TestVLLMRules(t *testing.T) {
	file, _ := base64.StdEncoding.DecodeString(rgba)
	name := func(v VLLM, it Item) string {
		it.Bytes = int64(len(file))
		if it.Mode == "" {
			it.Mode = "RGBA"
		}
		r, err := v.Recipe(it)
		if err != nil {
			t.Fatal(err)
		}
		return r.Of(file)
	}
	v := VLLM{Generation: H6, Model: "m"}
	plain := name(v, Item{})
	for _, c := range []struct {
		what string
		v    VLLM
		it   Item
		same bool
	}{
		{"other modality's kwargs", v, Item{ProcessorKwargs: fields(t, `{"videos_kwargs":{"fps":1}}`)}, true},
		{"own kwargs", v, Item{ProcessorKwargs: fields(t, `{"images_kwargs":{"max_pixels":1}}`)}, false},
		{"empty kwargs", v, Item{ProcessorKwargs: fields(t, `{}`), MediaIO: fields(t, `{"image":{}}`)}, true},
		{"media options of video", v, Item{MediaIO: fields(t, `{"video":{"num_frames":4}}`)}, true},
		{"media options of image", v, Item{MediaIO: fields(t, `{"image":{"rgba_background_color":[0,0,0]}}`)}, false},
		{"mode", v, Item{Mode: "RGB"}, false},
		{"model", VLLM{Generation: H6, Model: "n"}, Item{}, false},
		{"adapter without tower LoRA", v, Item{LoRA: "a"}, true},
		{"adapter with tower LoRA", VLLM{Generation: H6, Model: "m", TowerLoRA: true}, Item{LoRA: "a"}, false},
	} {
		if got := name(c.v, c.it); (got == plain) != c.same {
			t.Errorf("%s: same name %v, want %v", c.what, got == plain, c.same)
		}
	}
	tower := VLLM{Generation: H6, Model: "m", TowerLoRA: true}
	if got := name(tower, Item{LoRA: "a"}); got != "a:"+plain {
		t.Errorf("tower LoRA: %s", got)
	}
	if got := name(tower, Item{LoRA: "a", HasUUID: true}); got != "a:" {
		t.Errorf("empty uuid with tower LoRA: %q", got)
	}
	server := VLLM{Generation: H6, Model: "m", MediaIO: fields(t, `{"image":{"rgba_background_color":[0,0,0]}}`)}
	if got := name(server, Item{HasUUID: true, UUID: "u"}); got == "u" {
		t.Error("a uuid stays verbatim although the server has media options")
	}
	noConversion := fields(t, `{"image":{"image_mode":null}}`)
	if a, b := name(VLLM{Generation: H4, Model: "m", MediaIO: noConversion}, Item{}), name(VLLM{Generation: H4, Model: "m"}, Item{Mode: "RGB"}); a != b {
		t.Errorf("image_mode null: %s, want the plain form %s", a, b)
	}
	for _, v := range []VLLM{{Generation: H0}, {Generation: H1}, {Generation: H4}, {Generation: H6}} {
		if _, err := v.Recipe(Item{}); !errors.Is(err, ErrNotComputable) {
			t.Errorf("%v: %v", v.Generation, err)
		}
	}
	if _, err := v.Recipe(Item{ProcessorKwargs: fields(t, `{"n":123456789012345678901234567890}`)}); !errors.Is(err, ErrNotComputable) {
		t.Errorf("huge integer: %v", err)
	}
}

func TestGenerationOf(t *testing.T) {
	for v, want := range map[string]Generation{
		"0.10.2": H0, "0.11.0": H1, "0.12.0": H1, "0.13.0": H2, "v0.15.1": H2, "0.16.0": H3, "0.26.0": H3, "0.27.1": H4, "0.29.0": H4,
		"0.30.0": H5, "0.30.1rc2": H5, "0.31.0": H6, "0.32.0+cpu": H6, "0.33.1.dev3+gabc": H6, "1.0.0": H6,
	} {
		if got, err := GenerationOf(v); err != nil || got != want {
			t.Errorf("%s: %v %v, want %v", v, got, err, want)
		}
	}
	for _, v := range []string{"", "latest", "0", "0.", "x.31"} {
		if _, err := GenerationOf(v); err == nil {
			t.Errorf("%q: no error", v)
		}
	}
}

// TestUUID: Python's str() of JSON values (CPython 3.11).
func TestUUID(t *testing.T) {
	for raw, want := range map[string]string{
		`"a"`: "a", `""`: "", `12345`: "12345", `-0`: "0", `123456789012345678901234567890`: "123456789012345678901234567890", `true`: "True", `false`: "False",
		`1.0`: "1.0", `1e3`: "1000.0", `1e16`: "1e+16", `123456789.125`: "123456789.125", `1e-5`: "1e-05", `0.0001`: "0.0001", `1e999`: "inf", `-2.5e-7`: "-2.5e-07", `1E22`: "1e+22",
	} {
		if got, present, err := UUID([]byte(raw)); got != want || !present || err != nil {
			t.Errorf("%s: %q %v %v, want %q", raw, got, present, err, want)
		}
	}
	for _, raw := range []string{"", "null"} {
		if _, present, err := UUID([]byte(raw)); present || err != nil {
			t.Errorf("%q: %v %v", raw, present, err)
		}
	}
	if _, _, err := UUID([]byte(`["a"]`)); !errors.Is(err, ErrNotComputable) {
		t.Error(err)
	}
}

func TestRecipeKey(t *testing.T) {
	v := &VLLM{Generation: H6, Model: "m"}
	seen := map[[32]byte]string{}
	for what, it := range map[string]Item{
		"plain": {Mode: "RGB", Bytes: 9}, "size": {Mode: "RGB", Bytes: 10}, "mode": {Mode: "L", Bytes: 9},
		"kwargs": {Mode: "RGB", Bytes: 9, ProcessorKwargs: fields(t, `{"a":1}`)}, "float": {Mode: "RGB", Bytes: 9, ProcessorKwargs: fields(t, `{"a":1.0}`)},
	} {
		r, err := v.Recipe(it)
		if err != nil {
			t.Fatal(err)
		}
		if other, twice := seen[r.Key()]; twice {
			t.Errorf("%s and %s share a key", what, other)
		}
		seen[r.Key()] = what
	}
}

// TestDynamo: NVIDIA Dynamo 1.6.1, hash_mm_identifier of a URL.
func TestDynamo(t *testing.T) {
	if got := Dynamo("https://example.com/image.jpg"); got != "6b57e9c2a91759a6" {
		t.Error(got)
	}
}

func TestSGLang(t *testing.T) {
	// SGLang 0.5.23: recorded pads and items.
	if got := Pads(0x0123456789abcdef, PadWide); got != [4]uint64{23533869762612420, 1115227388442326932, 406705440234023321, 2100304651902599146} {
		t.Error(got)
	}
	if a, b := Pads(0x0123456789abcdef, PadMil)[3], Pads(0x0123456789abcdef, PadLow)[0]; a != 163254319 || b != 162254319 {
		t.Error(a, b)
	}
	p := SGLangProcessor{ModelType: "qwen3_vl", Architectures: []string{"Qwen3VLForConditionalGeneration"}, Class: qwenClass, Wrapper: qwenWrapper, Transformers: "5.19.0", Transport: "cpu"}
	if got := p.Fingerprint(); got != "sha256:c06a200bd416f5b145437549ad48ebc0a687af060701346dd624b34bd5dec8d5" {
		t.Error(got)
	}
	kwargs := fields(t, `{"a":1.5,"b":true,"c":null,"d":[1,"x"]}`)
	want := `{"items":[[{"type":"str","value":"a"},{"bits":"3ff8000000000000","type":"float64"}],[{"type":"str","value":"b"},{"type":"bool","value":true}],` +
		`[{"type":"str","value":"c"},{"type":"none"}],[{"type":"str","value":"d"},{"items":[{"type":"int","value":"1"},{"type":"str","value":"x"}],"type":"list"}]],"type":"mapping"}`
	if got := string(canonical(object(kwargs).any())); got != want {
		t.Error(got)
	}
	if got := string(asciiJSON("é\"\\\n\x01😀")); got != `"\u00e9\"\\\n\u0001\ud83d\ude00"` {
		t.Error(got)
	}
}

// The classes by which SGLang names Qwen3-VL's pictures.
const (
	qwenClass   = "sglang.srt.multimodal.processors.qwen_vl.QwenVLImageProcessor"
	qwenWrapper = "transformers.models.qwen3_vl.processing_qwen3_vl.Qwen3VLProcessor"
)

func FuzzParseFields(f *testing.F) {
	for _, s := range []string{`{}`, `null`, `{"a":{"b":[1,2.5,null,true,"x"]},"a":3}`, `{"a":1e999}`, `[1]`, `{"a":` + "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["} {
		f.Add([]byte(s))
	}
	v := &VLLM{Generation: H6, Model: "m"}
	old := &VLLM{Generation: H3, Model: "m"}
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := ParseFields(b)
		if err != nil {
			return
		}
		for _, v := range []*VLLM{v, old} {
			if r, err := v.Recipe(Item{Mode: "L", ProcessorKwargs: k, MediaIO: k}); err == nil && r.Of(nil) == "" {
				t.Fatal("empty name")
			}
		}
		SGLang{}.Recipe("low", k).Of(nil)
	})
}

func BenchmarkRecipe(b *testing.B) {
	v := &VLLM{Generation: H6, Model: "Qwen/Qwen2.5-VL-7B-Instruct"}
	b.ReportAllocs()
	for b.Loop() {
		r, _ := v.Recipe(Item{Mode: "RGBA", Bytes: 1 << 20})
		r.Key()
	}
}
