package prompt_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	. "github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/prompt/vision"
)

const shipped = "../examples/models/qwen2.5-vl"

// of returns the dialect of an engine's newest known release.
func of(name string) Dialect { return engine.RulesOf(name, engine.RulesOf(name, "").Release).Dialect }

// load reads a directory, for vLLM unless opt names another.
func load(t testing.TB, dir string, opt Options) *Renderer {
	t.Helper()
	if opt.Dialect.Format == nil {
		opt.Dialect = of("vllm")
	}
	m, err := Load(dir, opt)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// request scans and parses a body.
func request(t testing.TB, skeleton string) *body.Request {
	t.Helper()
	var s body.Skeleton
	if err := s.Scan([][]byte{[]byte(skeleton)}); err != nil {
		t.Fatalf("%v: %.200s", err, skeleton)
	}
	req := new(body.Request)
	if err := body.Parse(&s, req); err != nil {
		t.Fatalf("%v: %.200s", err, skeleton)
	}
	return req
}

// draft reads a body that must be valid.
func draft(t testing.TB, m *Renderer, endpoint, body string) *Draft {
	t.Helper()
	d, err := m.Read(t.Context(), endpoint, request(t, body))
	if err != nil {
		t.Fatalf("%s %.300s: %v", endpoint, body, err)
	}
	return d
}

const png = `data:image/png;base64,QUJD`

// TestAbsentFeature: what this package's Jinja lacks costs only the chats that come to it, and these are not refused.
func TestAbsentFeature(t *testing.T) {
	m := load(t, shipped, Options{TemplateFile: "{% for m in messages %}{% if m.raw is defined %}{{ m.raw | from_json }}{% endif %}" +
		"{% if m.name is defined %}{{ m.name | pprint }}{% endif %}{% if m.content.rfind('x') > 0 %}X{% endif %}{{ m.content }}{% endfor %}"})
	if err := m.Fault(); err != nil {
		t.Fatalf("got the fault %v, want none: the filters are in branches", err)
	}
	if got := draft(t, m, ChatEndpoint, `{"messages":[{"role":"user","content":"axb"}]}`).Prompts[0].Text; got != "Xaxb" {
		t.Errorf("got %q, want Xaxb", got)
	}
	_, err := m.Read(t.Context(), ChatEndpoint, request(t, `{"messages":[{"role":"user","content":"a","name":"n"}]}`))
	if err != ErrFeature {
		t.Errorf("got %v, want %v", err, ErrFeature)
	}
}

// TestAbsentFeatureInTrial: what this package's Jinja lacks is no refusal where an engine finds out about a template by rendering it, or
// tries again what a template refuses. Only the requests for which that decides are not predicted.
func TestAbsentFeatureInTrial(t *testing.T) {
	sglangs := Options{Dialect: of("sglang")}
	for _, c := range []struct {
		name, template, endpoint string
		opt                      Options
		decides, other           string // requests
	}{
		{"system messages", "{% if messages[2:] and messages[2].role == 'system' %}{{ 1 | pprint }}{% endif %}a", MessagesEndpoint,
			Options{},
			`{"max_tokens":1,"messages":[{"role":"user","content":"a"},{"role":"system","content":"b"}]}`,
			`{"max_tokens":1,"system":"b","messages":[{"role":"user","content":"a"}]}`},
		{"no thinking", "{% if reasoning_effort == 'none' %}{{ 1 | pprint }}{% endif %}a", MessagesEndpoint, Options{},
			`{"max_tokens":1,"thinking":{"type":"disabled"},"messages":[{"role":"user","content":"a"}]}`,
			`{"max_tokens":1,"messages":[{"role":"user","content":"a"}]}`},
		{"thinking as an effort", "{% if reasoning_effort == 'max' %}{{ 1 | pprint }}{% endif %}{{ reasoning_effort }}", MessagesEndpoint,
			Options{},
			`{"max_tokens":1,"thinking":{"type":"disabled"},"messages":[{"role":"user","content":"a"}]}`,
			`{"max_tokens":1,"messages":[{"role":"user","content":"a"}]}`},
		{"bare tools", "{% if tools and tools[0].function %}{{ 1 | pprint }}{% endif %}a", ChatEndpoint, sglangs,
			`{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f"}}]}`,
			`{"messages":[{"role":"user","content":"a"}]}`},
	} {
		c.opt.TemplateFile = filepath.Join(t.TempDir(), "t.jinja")
		if err := os.WriteFile(c.opt.TemplateFile, []byte(c.template), 0o600); err != nil {
			t.Fatal(err)
		}
		m := load(t, shipped, c.opt)
		if _, err := m.Read(t.Context(), c.endpoint, request(t, c.decides)); err != ErrFeature {
			t.Errorf("%s: got %v, want %v", c.name, err, ErrFeature)
		}
		if _, err := m.Read(t.Context(), c.endpoint, request(t, c.other)); err != nil {
			t.Errorf("%s: got %v for a request on which it does not depend, want none", c.name, err)
		}
	}
}

// TestAPIs: requests of other APIs give the same prompt as the equivalent chat request, including images.
func TestAPIs(t *testing.T) {
	m := load(t, shipped, Options{AutoToolChoice: true})
	image := `{"type":"image_url","image_url":{"url":"` + png + `"}}`
	for _, c := range []struct{ name, endpoint, body, chat string }{
		{"responses text", ResponsesEndpoint, `{"input":"Hi"}`, `{"messages":[{"role":"user","content":"Hi"}]}`},
		{"responses image", ResponsesEndpoint,
			`{"instructions":"Be brief.","input":[{"role":"user","content":[{"type":"input_image","image_url":"` + png +
				`"},{"type":"input_text","text":"What?"}]}]}`,
			`{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":[` + image + `,{"type":"text","text":"What?"}]}]}`},
		{"responses history", ResponsesEndpoint,
			`{"input":[{"role":"user","content":"a"},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"b"}]},{"role":"user","content":"c"}]}`,
			`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]}`},
		{"responses tools", ResponsesEndpoint,
			`{"input":[{"role":"user","content":"a"},{"type":"function_call","call_id":"1","name":"f","arguments":"{\"x\":1}"},{"type":"function_call_output","call_id":"1","output":"5"}],"tools":[{"type":"function","name":"f","description":"d","parameters":{"type":"object"}}]}`,
			`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},{"role":"tool","tool_call_id":"1","content":"5"}],"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}]}`},
		{"responses unfinished", ResponsesEndpoint,
			`{"input":[{"role":"user","content":"a"},{"type":"message","role":"assistant","status":"incomplete","content":[{"type":"output_text","text":"b"}]}]}`,
			`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"continue_final_message":true,"add_generation_prompt":false}`},
		{"messages image", MessagesEndpoint,
			`{"max_tokens":1,"system":"Be brief.","messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"QUJD"}},{"type":"text","text":"What?"}]}]}`,
			`{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":[` + image + `,{"type":"text","text":"What?"}]}]}`},
		{"messages url", MessagesEndpoint,
			`{"max_tokens":1,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"` + png + `"}}]}]}`,
			`{"messages":[{"role":"user","content":[` + image + `]}]}`},
		{"messages system blocks", MessagesEndpoint,
			`{"max_tokens":1,"system":[{"type":"text","text":"x-anthropic-billing-header: 1"},{"type":"text","text":"A"},{"type":"text","text":"B"}],"messages":[{"role":"user","content":"Hi"}]}`,
			`{"messages":[{"role":"system","content":"AB"},{"role":"user","content":"Hi"}]}`},
		{"messages tools", MessagesEndpoint,
			`{"max_tokens":1,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"x":1}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"5"}]},{"type":"text","text":"b"}]}],"tools":[{"name":"f","input_schema":{"properties":{}}}]}`,
			`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}}]},{"role":"tool","tool_call_id":"1","content":"5"},{"role":"user","content":"b"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{},"type":"object"}}}]}`},
		{"batch", BatchEndpoint, `{"messages":[[{"role":"user","content":"Hi"}]]}`, `{"messages":[{"role":"user","content":"Hi"}]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := request(t, c.body)
			got, err := m.Read(t.Context(), c.endpoint, req)
			if err != nil {
				t.Fatal(err)
			}
			want := draft(t, m, ChatEndpoint, c.chat)
			if got.Prompts[0].Text != want.Prompts[0].Text {
				t.Errorf("prompt %q\nchat's %q", got.Prompts[0].Text, want.Prompts[0].Text)
			}
			if len(got.Prompts[0].Media) != len(want.Prompts[0].Media) {
				t.Fatalf("%d media, want %d", len(got.Prompts[0].Media), len(want.Prompts[0].Media))
			}
			for _, md := range got.Prompts[0].Media {
				if url := bytes.Join(md.Raw(req.Body), nil); string(url) != png {
					t.Errorf("image %q: got %q, want %q", url, string(url), png)
				}
			}
		})
	}
}

func TestBatch(t *testing.T) {
	m := load(t, shipped, Options{})
	d := draft(t, m, BatchEndpoint,
		`{"messages":[[{"role":"user","content":"a"}],[{"role":"user","content":"b"},{"role":"assistant","content":"c"},{"role":"user","content":"d"}]]}`)
	if len(d.Prompts) != 2 || !strings.Contains(d.Prompts[1].Text, "d<|im_end|>") {
		t.Errorf("got %+v, want 2 of them, [1].Text %q in it", d.Prompts, "d<|im_end|>")
	}
}

// refusals are requests that cannot be read, or that a flag of the server forbids, one per rule. vLLM 0.32 answers them with an
// error.
var refusals = []struct{ name, endpoint, body string }{
	{"no messages", ChatEndpoint, `{}`},
	{"empty messages", ChatEndpoint, `{"messages":[]}`},
	{"lone surrogate", ChatEndpoint, `{"messages":[{"role":"user","content":"\ud800"}]}`},
	{"part number", ChatEndpoint, `{"messages":[{"role":"user","content":[3]}]}`},
	{"part without type", ChatEndpoint, `{"messages":[{"role":"user","content":[{"text":"a"}]}]}`},
	{"part of unknown type", ChatEndpoint, `{"messages":[{"role":"user","content":[{"type":"blob"}]}]}`},
	{"image_url without url", ChatEndpoint, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]}`},
	{"image_url a string", ChatEndpoint, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":"x"}]}]}`},
	{"input_image without detail", ChatEndpoint, `{"messages":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]}`},
	{"tool call without function", ChatEndpoint, `{"messages":[{"role":"assistant","tool_calls":[{}]}]}`},
	{"kwargs not trusted", ChatEndpoint, `{"messages":[{"role":"user","content":"a"}],"mm_processor_kwargs":{"a":1}}`},
	{"truncate -2", ChatEndpoint, `{"messages":[{"role":"user","content":"a"}],"truncate_prompt_tokens":-2}`},
	{"template not trusted", ChatEndpoint, `{"messages":[{"role":"user","content":"a"}],"chat_template":"x"}`},
	{"template in kwargs", ChatEndpoint, `{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"chat_template":"x"}}`},
	{"template kwargs no object", ChatEndpoint, `{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":[]}`},
	{"continue nothing", ChatEndpoint,
		`{"messages":[{"role":"assistant","content":null}],"continue_final_message":true,"add_generation_prompt":false}`},
	{"tools no list", ChatEndpoint, `{"messages":[{"role":"user","content":"a"}],"tools":{},"tool_choice":"none"}`},
	{"tools without parser", ChatEndpoint,
		`{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f"}}]}`},
	{"tool without name", ChatEndpoint, `{"messages":[{"role":"user","content":"a"}],"tools":[{"function":{}}],"tool_choice":"none"}`},
	{"tool_choice of no tool", ChatEndpoint,
		`{"messages":[{"role":"user","content":"a"}],"tools":[{"function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"g"}}}`},
	{"batch to chat", ChatEndpoint, `{"messages":[[{"role":"user","content":"a"}]]}`},
	{"chat to batch", BatchEndpoint, `{"messages":[{"role":"user","content":"a"}]}`},
	{"batch with an empty one", BatchEndpoint, `{"messages":[[{"role":"user","content":"a"}],[]]}`},
	{"no prompt", CompletionsEndpoint, `{}`},
	{"empty prompts", CompletionsEndpoint, `{"prompt":[]}`},
	{"prompt mixed", CompletionsEndpoint, `{"prompt":[1,"a"]}`},
	{"prompt negative", CompletionsEndpoint, `{"prompt":[-1]}`},
	{"prompt fraction", CompletionsEndpoint, `{"prompt":[1.5]}`},
	{"messages block", MessagesEndpoint, `{"max_tokens":1,"messages":[{"role":"user","content":[{"type":"blob"}]}]}`},
	{"responses prompt", ResponsesEndpoint, `{"input":"a","prompt":{"id":"x"}}`},
	{"responses item", ResponsesEndpoint, `{"input":[{}]}`},
	{"responses empty", ResponsesEndpoint, `{"input":[]}`},
	{"responses secret", ResponsesEndpoint,
		`{"input":[{"role":"user","content":"a"},{"type":"reasoning","encrypted_content":"x","summary":[]}]}`},
}

// unforeseen are requests that break rules which only the engine checks; its answer tells.
var unforeseen = []struct{ name, endpoint, body string }{
	{"no role", ChatEndpoint, `{"messages":[{"content":"a"}]}`},
	{"content number", ChatEndpoint, `{"messages":[{"role":"user","content":3}]}`},
	{"text part without text", ChatEndpoint, `{"messages":[{"role":"user","content":[{"type":"text"}]}]}`},
	{"tool_calls no list", ChatEndpoint, `{"messages":[{"role":"assistant","tool_calls":3}]}`},
	{"salt empty", ChatEndpoint, `{"messages":[{"role":"user","content":"a"}],"cache_salt":""}`},
	{"salt with slash", ChatEndpoint, `{"messages":[{"role":"user","content":"a"}],"cache_salt":"a/b"}`},
	{"salt long", ChatEndpoint, `{"messages":[{"role":"user","content":"a"}],"cache_salt":"` + strings.Repeat("a", 129) + `"}`},
	{"kwargs no object", ChatEndpoint, `{"messages":[{"role":"user","content":"a"}],"mm_processor_kwargs":3}`},
	{"continue and generate", ChatEndpoint,
		`{"messages":[{"role":"assistant","content":"a"}],"continue_final_message":true,"add_generation_prompt":true}`},
	{"tools empty", ChatEndpoint, `{"messages":[{"role":"user","content":"a"}],"tools":[]}`},
	{"tool_choice without tools", ChatEndpoint, `{"messages":[{"role":"user","content":"a"}],"tool_choice":"auto"}`},
	{"batch n", BatchEndpoint, `{"messages":[[{"role":"user","content":"a"}]],"n":2}`},
	{"messages without max_tokens", MessagesEndpoint, `{"messages":[{"role":"user","content":"a"}]}`},
	{"messages of a tool", MessagesEndpoint, `{"max_tokens":1,"messages":[{"role":"tool","content":"a"}]}`},
	{"messages effort", MessagesEndpoint, `{"max_tokens":1,"messages":[{"role":"user","content":"a"}],"output_config":{"effort":"huge"}}`},
	{"messages budget", MessagesEndpoint,
		`{"max_tokens":1,"messages":[{"role":"user","content":"a"}],"thinking":{"type":"enabled","budget_tokens":5}}`},
}

// TestRefusals: each rule refuses, with its status and a fixed text, because a metric's label must never hold a client's text.
func TestRefusals(t *testing.T) {
	m := load(t, shipped, Options{MaxModelLen: 4096})
	for _, c := range refusals {
		_, err := m.Read(t.Context(), c.endpoint, request(t, c.body))
		r, ok := err.(*Refused)
		if !ok || r.Status != 400 || r.Reason == "" || strings.ContainsAny(r.Reason, "0123456789") {
			t.Errorf(`got %s: %v, want ok, r.Status == 400, r.Reason != "", !strings.ContainsAny(r.Reason, "0123456789")`, c.name, err)
		}
	}
	d := draft(t, m, CompletionsEndpoint, `{"prompt":"`+strings.Repeat("a b ", 5000)+`"}`)
	if _, err := m.Expand(d, &d.Prompts[0], nil); err == nil {
		t.Errorf("a prompt above max_model_len is taken: got %v, want an error", err)
	}
}

// TestUnforeseen: requests that break unchecked rules are read and expanded like any other.
func TestUnforeseen(t *testing.T) {
	m := load(t, shipped, Options{})
	for _, c := range unforeseen {
		d := draft(t, m, c.endpoint, c.body)
		for i := range d.Prompts {
			if _, err := m.Expand(d, &d.Prompts[i], make([]vision.Media, len(d.Prompts[i].Media))); err != nil && !errors.As(err, new(*Refused)) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
}

// TestUnpredicted: requests that cannot be predicted are distinguished from those that will be refused.
func TestUnpredicted(t *testing.T) {
	m := load(t, shipped, Options{AutoToolChoice: true})
	sglang := load(t, shipped, Options{Dialect: of("sglang")})
	for _, c := range []struct {
		m              *Renderer
		endpoint, body string
		want           error
	}{
		{m, "/v1/embeddings", `{}`, ErrEndpoint},
		{sglang, ResponsesEndpoint, `{"input":"a"}`, ErrEndpoint},
		{m, ResponsesEndpoint, `{"input":"a","previous_response_id":"resp_1"}`, ErrStored},
		{m, ResponsesEndpoint, `{"input":"a","tools":[{"type":"nosuch"}]}`, ErrPart},
		{m, MessagesEndpoint, `{"max_tokens":1,"messages":[{"role":"system","content":[{"type":"tool_removal"}]}]}`, ErrPart},
		{m, MessagesEndpoint, `{"max_tokens":1,"messages":[{"role":"assistant","content":[{"type":"tool_use","name":"f","input":{}}]}]}`, ErrPart},
		{m, CompletionsEndpoint, `{"prompt":[` + strings.Repeat(`"a",`, 1024) + `"a"]}`, ErrManyPrompts},
	} {
		if _, err := c.m.Read(t.Context(), c.endpoint, request(t, c.body)); err != c.want {
			t.Errorf("%s %.80s: %v, want %v", c.endpoint, c.body, err, c.want)
		}
	}
}

// TestEngineForms: the form that each engine gives to the same messages.
func TestEngineForms(t *testing.T) {
	dump := filepath.Join(t.TempDir(), "dump.jinja")
	if err := os.WriteFile(dump, []byte("{{ messages | tojson }}{{ tools | tojson }}{{ x is defined }}{{ documents | tojson }}"),
		0o644); err != nil {
		t.Fatal(err)
	}
	models := map[string]*Renderer{}
	for _, c := range []struct{ name, engine, body, want string }{
		{"vllm: a tool's keys", "vllm dump",
			`{"messages":[{"role":"user","content":"a"}],"tools":[{"function":{"z":1,"parameters":{},"name":"f"}}],"tool_choice":"none"}`,
			`[{"type": "function", "function": {"name": "f", "description": null, "parameters": {}}}]`},
		{"sglang: a tool's keys", "sglang dump",
			`{"messages":[{"role":"user","content":"a"}],"tools":[{"function":{"z":1,"parameters":{},"name":"f"}}]}`,
			`[{"type": "function", "function": {"parameters": {}, "name": "f", "description": null}, "defer_loading": null}]`},
		{"vllm: a null among the kwargs is not given", "vllm dump",
			`{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"x":null}}`, "nullFalse"},
		{"vllm: documents among the kwargs", "vllm dump",
			`{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"documents":[{"a":1}]}}`, `nullFalse[{"a": 1}]`},
		{"vllm: documents of the request go before", "vllm dump",
			`{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"documents":[{"a":1}]},"documents":[{"a":"2"}]}`,
			`nullFalse[{"a": "2"}]`},
		{"sglang: a null is", "sglang dump", `{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"x":null}}`, "nullTrue"},
		{"sglang: texts joined by blanks", "sglang dump",
			`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`, `"content": "a b"`},
		{"vllm: texts joined by newlines", "vllm dump",
			`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`, `"content": "a\nb"`},
		{"vllm: placeholders in front", "vllm dump",
			`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}]}]}`,
			`"<|vision_start|><|image_pad|><|vision_end|>\na"`},
		{"sglang: arguments", "sglang dump",
			`{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"arguments":"{}","name":"f"}}]},{"role":"tool","content":"x"}]}`,
			`"tool_calls": [{"id": "1", "index": null, "type": "function", "function": {"name": "f", "arguments": {}}}]`},
		{"vllm: arguments that are no JSON", "vllm dump",
			`{"messages":[{"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{"}}]}]}`,
			`"arguments": {}`},
		{"vllm: a billing line goes", "vllm",
			`{"messages":[{"role":"system","content":"x-anthropic-billing-header: cch=1\nBe brief."},{"role":"user","content":"a"}]}`,
			"system\nBe brief.<|im_end|>"},
		{"vllm: several developers become one system", "vllm",
			`{"messages":[{"role":"system","content":"a"},{"role":"user","content":"u"},{"role":"developer","content":"b"}]}`,
			"<|im_start|>system\na\n\nb<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"},
		{"sglang: a last assistant becomes a user", "sglang", `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}`,
			"<|im_start|>user\na<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"},
		{"sglang: it is continued behind the prompt", "sglang",
			`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b c"}],"continue_final_message":true}`,
			"<|im_start|>assistant\nb c"},
		{"sglang: no generation prompt to switch off", "sglang", `{"messages":[{"role":"user","content":"a"}],"add_generation_prompt":false}`,
			"<|im_start|>assistant\n"},
		{"trtllm: texts joined by newlines", "trtllm",
			`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":""},{"type":"text","text":"b"}]}]}`,
			"user\na\nb<|im_end|>"},
	} {
		m := models[c.engine]
		if m == nil {
			opt := Options{}
			name, dumps, _ := strings.Cut(c.engine, " ")
			opt.Dialect = of(name)
			if dumps != "" {
				opt.TemplateFile = dump
			}
			m = load(t, shipped, opt)
			models[c.engine] = m
		}
		p := draft(t, m, ChatEndpoint, c.body).Prompts[0]
		if text := m.Tokenizer().Decode(m.Encode(&p), false); !strings.Contains(text, c.want) {
			t.Errorf("%s:\n%q\nlacks %q", c.name, text, c.want)
		}
	}
}

// TestEmbeddingIDs: TensorRT-LLM puts an id beyond the vocabulary at an image's positions; SGLang's pads are inserted later.
func TestEmbeddingIDs(t *testing.T) {
	config, err := os.ReadFile(filepath.Join(shipped, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	vocab := uint32(gjson.GetBytes(config, "vocab_size").Uint())
	for engine, want := range map[string]uint32{"vllm": 151655, "sglang": 151655, "trtllm": vocab + 1} {
		m := load(t, shipped, Options{Dialect: of(engine)})
		d := draft(t, m, ChatEndpoint,
			`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}]}]}`)
		e, err := m.Expand(d, &d.Prompts[0], []vision.Media{{Width: 56, Height: 56}})
		if err != nil || len(e.Spans) != 1 || e.IDs[e.Spans[0].Offset] != want || e.Spans[0].Length != 4 {
			t.Errorf("%s: %v %v (%v), want id %d", engine, e.IDs, e.Spans, err, want)
		}
	}
}

// TestGivenIDs: a prompt given as ids needs no template.
func TestGivenIDs(t *testing.T) {
	for engine, body := range map[string]string{
		"sglang": `{"messages":[{"role":"user","content":"a"}],"input_ids":[1,2,3]}`,
		"trtllm": `{"messages":[{"role":"user","content":"a"}],"prompt_token_ids":[1,2,3]}`,
	} {
		m := load(t, shipped, Options{Dialect: of(engine)})
		d := draft(t, m, ChatEndpoint, body)
		if e, err := m.Expand(d, &d.Prompts[0], nil); err != nil || !slices.Equal(e.IDs, []uint32{1, 2, 3}) {
			t.Errorf("%s: got %v %v, want no error, %v", engine, e.IDs, err, []uint32{1, 2, 3})
		}
	}
}

// TestTextModel: a text model's server refuses images.
func TestTextModel(t *testing.T) {
	dir := copyShipped(t, "preprocessor_config.json",
		map[string]string{"config.json": `{"model_type":"qwen2","architectures":["Qwen2ForCausalLM"]}`})
	for _, engine := range []string{"vllm", "sglang"} {
		m := load(t, dir, Options{Dialect: of(engine)})
		_, err := m.Read(t.Context(), ChatEndpoint,
			request(t, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`))
		if r, ok := err.(*Refused); !ok || r.Status != 400 {
			t.Errorf("%s: %v; got %v, %d, want true, 400", engine, err, ok, r.Status)
		}
	}
}

// conversationBody returns a chat of this many turns with prose and some images.
func conversationBody(turns, words, images int) string {
	var messages []map[string]any
	for i := range turns {
		role := [2]string{"user", "assistant"}[i%2]
		var b strings.Builder
		for j := range words {
			fmt.Fprintf(&b, "%s ", [...]string{"the", "router", "keeps", "every", "block", "of", "a", "prompt", "that",
				"workers", "hold,", "and", "counts", "tokens", "again."}[(i*7+j*j)%15])
		}
		if role == "user" && images > 0 {
			images--
			messages = append(messages, map[string]any{"role": role, "content": []any{
				map[string]any{"type": "image_url", "image_url": map[string]any{"url": png}}, map[string]any{"type": "text", "text": b.String()}}})
			continue
		}
		messages = append(messages, map[string]any{"role": role, "content": b.String()})
	}
	out, _ := json.Marshal(map[string]any{"model": "m", "messages": messages})
	return string(out)
}

func expandAll(tb testing.TB, m *Renderer, req *body.Request) (ids []uint32) {
	d, err := m.Read(context.Background(), ChatEndpoint, req)
	if err != nil {
		tb.Fatal(err)
	}
	p := &d.Prompts[0]
	e, err := m.Expand(d, p, slices.Repeat([]vision.Media{{Width: 1280, Height: 720}}, len(p.Media)))
	if err != nil {
		tb.Fatal(err)
	}
	return e.IDs
}

// TestTimeIsOver: a request whose time ends during tokenization is known up to its last complete turn; before that, not at all.
func TestTimeIsOver(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	long := strings.Repeat("a long last turn ", 20_000)
	body := `{"messages":[{"role":"user","content":"Hello, who are you?"},{"role":"assistant","content":"A router."},{"role":"user","content":` + "%s" + `}]}`
	plain := fmt.Sprintf(body, strconv.Quote(long))
	withImage := fmt.Sprintf(body, `[{"type":"image_url","image_url":{"url":"`+png+`"}},{"type":"text","text":`+strconv.Quote(long)+`}]`)
	for _, engine := range []string{"vllm", "sglang", "trtllm"} {
		m := load(t, shipped, Options{Dialect: of(engine)})
		if _, err := m.Read(over, ChatEndpoint, request(t, plain)); err != ErrTime {
			t.Errorf("%s: %v, want %v", engine, err, ErrTime)
		}
		all := expandAll(t, m, request(t, plain))
		m.Forget(0, 0)
		for name, c := range map[string]struct {
			body  string
			media []vision.Media
		}{"text": {plain, nil}, "image": {withImage, []vision.Media{{Width: 56, Height: 56}}}} {
			ctx, end := context.WithCancel(t.Context())
			d, err := m.Read(ctx, ChatEndpoint, request(t, c.body))
			if err != nil {
				t.Fatal(err)
			}
			end()
			e, err := m.Expand(d, &d.Prompts[0], c.media)
			if err != nil || e.Exact || e.Why != ErrTime.Reason {
				t.Errorf("%s, %s: exact %v, %q, %v, want no error, !e.Exact, e.Why == ErrTime.Reason", engine, name, e.Exact, e.Why, err)
			}
			if n := len(e.IDs); name == "image" && n > 0 || name == "text" && (n < 10 || n > 100 || !slices.Equal(e.IDs, all[:n])) {
				t.Errorf("%s, %s: %d ids of %d, want those of the turns before the long one", engine, name, n, len(all))
			}
		}
	}
}

// TestMarks: a text that Sightline does not tokenize on purpose has a reason of its own, not that of a time that is over.
func TestMarks(t *testing.T) {
	m := load(t, shipped, Options{})
	body := `{"messages":[{"role":"user","content":"Hello, who are you?"},{"role":"assistant","content":"A router."},{"role":"user","content":"a` +
		strings.Repeat("\u0301", 31) + `"}]}`
	d, err := m.Read(t.Context(), ChatEndpoint, request(t, body))
	if err != nil {
		t.Fatal(err)
	}
	if e, err := m.Expand(d, &d.Prompts[0], nil); err != nil || e.Exact || e.Why != ErrText.Reason || len(e.IDs) < 10 {
		t.Errorf("exact %v, %q, %d ids, %v; want the turns before and %q", e.Exact, e.Why, len(e.IDs), err, ErrText.Reason)
	}
}

// TestUnknownFamily: of a family without a vision rule, the text before the first medium is known to the token, and nothing behind.
func TestUnknownFamily(t *testing.T) {
	system := `{"role":"system","content":"` + strings.Repeat("You are a careful assistant. ", 20) + `"}`
	turn := `{"role":"user","content":"Hello"},{"role":"assistant","content":"Hi."}`
	media := `{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"` + png +
		`"}},{"type":"text","text":"what is it?"}]}`
	for _, c := range []struct {
		name, messages string
		least          int
	}{
		{"system", system + "," + media, 120},
		{"a turn before", system + "," + turn + "," + media, 130},
		{"two with media", system + "," + media + "," + turn + "," + media, 120},
		{"media first", media, 13},
	} {
		for _, format := range []string{"openai", "string"} {
			known := load(t, shipped, Options{ContentFormat: format})
			ours := expandAll(t, known, request(t, `{"messages":[`+c.messages+`]}`))
			dir := t.TempDir()
			for _, name := range []string{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} {
				text, err := os.ReadFile(filepath.Join(shipped, name))
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(dir, "config.json"),
				[]byte(`{"model_type":"mystery_vl","architectures":["MysteryVL"],"vision_config":{}}`), 0o600); err != nil {
				t.Fatal(err)
			}
			m := load(t, dir, Options{ContentFormat: format})
			d, err := m.Read(t.Context(), ChatEndpoint, request(t, `{"messages":[`+c.messages+`]}`))
			if err != nil {
				t.Fatal(err)
			}
			e, err := m.Expand(d, &d.Prompts[0], make([]vision.Media, len(d.Prompts[0].Media)))
			if err != nil || e.Exact || e.Why == "" || len(e.IDs) < c.least || !slices.Equal(e.IDs, ours[:len(e.IDs)]) {
				t.Errorf("%s, %s: exact %v, %q, %d ids of at least %d that the text before the image has, %v", c.name, format,
					e.Exact, e.Why, len(e.IDs), c.least, err)
			}
			text := m.Tokenizer().Decode(e.IDs, false)
			if strings.Contains(text, "see") != (format == "openai") || strings.Contains(text, "<|vision_start|>") {
				t.Errorf("%s, %s: %q is not the text before the image", c.name, format, text)
			}
		}
	}
}

// TestGrowingConversation: while a conversation grows, cached turns give the same result as a fresh model.
func TestGrowingConversation(t *testing.T) {
	warm, fresh := load(t, shipped, Options{}), load(t, shipped, Options{})
	for turns := 1; turns < 12; turns += 2 {
		body := conversationBody(turns, 60, 3)
		fresh.Forget(0, 0)
		got, want := expandAll(t, warm, request(t, body)), expandAll(t, fresh, request(t, body))
		if !slices.Equal(got, want) {
			t.Fatalf("%d turns: %d ids, %d without a past; got %v, want %v", turns, len(got), len(want), got, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, c := range slices.Concat(refusals, unforeseen) {
		f.Add(c.body)
	}
	f.Add(conversationBody(3, 10, 1))
	f.Add(`{"max_tokens":1,"system":[{"type":"text","text":"a"}],"messages":[{"role":"user","content":[{"type":"tool_result","content":[{"type":"image","source":{}}]},{"type":"thinking","thinking":"x"}]}]}`)
	f.Add(`{"input":[{"type":"reasoning","summary":[{"text":"a"}]},{"role":"assistant","content":[{"text":"b"}]},{"type":"function_call","name":"f","arguments":"{}"}]}`)
	var models []*Renderer
	for _, engine := range []string{"vllm", "sglang", "trtllm"} {
		m, err := Load(shipped, Options{Dialect: of(engine), AutoToolChoice: true, TrustChatTemplate: engine == "vllm"})
		if err != nil {
			f.Fatal(err)
		}
		models = append(models, m)
	}
	f.Fuzz(func(t *testing.T, skeleton string) {
		var s body.Skeleton
		var req body.Request
		if s.Scan([][]byte{[]byte(skeleton)}) != nil || body.Parse(&s, &req) != nil {
			return
		}
		for _, m := range models {
			for _, endpoint := range []string{ChatEndpoint, CompletionsEndpoint, BatchEndpoint, ResponsesEndpoint, MessagesEndpoint} {
				d, err := m.Read(t.Context(), endpoint, &req)
				switch err.(type) {
				case nil, *Refused, *Unpredicted:
				default:
					t.Fatalf("%s: %T %v", endpoint, err, err)
				}
				if err != nil {
					continue
				}
				for i := range d.Prompts {
					p := &d.Prompts[i]
					for _, md := range p.Media {
						s.Raw(md.Source)
					}
					if _, err := m.Expand(d, p, make([]vision.Media, len(p.Media))); err != nil {
						if _, ok := err.(*Refused); !ok {
							t.Fatalf("got %s: %T %v, want ok", endpoint, err, err)
						}
					}
				}
			}
		}
	})
}

func benchmarkStage(b *testing.B, skeleton string, cold bool) {
	m := load(b, shipped, Options{})
	var s body.Skeleton
	raw := [][]byte{[]byte(skeleton)}
	tokens := 0
	b.ReportAllocs()
	for b.Loop() {
		if cold {
			m.Forget(CacheBytes, 1)
		}
		var req body.Request
		if err := s.Scan(raw); err != nil {
			b.Fatal(err)
		}
		if err := body.Parse(&s, &req); err != nil {
			b.Fatal(err)
		}
		tokens = len(expandAll(b, m, &req))
	}
	b.ReportMetric(float64(tokens), "tokens")
}

// BenchmarkStage8kFourImages measures the whole stage, from body to expanded ids: 8k tokens, half of them from four 720p
// images, in one growing conversation.
func BenchmarkStage8kFourImages(b *testing.B) {
	body := conversationBody(12, 260, 4)
	b.Run("first", func(b *testing.B) { benchmarkStage(b, body, true) })
	b.Run("again", func(b *testing.B) { benchmarkStage(b, body, false) })
}

func BenchmarkStage32KB(b *testing.B) {
	body := conversationBody(1, 6400, 0)
	b.Run("first", func(b *testing.B) { benchmarkStage(b, body, true) })
	b.Run("again", func(b *testing.B) { benchmarkStage(b, body, false) })
}

// TestIDsAtTheirLength checks that a prompt's ids, which outlive their request, are not kept in an array that has room for a text of
// short tokens.
func TestIDsAtTheirLength(t *testing.T) {
	m := load(t, shipped, Options{})
	text := strings.Repeat(strings.Repeat(" ", 64)+"a", 10_000)
	d := draft(t, m, CompletionsEndpoint, `{"prompt":"`+text+`"}`)
	e, err := m.Expand(d, &d.Prompts[0], nil)
	if err != nil || len(e.IDs) == 0 || cap(e.IDs) > 2*len(e.IDs)+1024 || len(text)/3 < 4*len(e.IDs) {
		t.Errorf("%d ids of a text of %d bytes in an array for %d (%v): got %d, want no error, some, at most %d, at least %d",
			len(e.IDs), len(text), cap(e.IDs), err, len(text)/3, 2*len(e.IDs)+1024, 4*len(e.IDs))
	}
}
