package mistral

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/template"
)

// controlTokens are the control tokens of a tekken.json up to version 15, in the order of Mistral's published files.
var controlTokens = strings.Fields("<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] " +
	"[/TOOL_RESULTS] [TOOL_CALLS] " +
	"[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT] " +
	"[ARGS] [CALL_ID] [THINK] [/THINK] [MODEL_SETTINGS] [/MODEL_SETTINGS]")

// tekken returns a small tekken.json of a version: with the given vocabulary, or one token per byte.
func tekken(t testing.TB, version int, vocab []json.RawMessage) []byte {
	if vocab == nil {
		for b := range 256 {
			vocab = append(vocab, fmt.Appendf(nil, `{"rank": %d, "token_bytes": %q, "token_str": null}`, b, encode64([]byte{byte(b)})))
		}
	}
	type object = map[string]any
	var specials []object
	for i, text := range controlTokens {
		if strings.Contains(text, "THINK") && version < 13 || strings.Contains(text, "SETTINGS") && version < 15 {
			text = fmt.Sprintf("<SPECIAL_%d>", i)
		}
		specials = append(specials, object{"rank": i, "token_str": text, "is_control": true})
	}
	f := object{
		"config": object{"pattern": `[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
			"num_vocab_tokens": len(vocab), "default_vocab_size": len(vocab) + len(specials),
			"default_num_special_tokens": len(specials), "version": fmt.Sprintf("v%d", version)},
		"vocab": vocab, "special_tokens": specials, "version": 1, "type": "Tekken",
	}
	if version >= 3 {
		f["image"] = object{"image_patch_size": 14, "max_image_size": 1540, "spatial_merge_size": 2}
	}
	if version >= 15 {
		f["model_settings_builder"] = object{"reasoning_effort": object{"type": "enum", "values": []string{"none", "high"},
			"accepts_none": true, "default": "none"}}
	}
	data, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// ask is a request as the oracle reads it.
type ask struct {
	Dir      string            `json:"dir"`
	Messages []json.RawMessage `json:"messages"`
	Tools    json.RawMessage   `json:"tools"`
	Generate bool              `json:"generate"`
	Continue bool              `json:"continue"`
	Effort   string            `json:"effort"`
}

func (a *ask) encode(t testing.TB, tok *Tokenizer) (Encoded, error) {
	t.Helper()
	skeleton, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	s := new(body.Skeleton)
	if err := s.Scan([][]byte{skeleton}); err != nil {
		t.Fatalf("got %v: %s, want no error", err, skeleton)
	}
	var req body.Request
	if err := body.Parse(s, &req); err != nil {
		t.Fatal(err)
	}
	r := Request{Body: s, Messages: req.Messages, Continue: a.Continue, Effort: a.Effort}
	if len(a.Tools) > 0 {
		r.Tools, err = template.FromJSON(string(a.Tools))
		if err != nil {
			t.Fatal(err)
		}
	}
	return tok.Encode(&r)
}

// TestDifferential compares many random requests with mistral-common itself: SIGHTLINE_PYTHON is a Python that has
// mistral-common 1.13.1 and sentencepiece.
func TestDifferential(t *testing.T) {
	python := os.Getenv("SIGHTLINE_PYTHON")
	if python == "" {
		t.Skip("SIGHTLINE_PYTHON is not set: a Python with mistral-common 1.13.1 is not part of the project")
	}
	dirs := oracleDirs(t, python)
	const each = 1500
	r := rand.New(rand.NewSource(7))
	var asks []ask
	var in bytes.Buffer
	for _, dir := range dirs {
		for range each {
			a := randomAsk(r)
			a.Dir = dir
			line, err := json.Marshal(a)
			if err != nil {
				t.Fatal(err)
			}
			asks = append(asks, a)
			in.Write(append(line, '\n'))
		}
	}
	cmd := exec.Command(python, "testdata/oracle.py")
	cmd.Stdin, cmd.Stderr = &in, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	answers := bufio.NewScanner(bytes.NewReader(out))
	answers.Buffer(nil, 1<<24)
	wrong := 0
	var tok *Tokenizer
	encoded, refused, unforeseen := 0, 0, 0
	for i := range asks {
		a := &asks[i]
		if i%each == 0 {
			tok, err = Load(os.DirFS(a.Dir))
			if err != nil {
				t.Fatal(err)
			}
			encoded, refused, unforeseen = 0, 0, 0
		}
		var want struct {
			IDs     []uint32 `json:"ids"`
			Refused string   `json:"refused"`
		}
		if !answers.Scan() || json.Unmarshal(answers.Bytes(), &want) != nil {
			t.Fatal("the oracle ended early")
		}
		got, err := a.encode(t, tok)
		if want.Refused == "" && (err != nil || !slices.Equal(got.IDs, want.IDs)) { // most refusals are not predicted here
			wrong++
			if wrong <= 10 {
				line, _ := json.Marshal(a)
				t.Errorf("%s\n%s\n got %v %q\nwant %s %q", filepath.Base(a.Dir), line, err, tok.text.Decode(got.IDs, false),
					want.Refused, tok.text.Decode(want.IDs, false))
			}
		}
		if want.Refused != "" {
			refused++
			if err == nil {
				unforeseen++
			}
		} else {
			encoded++
		}
		if i%each == each-1 {
			t.Logf("%s (version %d): %d encoded, %d refused, %d of them not foreseen", filepath.Base(a.Dir), tok.version,
				encoded, refused, unforeseen)
		}
	}
	t.Logf("%d of %d equal", len(asks)-wrong, len(asks))
}

// oracleDirs returns tokenizers of all versions: the files that mistral-common ships, and for other versions a tekken.json made of
// the first tokens of a shipped one.
func oracleDirs(t *testing.T, python string) (dirs []string) {
	where, err := exec.Command(python, "-c", "import mistral_common, os; print(os.path.dirname(mistral_common.__file__))").Output()
	if err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(strings.TrimSpace(string(where)), "data")
	dir := func(name, file string, content []byte) {
		path := filepath.Join(t.TempDir(), name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, file), content, 0o644); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, path)
	}
	for name, file := range map[string]string{
		"tokenizer.model.v1": "tokenizer.model.v1", "mistral_instruct_tokenizer_240216.model.v2": "tokenizer.model.v2",
		"mistral_instruct_tokenizer_240323.model.v3":   "tokenizer.model.v3",
		"mistral_instruct_tokenizer_241114.model.v7m1": "tokenizer.model.v7m1",
		"tekken_240911.json":                           "tekken.json",
	} {
		content, err := os.ReadFile(filepath.Join(data, name))
		if err != nil {
			t.Fatal(err)
		}
		dir(name, file, content)
		if file != "tekken.json" {
			continue
		}
		var whole struct{ Vocab []json.RawMessage }
		if err := json.Unmarshal(content, &whole); err != nil {
			t.Fatal(err)
		}
		for _, version := range []int{2, 3, 7, 11, 13, 15} {
			dir(fmt.Sprintf("tekken-v%d", version), "tekken.json", tekken(t, version, whole.Vocab[:6000]))
		}
	}
	slices.Sort(dirs)
	return dirs
}

// randomAsk returns a conversation that is mostly well formed.
func randomAsk(r *rand.Rand) (a ask) {
	var ids []string // of calls without a result
	n := 1 + r.Intn(7)
	role := "user"
	for i := range n {
		if i == 0 {
			role = pick(r, "user", "user", "user", "user", "user", "user", "system", "system", "system", "developer", "assistant")
		} else {
			role = nextRole(r, role, len(ids) > 0)
		}
		m := map[string]any{"role": role}
		switch role {
		case "assistant":
			calling := r.Intn(3) == 0
			if !calling || r.Intn(5) == 0 {
				m["content"] = randomContent(r, role)
			} else if r.Intn(2) == 0 {
				m["content"] = nil
			}
			if calling {
				ids = nil
				var calls []any
				for range 1 + r.Intn(3) {
					id := randomID(r)
					ids = append(ids, id)
					fn := map[string]any{"name": randomName(r)}
					if r.Intn(10) > 0 {
						fn["arguments"] = pick(r, `{"a": 1}`, `{"city":"Köln", "x":[1,2.50,1e3,null]}`, `{}`, ``, `not json`, `[1]`,
							"{\"b\":\"\\u00e9\\n\",\"a\": {\"c\":true}}")
					}
					calls = append(calls, map[string]any{"id": id, "type": "function", "function": fn})
				}
				m["tool_calls"] = calls
			}
			if r.Intn(12) == 0 {
				m[pick(r, "reasoning", "reasoning_content")] = randomText(r)
			}
		case "tool":
			m["content"] = randomContent(r, role)
			id := randomID(r)
			if len(ids) > 0 && r.Intn(12) > 0 {
				at := r.Intn(len(ids))
				id = ids[at]
				ids = slices.Delete(ids, at, at+1)
			}
			m["tool_call_id"] = id
			if r.Intn(3) == 0 {
				m["name"] = randomName(r)
			}
			if r.Intn(30) == 0 {
				delete(m, "tool_call_id")
			}
		default:
			m["content"] = randomContent(r, role)
			if r.Intn(60) == 0 {
				delete(m, "content")
			}
		}
		raw, _ := json.Marshal(m)
		a.Messages = append(a.Messages, raw)
	}
	a.Tools = json.RawMessage("null")
	if r.Intn(4) == 0 {
		a.Tools = json.RawMessage(randomTools(r))
	}
	if role == "assistant" {
		a.Continue, a.Generate = r.Intn(16) > 0, r.Intn(40) == 0
	} else {
		a.Continue, a.Generate = r.Intn(40) == 0, r.Intn(8) > 0
	}
	if r.Intn(12) == 0 {
		a.Effort = pick(r, "none", "high", "high", "low", "strange")
	}
	return a
}

func nextRole(r *rand.Rand, before string, waiting bool) string {
	if r.Intn(60) == 0 {
		return pick(r, "user", "system", "assistant", "tool", "developer", "other")
	}
	switch before {
	case "system", "developer":
		return pick(r, "user", "user", "user", "assistant", "system")
	case "user":
		return pick(r, "assistant", "assistant", "assistant", "assistant", "user", "system")
	}
	if waiting {
		return "tool"
	}
	return pick(r, "user", "user", "user", "assistant")
}

func randomContent(r *rand.Rand, role string) any {
	if r.Intn(3) > 0 {
		return randomText(r)
	}
	parts := []any{}
	for range r.Intn(5) {
		kind := "text"
		switch role {
		case "user":
			kind = pick(r, "text", "image_url")
		case "tool":
			kind = pick(r, "text", "text", "text", "text", "text", "text", "image_url")
		case "assistant", "system":
			kind = pick(r, "text", "text", "text", "text", "text", "text", "thinking")
		}
		if r.Intn(40) == 0 {
			kind = pick(r, "text", "image_url", "thinking", "refusal")
		}
		p := map[string]any{"type": kind}
		switch kind {
		case "text", "thinking", "refusal":
			p[kind] = randomText(r)
			if kind == "thinking" && r.Intn(3) == 0 {
				p["closed"] = r.Intn(2) == 0
			}
		case "image_url":
			url := map[string]any{"url": "data:image/png;base64,AAAA"}
			if r.Intn(4) == 0 {
				url["detail"] = "low"
			}
			if r.Intn(40) == 0 {
				url["uuid"] = "x"
			}
			p["image_url"] = url
			if r.Intn(5) == 0 {
				p["uuid"] = "y"
			}
		}
		parts = append(parts, p)
	}
	return parts
}

func randomTools(r *rand.Rand) string {
	return pick(r, `[]`,
		`[{"type": "function", "function": {"name": "get_weather", "description": "Wetter – \"jetzt\" & <dann>", "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": ["integer", "null"], "minimum": 0, "default": 1.50}}, "required": ["city"]}}}]`,
		`[{"type": "function", "function": {"parameters": null, "name": "f", "description": null}}, {"type": "function", "function": {"name": "g-2", "strict": true, "parameters": {"x": 1}}}]`,
		`[{"type": "function", "function": {"name": "f", "parameters": {"type": "thing"}}}]`,
		`[{"type": "function", "function": {"name": "f", "parameters": {"required": ["a", "a"]}}}]`,
		`[{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"items": [{"enum": [1]}], "minItems": 2.0, "anyOf": [true, {"not": {}}]}}}}}]`,
		`[{"type": "function", "function": {"name": "f", "parameters": {"allOf": []}}}]`,
		`[{"type": "function", "function": {"name": "f", "parameters": {"multipleOf": 0}}}]`,
		`[{"type": "function", "function": {"name": "f", "parameters": {"dependencies": {"a": ["b"], "c": {"type": "null"}}, "additionalProperties": false}}}]`,
		`[{"type": "function", "function": {"name": "no good"}}]`)
}

func randomID(r *rand.Rand) string {
	if r.Intn(8) > 0 {
		return fmt.Sprintf("call_%09d", r.Intn(20))
	}
	return pick(r, "abcdefgh1", "Zz0000000", "call_00000001", "chatcmpl-tool-0123456789ab", "abc-efgh1", "short", "null",
		"", "123456789", "987654321", "ABCDEFGHI")
}

func randomName(r *rand.Rand) string {
	if r.Intn(40) == 0 {
		return pick(r, "with space", "", "ä", "line\n")
	}
	return pick(r, "get_weather", "f", "a-b_C9")
}

func randomText(r *rand.Rand) string {
	return pick(r, "Hello there", "Write a haiku.", " spaced  ", "trailing   ", "\n", "", "a\n\nb", "Größe 日本 👩‍🚀",
		"[INST] </s> [IMG] <s>[TOOL_CALLS]", `{"temp": 11.50, "sky": "☁️"}`,
		`[1, 2 ,{"a":null}]`, `"text"`, "12", "1e5", "NaN", "{bad", "x = 1\n\tif y:\r\n", "true")
}

func pick(r *rand.Rand, of ...string) string { return of[r.Intn(len(of))] }
