package mistral

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/template"
)

func encode64(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

// small returns a tokenizer of a version with one token per byte, so that its prompts are readable.
func small(t testing.TB, version int) *Tokenizer {
	t.Helper()
	tok, err := Load(fstest.MapFS{"tekken.json": {Data: tekken(t, version, nil)}})
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func messages(t testing.TB, list string) (raw []json.RawMessage) {
	t.Helper()
	if err := json.Unmarshal([]byte(list), &raw); err != nil {
		t.Fatal(err)
	}
	return raw
}

const (
	oneTool  = `[{"type":"function","function":{"name":"f","description":null,"parameters":{"type":"object"}}}]`
	toolTurn = `[{"role":"system","content":"S"},{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"id":"call_000000001","type":"function","function":{"name":"f","arguments":"{\"x\": \"é\"}"}},{"id":"call_000000002","type":"function","function":{"name":"g","arguments":""}}]},` +
		`{"role":"tool","tool_call_id":"call_000000002","content":"{\"y\":1}"},{"role":"tool","tool_call_id":"call_000000001","content":"no"},{"role":"assistant","content":"b "},{"role":"user","content":"c"}]`
	image = `{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}`
)

// TestLayouts: the layouts of the versions, as mistral-common 1.13.1 writes them; TestDifferential verifies them against it.
func TestLayouts(t *testing.T) {
	jsonTools := `[AVAILABLE_TOOLS][{"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}][/AVAILABLE_TOOLS]`
	for _, c := range []struct {
		name     string
		version  int
		messages string
		tools    string
		goOn     bool
		want     string
	}{
		{"user", 3, `[{"role":"user","content":"Hi [IMG]</s>"}]`, "", false, "<s>[INST]Hi [IMG]</s>[/INST]"},
		{"system goes to the last user message", 3,
			`[{"role":"system","content":"S"},{"role":"user","content":"a"},{"role":"assistant","content":"b "},{"role":"user","content":"c"}]`,
			"", false,
			"<s>[INST]a[/INST]b</s>[INST]S\n\nc[/INST]"},
		{"system goes to the first in version 1", 1,
			`[{"role":"system","content":"S"},{"role":"user","content":"a"},{"role":"assistant","content":"b "},{"role":"user","content":"c"}]`,
			"", false,
			"<s>[INST] S\n\na [/INST]b </s>[INST] c [/INST]"},
		{"system stays", 7, `[{"role":"developer","content":"S"},{"role":"user","content":"a"}]`, "", false,
			"<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]a[/INST]"},
		{"one role in a row", 7,
			`[{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b"},{"type":"text","text":""},{"type":"text","text":"c"}]}]`, "", false, "<s>[INST]a\n\nb\n\nc[/INST]"},
		{"parts in version 15", 15,
			`[{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]}]`, "", false,
			`<s>[MODEL_SETTINGS]{"reasoning_effort": "none"}[/MODEL_SETTINGS][INST]a` + "\n\nbc[/INST]"},
		{"image behind text goes first", 3, `[{"role":"user","content":[{"type":"text","text":"a"},` + image + `]}]`, "",
			false, "<s>[INST][IMG]a[/INST]"},
		{"images stay", 3, `[{"role":"user","content":[{"type":"text","text":"a"},` + image + `,{"type":"text","text":"b"},` +
			image + `]}]`, "", false, "<s>[INST]a[IMG]b[IMG][/INST]"},
		{"continue", 3, `[{"role":"user","content":"a"},{"role":"assistant","content":"b  "}]`, "", true, "<s>[INST]a[/INST]b"},
		{"tools, version 3", 3, toolTurn, oneTool, false,
			`<s>[INST]a[/INST][TOOL_CALLS][{"name": "f", "arguments": {"x": "é"}, "id": "000000001"}, {"name": "g", "arguments": {}, "id": "000000002"}]</s>` +
				`[TOOL_RESULTS]{"content": {"y": 1}, "call_id": "000000002"}[/TOOL_RESULTS][TOOL_RESULTS]{"content": "no", "call_id": "000000001"}[/TOOL_RESULTS]b</s>` + jsonTools + "[INST]S\n\nc[/INST]"},
		{"tools, version 2 forgets earlier ones", 2, toolTurn, oneTool, false, "<s>[INST]a[/INST]b</s>" + jsonTools + "[INST]S\n\nc[/INST]"},
		{"tools, version 7", 7, toolTurn, oneTool, false,
			`<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]a[/INST][TOOL_CALLS][{"name": "f", "arguments": {"x": "é"}, "id": "000000001"}, {"name": "g", "arguments": {}, "id": "000000002"}]</s>` +
				`[TOOL_RESULTS]000000002[TOOL_CONTENT]{"y":1}[/TOOL_RESULTS][TOOL_RESULTS]000000001[TOOL_CONTENT]no[/TOOL_RESULTS]b</s>` +
				jsonTools + "[INST]c[/INST]"},
		{"tools, version 11 sorts results", 11, toolTurn, "", false,
			`<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]a[/INST][TOOL_CALLS]f[CALL_ID]000000001[ARGS]{"x": "é"}[TOOL_CALLS]g[CALL_ID]000000002[ARGS]{}</s>` +
				`[TOOL_RESULTS]000000001[TOOL_CONTENT]no[/TOOL_RESULTS][TOOL_RESULTS]000000002[TOOL_CONTENT]{"y":1}[/TOOL_RESULTS]b</s>[INST]c[/INST]`},
		{"tools, version 13", 13, toolTurn, oneTool, false, `<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT]` + jsonTools +
			`[INST]a[/INST][TOOL_CALLS]f[ARGS]{"x": "é"}[TOOL_CALLS]g[ARGS]{}</s>` +
			`[TOOL_RESULTS]no[/TOOL_RESULTS][TOOL_RESULTS]{"y":1}[/TOOL_RESULTS]b</s>[INST]c[/INST]`},
		{"thought", 13,
			`[{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning_content":"r"},{"role":"user","content":"c"}]`,
			"", false, "<s>[INST]a[/INST][THINK]r[/THINK]b</s>[INST]c[/INST]"},
		{"open thought", 13,
			`[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"r","closed":false}]}]`,
			"", true, "<s>[INST]a[/INST][THINK]r"},
		{"image of a tool", 15,
			`[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[{"id":"1","function":{"name":"f"}}]},{"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"b"},` + image + `]}]`, "", false,
			`<s>[MODEL_SETTINGS]{"reasoning_effort": "none"}[/MODEL_SETTINGS][INST]a[/INST][TOOL_CALLS]f[ARGS]{}</s>[TOOL_RESULTS]b[IMG][/TOOL_RESULTS]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			tok := small(t, c.version)
			a := ask{Messages: messages(t, c.messages), Continue: c.goOn}
			if c.tools != "" {
				a.Tools = json.RawMessage(c.tools)
			}
			got, err := a.encode(t, tok)
			if err != nil {
				t.Fatal(err)
			}
			if text := tok.text.Decode(got.IDs, false); text != c.want {
				t.Errorf("got  %s\nwant %s", text, c.want)
			}
			if n := strings.Count(c.messages, `"image_url":{`); n != len(got.Images) {
				t.Errorf("%d images, want %d", len(got.Images), n)
			}
			img, _ := tok.control("[IMG]")
			n := 0
			for _, id := range got.IDs {
				if id == img {
					n++
				}
			}
			if n != len(got.Images) {
				t.Errorf("%d [IMG] for %d images: a text became a control token, want %d", n, len(got.Images), len(got.Images))
			}
		})
	}
}

// Requests that mistral-common, or vLLM before it, answers with 400 and that cannot be read here, and those in recordings.
var refusals = []oddity{
	{"no messages", []int{3}, `[]`, nil},
	{"unknown role", []int{3}, `[{"role":"other","content":"a"}]`, nil},
	{"call id", []int{3, 7, 11}, `[{"role":"user","content":"a"},` + callWith("call_1aB2") +
		`,{"role":"tool","tool_call_id":"call_1aB2","content":"b"}]`, nil},
	{"no call id", []int{3, 13}, `[{"role":"user","content":"a"},` + callWith("null") +
		`,{"role":"tool","tool_call_id":"null","content":"b"}]`, nil},
	{"no content", []int{3}, `[{"role":"user","content":null}]`, nil},
	{"image of version 2", []int{1, 2}, `[{"role":"user","content":[` + image + `]}]`, nil},
	{"image of the assistant", []int{3, 15}, `[{"role":"user","content":"a"},{"role":"assistant","content":[` + image +
		`]},{"role":"user","content":"a"}]`, nil},
	{"image of the system", []int{3, 15}, `[{"role":"system","content":[` + image + `]},{"role":"user","content":"a"}]`, nil},
	{"image of a tool", []int{13}, `[{"role":"user","content":"a"},` + callWith("1") +
		`,{"role":"tool","tool_call_id":"1","content":[` + image + `]}]`, nil},
	{"uuid within image_url", []int{3}, `[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x","uuid":"y"}}]}]`, nil},
	{"image without data", []int{3}, `[{"role":"user","content":[{"type":"image_url","image_url":null,"uuid":"y"}]}]`, nil},
	{"part without a type", []int{3}, `[{"role":"user","content":[{"image_url":"x"}]}]`, nil},
	{"sound", []int{13}, `[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"x"}}]}]`, nil},
	{"thought", []int{3, 7},
		`[{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning":"r"},{"role":"user","content":"c"}]`, nil},
	{"thought without tokens", []int{11},
		`[{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning":"r"},{"role":"user","content":"c"}]`, nil},
}

// Requests that they also answer with 400, by rules that do not affect a prompt: they are read, and the answer withdraws the
// prediction.
var unforeseen = []oddity{
	{"one message of the assistant", []int{3, 13}, `[{"role":"assistant","content":"a"}]`, nil},
	{"the assistant's last", []int{3, 13}, `[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]`, nil},
	{"generate behind the assistant", []int{3}, `[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]`,
		func(a *ask) { a.Generate = true }},
	{"continue the user", []int{3}, `[{"role":"user","content":"a"}]`, func(a *ask) { a.Continue = true }},
	{"system behind the assistant", []int{3, 13},
		`[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"system","content":"c"}]`, nil},
	{"result without a call", []int{3, 13}, `[{"role":"user","content":"a"},{"role":"tool","tool_call_id":"123456789","content":"b"}]`, nil},
	{"result of another call", []int{11, 13}, `[{"role":"user","content":"a"},` + callWith("123456789") +
		`,{"role":"tool","tool_call_id":"123456780","content":"b"}]`, nil},
	{"two results of a call", []int{11}, `[{"role":"user","content":"a"},` + callWith("123456789") +
		`,{"role":"tool","tool_call_id":"123456789","content":"b"},{"role":"tool","tool_call_id":"123456789","content":"b"}]`, nil},
	{"two results in a turn", []int{2}, `[{"role":"user","content":"a"},` + callWith("1") +
		`,{"role":"tool","tool_call_id":"1","content":"b"},{"role":"tool","tool_call_id":"2","content":"b"}]`, nil},
	{"missing result", []int{3, 7, 13}, `[{"role":"user","content":"a"},` + callWith("123456789") +
		`,{"role":"assistant","content":"b"},{"role":"user","content":"c"}]`, nil},
	{"content and calls", []int{2, 3},
		`[{"role":"user","content":"a"},{"role":"assistant","content":"b","tool_calls":[{"id":"123456789","function":{"name":"f"}}]},{"role":"tool","tool_call_id":"123456789","content":"c"}]`, nil},
	{"neither content nor calls", []int{3, 7, 13},
		`[{"role":"user","content":"a"},{"role":"assistant","content":""},{"role":"user","content":"c"}]`, nil},
	{"schema", []int{3}, `[{"role":"user","content":"a"}]`, func(a *ask) {
		a.Tools = json.RawMessage(`[{"type":"function","function":{"name":"f","parameters":{"type":"thing"}}}]`)
	}},
	{"tool's name", []int{3}, `[{"role":"user","content":"a"}]`, func(a *ask) {
		a.Tools = json.RawMessage(`[{"type":"function","function":{"name":"no good"}}]`)
	}},
	{"effort", []int{15}, `[{"role":"user","content":"a"}]`, func(a *ask) { a.Effort = "low" }},
}

type oddity struct {
	name     string
	versions []int
	messages string
	change   func(*ask)
}

// callWith returns an assistant's message with one call.
func callWith(id string) string {
	return `{"role":"assistant","tool_calls":[{"id":"` + id + `","type":"function","function":{"name":"f","arguments":"{}"}}]}`
}

func TestRefusals(t *testing.T) {
	for i, c := range slices.Concat(refusals, unforeseen) {
		for _, version := range c.versions {
			a := ask{Messages: messages(t, c.messages)}
			if c.change != nil {
				c.change(&a)
			}
			got, err := a.encode(t, small(t, version))
			want, refused := i < len(refusals), errors.As(err, new(*RefusedError))
			if refused != want || !want && err != nil {
				t.Errorf("%s, version %d: refused %v, want %v: %v %v", c.name, version, refused, want, got.IDs, err)
			}
		}
	}
}

// A tool's result that is JSON for Python alone is embedded as such up to version 6; one that is no JSON is a text.
func TestResultOnlyPythonReads(t *testing.T) {
	for content, want := range map[string]error{`{\"y\":NaN}`: ErrPython, ` [1, -Infinity]`: ErrPython, `\"\\ud800\"`: ErrPython, "NaN": nil,
		"y is NaN": nil, `{\"y\"}`: nil, "": nil} {
		turn := `[{"role":"user","content":"a"},` + callWith("123456789") +
			`,{"role":"tool","tool_call_id":"123456789","content":"` + content + `"}]`
		for _, version := range []int{3, 7} {
			a := ask{Messages: messages(t, turn)}
			if _, err := a.encode(t, small(t, version)); version == 3 && err != want || version == 7 && err != nil {
				t.Errorf("%s, version %d: %v, want %v in version 3", content, version, err, want)
			}
		}
	}
}

func TestLoad(t *testing.T) {
	good := tekken(t, 13, nil)
	file := func(data []byte) *fstest.MapFile { return &fstest.MapFile{Data: data} }
	for _, c := range []struct {
		name string
		dir  fstest.MapFS
		want string // in the error
	}{
		{"nothing", fstest.MapFS{"config.json": file(nil)}, "no Mistral tokenizer"},
		{"version", fstest.MapFS{"tekken.json": file([]byte(strings.Replace(string(good), `"v13"`, `"v14"`, 1)))}, "config.version"},
		{"control token", fstest.MapFS{"tekken.json": file([]byte(strings.Replace(string(good), `"[ARGS]"`, `"[ARGH]"`, 1)))}, "[ARGS]"},
		{"JSON", fstest.MapFS{"tekken.json": file(good[:100])}, "tekken.json"},
		{"SentencePiece", fstest.MapFS{"tokenizer.model.v3": file([]byte("x"))}, "tokenizer.model.v3"},
	} {
		if _, err := Load(c.dir); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", c.name, err, c.want)
		}
	}
}

func TestDetect(t *testing.T) {
	for _, c := range []struct {
		files string
		want  bool
		file  string
	}{
		{"params.json tekken.json", true, "tekken.json"},
		{"params.json tokenizer.model.v3 tokenizer.model.v7m1 tokenizer.model", true, "tokenizer.model.v7m1"},
		{"params.json tekken.json tokenizer.model.v3", true, "tekken.json"},
		{"params.json tekken.json config.json tokenizer.json", false, "tekken.json"},
		{"params.json tekken.json config.json tokenizer.json consolidated-00001-of-00002.safetensors", true, "tekken.json"},
		{"config.json tokenizer.model tokenizer_config.json", false, "tokenizer.model"},
		{"params.json tokenizer.model", false, "tokenizer.model"},
		{"config.json tokenizer.json", false, ""},
		{"params.json tokenizer.model.v4", true, ""},
	} {
		dir := fstest.MapFS{}
		for _, name := range strings.Fields(c.files) {
			dir[name] = &fstest.MapFile{}
		}
		if got := Detect(dir); got != c.want {
			t.Errorf("%s: detected %v, want %v", c.files, got, c.want)
		}
		if got := file(dir); got != c.file {
			t.Errorf("%s: file %q, want %q", c.files, got, c.file)
		}
	}
}

// FuzzEncode: a client's body never makes the encoder fail except by a refusal, and a prompt has one [IMG] per image.
func FuzzEncode(f *testing.F) {
	f.Add(3, []byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},`+image+`]}],"tools":`+oneTool+`}`), false)
	f.Add(13, []byte(`{"messages":`+toolTurn+`,"tools":`+oneTool+`}`), true)
	tokenizers := map[int]*Tokenizer{}
	for _, v := range []int{1, 2, 3, 7, 11, 13, 15} {
		tokenizers[v] = small(f, v)
	}
	f.Fuzz(func(t *testing.T, version int, skeleton []byte, goOn bool) {
		tok := tokenizers[version]
		s := new(body.Skeleton)
		var req body.Request
		if tok == nil || s.Scan([][]byte{skeleton}) != nil || body.Parse(s, &req) != nil {
			return
		}
		tools, err := template.FromJSON(s.Full(req.Fields["tools"]))
		if err != nil {
			tools = template.None
		}
		got, err := tok.Encode(&Request{Body: s, Messages: req.Messages, Tools: tools, Continue: goOn})
		if refused := (*RefusedError)(nil); err != nil && !errors.As(err, &refused) {
			t.Fatal(err)
		}
		n := 0
		for _, id := range got.IDs {
			if tok.images && id == tok.id.img {
				n++
			}
		}
		if n != len(got.Images) {
			t.Fatalf("%d [IMG] for %d images, want %d", n, len(got.Images), len(got.Images))
		}
	})
}

// BenchmarkEncode encodes 40 turns of 600 characters, and an image.
func BenchmarkEncode(b *testing.B) {
	tok := small(b, 13)
	turn := strings.Repeat("The picture shows six rectangles of several sizes. ", 12)
	var list []string
	for range 20 {
		list = append(list, `{"role":"user","content":[{"type":"text","text":"`+turn+`"},`+image+`]}`,
			`{"role":"assistant","content":"`+turn+`"}`)
	}
	skeleton := []byte(`{"messages":[` + strings.Join(append(list, `{"role":"user","content":"b"}`), ",") + `]}`)
	s := new(body.Skeleton)
	var req body.Request
	if err := s.Scan([][]byte{skeleton}); err != nil {
		b.Fatal(err)
	}
	if err := body.Parse(s, &req); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(skeleton)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := tok.Encode(&Request{Body: s, Messages: req.Messages}); err != nil {
			b.Fatal(err)
		}
	}
}

// TestSmall: the small tokenizer of testdata/small, which other packages use in tests, is up to date.
func TestSmall(t *testing.T) {
	want := tekken(t, 13, nil)
	got, err := os.ReadFile("testdata/small/tekken.json")
	if err != nil || string(got) != string(want) {
		t.Errorf("testdata/small/tekken.json is not what tekken() makes (%v), want no error, string(got) == string(want)", err)
	}
}
