package vllm

import (
	"encoding/base64"
	"errors"
	"testing"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/mmhash/enginehash"
)

// The images and digests below were made with the hasher of vLLM itself (releases of each generation), model
// Qwen/Qwen2.5-VL-7B-Instruct.
const (
	rgb  = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEklEQVR42mP4z8DAAMIM/4EAAB/uBfvxq7p3AAAAAElFTkSuQmCC"
	rgba = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAYAAABytg0kAAAAFElEQVR42mP4z8DwHwgbGMA0EAAAP9cIeV/HbbEAAAAASUVORK5CYII="
	pal  = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAMAAABFaP0WAAAABlBMVEUKFB4oMjzVG7TpAAAADElEQVR42mNgYARCAAAMAAMVnhj8AAAAAElFTkSuQmCC"
)

func readFields(t testing.TB, json string) enginehash.Fields {
	t.Helper()
	f, err := enginehash.ParseFields([]byte(json))
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
		alg    enginehash.Algorithm
		uuid   string
		kwargs string
		want   string
	}{
		{[]Generation{H1, H2, H3}, rgb, "RGB", enginehash.BLAKE3, "", "", "4c83171ba3c124d2b02f97bcb3381cede24a3906d6590b187deeeb9c9285ca43"},
		{[]Generation{H4}, rgb, "RGB", enginehash.BLAKE3, "", "", "37284b8b0ad11582315bc3873e9aa62ee57a1e4548f3cdff3c024349b6068b5b"},
		{[]Generation{H1, H2, H3}, rgb, "RGB", enginehash.SHA256, "", "", "8f630adf9a280c4df94e667134fde2168a8ee01d2df731f513b79c20e1d364e8"},
		{[]Generation{H4}, rgb, "RGB", enginehash.SHA256, "", "", "1689cd35fd13de0bf468e90f1a631cc58f66e221bc42fd7100b7df8477e7892d"},
		{[]Generation{H2, H3}, rgba, "RGBA", enginehash.BLAKE3, "", "", "f072c4a0c99fceb95f90b53eec7ebb26941bc0aaa5d423f0bd3e9ebfc1abe4d3"},
		{[]Generation{H4}, rgba, "RGBA", enginehash.BLAKE3, "", "", "4b2b1c374bc7e666636ef339de1eabe9014d9829f89db3382b4e631551e0fd03"},
		{[]Generation{H2, H3}, pal, "P", enginehash.BLAKE3, "", "", "55748987d2c6014e482ccfafd3d7ba80fecb34af516116d6b222fc654ca28e60"},
		{[]Generation{H4}, pal, "P", enginehash.BLAKE3, "", "", "91b74fc46c69169b5c774538de2ec5f10dfe097a80b4745ed53d91ae372a1e1b"},
		{[]Generation{H1, H2}, rgb, "RGB", enginehash.BLAKE3, "", kw, "e2b6769d5b920cce377da6da461f97bac623d6aa5d687eb5aaad67797eba5dad"},
		{[]Generation{H1, H2, H3, H4}, rgb, "RGB", enginehash.BLAKE3, "my-uuid-1", "", "my-uuid-1"},
		{[]Generation{H1, H2}, rgb, "RGB", enginehash.BLAKE3, "my-uuid-1", kw,
			"9ea050b4f9d6b87ff333ca312daa275818cb318c6bee99aa0ae4a79f5e7bf46e"},
	} {
		file, _ := base64.StdEncoding.DecodeString(c.file)
		for _, g := range c.gens {
			v := &Names{Generation: g, Algorithm: c.alg, Model: "Qwen/Qwen2.5-VL-7B-Instruct"}
			r, err := v.Recipe(enginehash.Item{Mode: c.mode, Bytes: int64(len(file)), UUID: c.uuid, HasUUID: c.uuid != "",
				ProcessorKwargs: readFields(t, c.kwargs)})
			if got := r.Of(file); err != nil || got != c.want {
				t.Errorf("%v %s %v uuid %q kwargs %s: %s %v, want %s", g, c.mode, c.alg, c.uuid, c.kwargs, got, err, c.want)
			}
		}
	}
}

// TestVLLMRules: what changes a name, and what does not.
func TestVLLMRules(t *testing.T) {
	file, _ := base64.StdEncoding.DecodeString(rgba)
	nameOf := func(v Names, it enginehash.Item) string {
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
	v := Names{Generation: H4, Model: "m"}
	plain := nameOf(v, enginehash.Item{})
	for _, c := range []struct {
		what string
		v    Names
		it   enginehash.Item
		same bool
	}{
		{"other modality's kwargs", v, enginehash.Item{ProcessorKwargs: readFields(t, `{"videos_kwargs":{"fps":1}}`)}, true},
		{"own kwargs", v, enginehash.Item{ProcessorKwargs: readFields(t, `{"images_kwargs":{"max_pixels":1}}`)}, false},
		{"empty kwargs", v, enginehash.Item{ProcessorKwargs: readFields(t, `{}`), MediaIO: readFields(t, `{"image":{}}`)}, true},
		{"media options of video", v, enginehash.Item{MediaIO: readFields(t, `{"video":{"num_frames":4}}`)}, true},
		{"media options of image", v, enginehash.Item{MediaIO: readFields(t, `{"image":{"rgba_background_color":[0,0,0]}}`)}, false},
		{"mode", v, enginehash.Item{Mode: "RGB"}, false},
		{"model", Names{Generation: H4, Model: "n"}, enginehash.Item{}, false},
	} {
		if got := nameOf(c.v, c.it); (got == plain) != c.same {
			t.Errorf("%s: same name %v, want %v", c.what, got == plain, c.same)
		}
	}
	server := Names{Generation: H4, Model: "m", MediaIO: readFields(t, `{"image":{"rgba_background_color":[0,0,0]}}`)}
	if got := nameOf(server, enginehash.Item{HasUUID: true, UUID: "u"}); got == "u" {
		t.Errorf("a uuid stays verbatim although the server has media options: got %q, want other than %q", got, "u")
	}
	noConversion := readFields(t, `{"image":{"image_mode":null}}`)
	a, b := nameOf(Names{Generation: H2, Model: "m", MediaIO: noConversion}, enginehash.Item{}),
		nameOf(Names{Generation: H2, Model: "m"}, enginehash.Item{Mode: "RGB"})
	if a != b {
		t.Errorf("image_mode null: %s, want the plain form %s", a, b)
	}
	for _, v := range []Names{{Generation: H2}, {Generation: H4}} {
		if _, err := v.Recipe(enginehash.Item{}); !errors.Is(err, enginehash.ErrNotComputable) {
			t.Errorf("%v: got %v, want %v", v.Generation, err, enginehash.ErrNotComputable)
		}
	}
	if _, err := v.Recipe(enginehash.Item{ProcessorKwargs: readFields(t, `{"n":123456789012345678901234567890}`)}); !errors.Is(err,
		enginehash.ErrNotComputable) {
		t.Errorf("huge integer: got %v, want %v", err, enginehash.ErrNotComputable)
	}
}

func TestNewNames(t *testing.T) {
	for v, want := range map[string]Generation{
		"v0.23.1": H1, "0.26.0": H1, "0.27.1": H2, "0.29.0": H2,
		"0.30.0": H3, "0.30.1rc2": H3, "0.31.0": H4, "0.32.0+cpu": H4, "0.33.1.dev3+gabc": H4, "1.0.0": H4,
	} {
		release, err := rules.ParseVersion(v)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := NewNames(release, "m", "", ""); err != nil || got.Generation != want {
			t.Errorf("%s: %v %v, want %v", v, got, err, want)
		}
	}
	for _, v := range []string{"", "latest", "0", "0.", "x.31"} {
		if _, err := rules.ParseVersion(v); err == nil {
			t.Errorf("%q: no error; got %v, want an error", v, err)
		}
	}
	if _, err := NewNames(rules.Version{0, 32, 0}, "m", "md5", ""); err == nil {
		t.Errorf("md5 is taken: got %v, want an error", err)
	}
}

func TestRecipeKey(t *testing.T) {
	v := &Names{Generation: H4, Model: "m"}
	seen := map[[32]byte]string{}
	for what, it := range map[string]enginehash.Item{
		"plain": {Mode: "RGB", Bytes: 9}, "size": {Mode: "RGB", Bytes: 10}, "mode": {Mode: "L", Bytes: 9},
		"kwargs": {Mode: "RGB", Bytes: 9, ProcessorKwargs: readFields(t, `{"a":1}`)}, "float": {Mode: "RGB", Bytes: 9,
			ProcessorKwargs: readFields(t, `{"a":1.0}`)},
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

func FuzzNames(f *testing.F) {
	for _, s := range []string{`{}`, `null`, `{"a":{"b":[1,2.5,null,true,"x"]},"a":3}`, `{"a":1e999}`, `[1]`,
		`{"a":` + "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["} {
		f.Add([]byte(s))
	}
	v := &Names{Generation: H4, Model: "m"}
	old := &Names{Generation: H1, Model: "m"}
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := enginehash.ParseFields(b)
		if err != nil {
			return
		}
		for _, v := range []*Names{v, old} {
			if r, err := v.Recipe(enginehash.Item{Mode: "L", ProcessorKwargs: k, MediaIO: k}); err == nil && r.Of(nil) == "" {
				t.Fatal("empty name")
			}
		}
	})
}

func BenchmarkRecipe(b *testing.B) {
	v := &Names{Generation: H4, Model: "Qwen/Qwen2.5-VL-7B-Instruct"}
	b.ReportAllocs()
	for b.Loop() {
		r, _ := v.Recipe(enginehash.Item{Mode: "RGBA", Bytes: 1 << 20})
		r.Key()
	}
}
