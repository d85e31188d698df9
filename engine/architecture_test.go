package engine

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/prompt"
)

// derived copies the shipped model directory with other files; a value of nil removes the file.
func derived(t *testing.T, with map[string]any) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../examples/models/qwen2.5-vl")); err != nil {
		t.Fatal(err)
	}
	for file, content := range with {
		text, isText := content.(string)
		b := []byte(text)
		if !isText {
			var err error
			b, err = json.Marshal(content)
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Remove(filepath.Join(dir, file)); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if content == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, file), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// withTokens returns the shipped tokenizer.json with more special tokens, and the id of the first.
func withTokens(t *testing.T, tokens ...string) (text string, first int) {
	t.Helper()
	b, err := os.ReadFile("../examples/models/qwen2.5-vl/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	var tok map[string]any
	if err := json.Unmarshal(b, &tok); err != nil {
		t.Fatal(err)
	}
	added := tok["added_tokens"].([]any)
	for _, a := range added {
		first = max(first, int(a.(map[string]any)["id"].(float64))+1)
	}
	for i, s := range tokens {
		added = append(added, map[string]any{"id": first + i, "content": s, "special": true, "single_word": false,
			"lstrip": false, "rstrip": false, "normalized": false})
	}
	tok["added_tokens"] = added
	b, err = json.Marshal(tok)
	if err != nil {
		t.Fatal(err)
	}
	return string(b), first
}

func loadAs(t *testing.T, dir string, set func(*Server)) *Model {
	t.Helper()
	media, err := NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(media.Close)
	media.DecodeInline = true
	s := DefaultServer()
	set(&s)
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	m, err := Load("m", dir, s, media)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// readOne returns the prompt of a request, or why there is none.
func readOne(t *testing.T, m *Model, endpoint, text string) (p Prompt, err error) {
	t.Helper()
	ps, err := readAll(t, m, endpoint, text)
	if err == nil {
		p = ps.List[0]
	}
	return p, err
}

func square(t *testing.T) []byte {
	t.Helper()
	im := image.NewRGBA(image.Rect(0, 0, 448, 448))
	for i := range im.Pix {
		im.Pix[i] = []byte{200, 30, 40, 255}[i%4]
	}
	im.SetRGBA(0, 0, color.RGBA{1, 2, 3, 255})
	var b bytes.Buffer
	if err := png.Encode(&b, im); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// clear puts a transparent colour into an RGB PNG.
func clear(file []byte) []byte {
	c := append([]byte("tRNS"), 0, 200, 0, 30, 0, 40)
	c = binary.BigEndian.AppendUint32(c, crc32.ChecksumIEEE(c))
	head := 8 + 12 + 13 // signature and IHDR
	return slices.Concat(file[:head], []byte{0, 0, 0, 6}, c, file[head:])
}

func askFor(files ...[]byte) string {
	var parts []string
	for _, f := range files {
		parts = append(parts, `{"type":"image_url","image_url":{"url":"data:image/png;base64,`+base64.StdEncoding.EncodeToString(f)+`"}}`)
	}
	return `{"model":"m","messages":[{"role":"user","content":[` + strings.Join(append(parts, `{"type":"text","text":"x"}`), ",") + `]}]}`
}

// TestEncoders: chats that an engine encodes by code of its own are not exact, whatever template the directory has; text is, and so are
// chats of a server that is told to render the template.
func TestEncoders(t *testing.T) {
	const hello = `{"model":"m","messages":[{"role":"user","content":"x"}]}`
	for _, c := range []struct {
		arch, engine, mode string
		exact              bool
	}{
		{"DeepseekV32ForCausalLM", "vllm", "auto", false}, {"DeepseekV4ForCausalLM", "vllm", "auto", false},
		{"DeepseekV41ForCausalLM", "vllm", "auto", false},
		{"InklingForConditionalGeneration", "vllm", "auto", false}, {"KimiK3ForConditionalGeneration", "vllm", "auto", false},
		{"DeepseekV32ForCausalLM", "vllm", "hf", true}, {"LlamaForCausalLM", "vllm", "auto", true},
		{"LlamaForCausalLM", "vllm", "deepseek_v4", false},
		{"DeepseekV32ForCausalLM", "sglang", "auto", true}, {"DeepseekV4ForCausalLM", "sglang", "auto", false},
		{"DeepseekV41ForCausalLM", "sglang", "auto", false},
		{"InklingForConditionalGeneration", "sglang", "auto", false}, {"KimiK3ForConditionalGeneration", "sglang", "auto", false},
	} {
		dir := derived(t, map[string]any{"config.json": map[string]any{"architectures": []string{c.arch}, "model_type": "own"},
			"preprocessor_config.json": nil})
		m := loadAs(t, dir, func(s *Server) {
			s.Engine, s.EngineVersion, s.TokenizerMode = c.engine, map[string]string{"vllm": "0.33.0", "sglang": "0.5.23"}[c.engine], c.mode
		})
		p, err := readOne(t, m, chatPath, hello)
		if exact := err == nil && p.Exact; exact != c.exact || !exact && !errors.Is(err, prompt.ErrEncoder) {
			t.Errorf("%s, %s in mode %s: exact %v, %v", c.arch, c.engine, c.mode, exact, err)
		}
		if p, err := readOne(t, m, "/v1/completions", `{"model":"m","prompt":"x"}`); err != nil || !p.Exact {
			t.Errorf("%s, %s: text exact %v, %v, want no error, true", c.arch, c.engine, p.Exact, err)
		}
	}
}

// TestNamesByArchitecture: names that vLLM makes differently for one architecture, or since one release.
func TestNamesByArchitecture(t *testing.T) {
	plain := square(t)
	names := func(dir, release string, files ...[]byte) (list []string) {
		p, err := readOne(t, loadAs(t, dir, func(s *Server) {
			s.EngineVersion, s.EngineModel = release, "org/model"
		}), chatPath, askFor(files...))
		if err != nil {
			t.Fatal(err)
		}
		for _, md := range p.Media {
			if !md.HasName {
				md.Name = p.Why
			}
			list = append(list, md.Name)
		}
		return list
	}
	tokens, id := withTokens(t, "<|media_pad|>", "<|media_begin|>", "<|media_content|>", "<|media_end|>")
	kimi := derived(t, map[string]any{"tokenizer.json": tokens,
		"config.json": map[string]any{"architectures": []string{"KimiK25ForConditionalGeneration"}, "model_type": "kimi_k25",
			"media_placeholder_token_id": id,
			"vision_config":              map[string]any{"patch_size": 14, "merge_kernel_size": []int{2, 2}}},
		"preprocessor_config.json": map[string]any{"media_proc_cfg": map[string]any{"patch_size": 14, "merge_kernel_size": 2,
			"in_patch_limit": 16384, "patch_limit_on_one_side": 512}},
		"chat_template.jinja": "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% else " +
			"%}<|media_begin|>image<|media_content|><|media_pad|><|media_end|>{% endif %}{% endfor %}{% endfor %}"})
	qwen := derived(t, nil)
	usual := names(qwen, "0.32.0", plain)[0]
	chunk := names(kimi, "0.32.0", plain)
	if len(chunk) != 1 || chunk[0] == usual || len(chunk[0]) != 64 {
		t.Errorf("Kimi-K2.5: %v, as an image %s, want len(chunk) == 1, chunk[0] != usual, len(chunk[0]) == 64", chunk, usual)
	}
	if old := names(kimi, "0.30.0", plain); len(old) != 1 || old[0] != inexactUnnamed {
		t.Errorf("Kimi-K2.5 in 0.30: %v, want %s", old, inexactUnnamed)
	}
	half := clear(plain)
	if before, since := names(qwen, "0.32.0", half), names(qwen, "0.33.0", half); before[0] == since[0] {
		t.Errorf("RGB with a transparent colour: got %v in 0.32 and in 0.33, want [0] other than %q", before, since[0])
	}
	if before, since := names(qwen, "0.32.0", plain), names(qwen, "0.33.0", plain); !slices.Equal(before, since) {
		t.Errorf("RGB: got %v in 0.32, %v in 0.33, want %q", before, since, since)
	}
}

// TestNamesInABatch: a name that depends on how many images a prompt has is each conversation's own in a body of several.
func TestNamesInABatch(t *testing.T) {
	tokens, _ := withTokens(t, "<image>")
	res := [][]int{{384, 384}, {384, 768}, {768, 384}}
	dir := derived(t, map[string]any{"tokenizer.json": tokens, "preprocessor_config.json": nil,
		"config.json": map[string]any{"architectures": []string{"DeepseekVLV2ForCausalLM"}, "model_type": "deepseek_vl_v2",
			"candidate_resolutions": res,
			"vision_config":         map[string]any{"patch_size": 14, "image_size": 384}, "projector_config": map[string]any{"downsample_ratio": 2}},
		"processor_config.json": map[string]any{"candidate_resolutions": res, "downsample_ratio": 2, "patch_size": 14, "image_token": "<image>",
			"processor_class": "DeepseekVLV2Processor"},
		"chat_template.jinja": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"})
	m := loadAs(t, dir, func(s *Server) { s.EngineVersion, s.EngineModel = "0.33.0", "deepseek-ai/deepseek-vl2" })
	names := func(path, text string) (all [][]string) {
		ps, err := readAll(t, m, path, text)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range ps.List {
			var list []string
			for _, md := range p.Media {
				list = append(list, md.Name)
			}
			all = append(all, list)
		}
		return all
	}
	one := askFor(square(t), square(t))
	alone := names(chatPath, one)[0]
	if three := names(chatPath, askFor(square(t), square(t), square(t)))[0]; len(alone) != 2 || len(alone[0]) != 64 || three[0] == alone[0] {
		t.Fatalf("two images: %v, three: %v; want other names for three", alone, three)
	}
	conversation := gjson.Get(one, "messages").Raw
	for i, list := range names("/v1/chat/completions/batch", `{"model":"m","messages":[`+conversation+`,`+conversation+`]}`) {
		if !slices.Equal(list, alone) {
			t.Errorf("conversation %d of the batch: got %v, alone %v, want %q", i, list, alone, alone)
		}
	}
}

// TestTokenizerClass: a GPT2Tokenizer builds the tokenizer anew, without the file's own pre-tokenizer; a RobertaTokenizer builds one that
// is not modelled.
func TestTokenizerClass(t *testing.T) {
	const digits = `{"model":"m","prompt":"in 2023\n\n\nfoo_bar 12345"}`
	ids := func(engine, release, kind, class string) ([]uint32, error) {
		dir := derived(t, map[string]any{"config.json": map[string]any{"model_type": kind}, "preprocessor_config.json": nil,
			"chat_template.jinja":   nil,
			"tokenizer_config.json": map[string]any{"tokenizer_class": class}})
		p, err := readOne(t, loadAs(t, dir, func(s *Server) { s.Engine, s.EngineVersion = engine, release }), "/v1/completions", digits)
		return p.IDs, err
	}
	file := []uint32{258, 220, 17, 15, 17, 18, 1406, 7975, 14388, 220, 16, 17, 18, 19, 20}        // tokenizers 0.23.3
	anew := []uint32{258, 220, 17, 15, 17, 18, 271, 198, 7975, 62, 2257, 220, 16, 17, 18, 19, 20} // transformers 5.20.2 and 5.23.0
	for _, c := range []struct {
		engine, release, kind, class string
		want                         []uint32
	}{
		{"vllm", "0.33.0", "llama", "GPT2Tokenizer", anew}, {"vllm", "0.32.0", "idefics3", "GPT2TokenizerFast", anew},
		{"vllm", "0.33.0", "llama", "PreTrainedTokenizerFast", file}, {"vllm", "0.33.0", "granite", "GPT2Tokenizer", file},
		{"vllm", "0.23.0", "llama", "GPT2Tokenizer", file}, {"vllm", "0.33.0", "llama", "RobertaTokenizerFast", nil},
	} {
		got, err := ids(c.engine, c.release, c.kind, c.class)
		if !slices.Equal(got, c.want) || errors.Is(err, prompt.ErrClass) != (c.want == nil) {
			t.Errorf("%s %s, %s, %s: %v %v, want %v", c.engine, c.release, c.kind, c.class, got, err, c.want)
		}
	}
}

// TestTokenizerNeighbours: tokens named in files beside tokenizer.json. ids: transformers 5.19; nil: not exact.
func TestTokenizerNeighbours(t *testing.T) {
	type object = map[string]any
	three := object{}
	for id, text := range map[string]string{"151643": "<|endoftext|>", "151644": "<|im_start|>", "151645": "<|im_end|>"} {
		three[id] = object{"content": text, "normalized": false, "special": true}
	}
	tool := []string{"<|im_start|>", "<tool>"}
	for _, c := range []struct {
		engine, file string
		keys         object
		prompt       string
		want         []uint32
	}{
		{"vllm", "tokenizer_config.json", object{"additional_special_tokens": tool}, "use <tool> now", []uint32{810, 220, 151665, 1431}},
		{"vllm", "tokenizer_config.json", object{"pad_token": "<pad>"}, "a <pad> b", []uint32{64, 220, 151665, 293}},
		{"vllm", "special_tokens_map.json", object{"additional_special_tokens": tool}, "use <tool> now", []uint32{810, 220, 151665, 1431}},
		{"vllm", "added_tokens.json", object{"<tool>": 151999}, "use <tool> now", []uint32{810, 220, 151665, 1431}},
		{"vllm", "tokenizer_config.json", object{"added_tokens_decoder": three}, "<|im_start|>user\n<|vision_start|> <tool_call> x",
			[]uint32{151644, 872, 198, 27, 91, 13013, 4906, 91, 29, 366, 14172, 13429, 29, 856}},
		{"vllm", "tokenizer_config.json", object{"split_special_tokens": true}, "a <|im_start|>user", nil},
		{"sglang", "tokenizer_config.json", object{"pad_token": "<pad>"}, "a <pad> b", nil},
		{"sglang", "tokenizer_config.json", object{"pad_token": "<|endoftext|>"}, "a b", []uint32{64, 293}},
	} {
		files := object{"preprocessor_config.json": nil, "chat_template.jinja": nil}
		if config := (object{"tokenizer_class": "Qwen2Tokenizer"}); c.file == "tokenizer_config.json" {
			maps.Copy(config, c.keys)
			files[c.file] = config
		} else {
			files["tokenizer_config.json"], files[c.file] = config, c.keys
		}
		m := loadAs(t, derived(t, files), func(s *Server) {
			s.Engine = c.engine
			s.EngineVersion = map[string]string{"vllm": "0.32.0", "sglang": "0.5.23"}[c.engine]
		})
		body, _ := json.Marshal(object{"model": "m", "prompt": c.prompt})
		p, err := readOne(t, m, "/v1/completions", string(body))
		if !slices.Equal(p.IDs, c.want) || errors.Is(err, prompt.ErrClass) != (c.want == nil) {
			t.Errorf("%s, %s %v: %q: got %v %v, want %v", c.engine, c.file, c.keys, c.prompt, p.IDs, err, c.want)
		}
	}
}

// TestPromptFlags: the keys of flags that change prompts.
func TestPromptFlags(t *testing.T) {
	dir := derived(t,
		map[string]any{"chat_template.jinja": "{{ reasoning_effort }}/{{ enable_thinking }}/{% for m in messages %}{{ m.content }}{% endfor %}"})
	for _, c := range []struct {
		endpoint, more string
		set            func(*Server)
		want           string
	}{
		{chatPath, `,"reasoning_effort":"high"`, func(*Server) {}, "high/True/x"},
		{"/v1/messages", `,"max_tokens":1,"thinking":{"type":"disabled"}`, func(*Server) {}, "none/False/x"},
		{"/v1/messages", `,"max_tokens":1,"thinking":{"type":"disabled"}`, func(s *Server) { s.EngineVersion = "0.30.0" }, "//x"},
	} {
		m := loadAs(t, dir, func(s *Server) { s.EngineVersion = "0.33.0"; c.set(s) })
		p, err := readOne(t, m, c.endpoint, `{"model":"m","messages":[{"role":"user","content":"x"}]`+c.more+`}`)
		if err != nil || p.Rendered != c.want {
			t.Errorf("%s %s: %q %v, want %q", c.endpoint, c.more, p.Rendered, err, c.want)
		}
	}
}

// TestFormatThroughNamespace: vLLM 0.33 follows messages through a namespace.
func TestFormatThroughNamespace(t *testing.T) {
	dir := derived(t,
		map[string]any{"chat_template.jinja": "{% set ns = namespace(rest=messages) %}{% for m in ns.rest %}{% for p in " +
			"m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"})
	for release, want := range map[string]string{"0.32.0": "[][][][][]", "0.33.0": "[hello]"} {
		p, err := readOne(t, loadAs(t, dir, func(s *Server) {
			s.EngineVersion = release
		}), chatPath, `{"model":"m","messages":[{"role":"user","content":"hello"}]}`)
		if err != nil || p.Rendered != want {
			t.Errorf("%s: %q %v, want %q", release, p.Rendered, err, want)
		}
	}
}
