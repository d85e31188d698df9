package engine

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"math/rand/v2"
	"strconv"
	"strings"
)

// randomRequest makes the request of a seed: mostly what clients send, occasionally what none should.
func randomRequest(seed uint64) (endpoint, body string) {
	g := &requests{rand.New(rand.NewPCG(seed, 4))}
	switch n := g.IntN(10); {
	case n < 5:
		return "/v1/chat/completions", g.chat()
	case n < 7:
		return "/v1/messages", g.messages()
	case n < 9:
		return "/v1/responses", g.responses()
	}
	return "/v1/completions", g.completions()
}

// requests writes JSON with keys in the given order.
type requests struct{ *rand.Rand }

type object []string // alternating keys and values

func (o *object) set(key, value string) { *o = append(*o, key, value) }

func (o object) String() string {
	var b strings.Builder
	b.WriteByte('{')
	for i := 0; i < len(o); i += 2 {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(quote(o[i]) + ":" + o[i+1])
	}
	return b.String() + "}"
}

func quote(s string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s)
	return strings.TrimSpace(b.String())
}

func array(values ...string) string { return "[" + strings.Join(values, ",") + "]" }

func (g *requests) one(of ...string) string { return of[g.IntN(len(of))] }
func (g *requests) in(n int) bool           { return g.IntN(n) == 0 }

// odd returns v, or occasionally a value of another kind.
func (g *requests) odd(v string) string {
	if g.in(60) {
		return g.one("null", "3", "1.5", "true", `""`, `"x"`, "[]", "{}", `["a"]`, `[{"type":"text","text":"t"}]`, `{"a":1}`)
	}
	return v
}

func (g *requests) list(least, most int, one func() string) string {
	values := make([]string, least+g.IntN(most-least+1))
	for i := range values {
		values[i] = one()
	}
	return array(values...)
}

func (g *requests) words() string {
	var b strings.Builder
	for range g.IntN(6) {
		b.WriteString(g.one("Hello", " world", "\n", " ", "  ", "été", "你好", "👍🏽", "\t", "x-anthropic-billing-header: a\n",
			"<|im_start|>", "<|im_end|>",
			"<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>", "</think>", "<think>", "{{ x }}", "\"quoted\"",
			"\\n", "1234567", "\u00a0", "a\r\nb", "<image>", "\u2028"))
	}
	return b.String()
}

func (g *requests) text() string { return quote(g.words()) }

var images = map[[2]int]string{}

func (g *requests) image() string {
	size := [2]int{1 + g.IntN(90), 1 + g.IntN(90)}
	if g.in(4) {
		size = [2]int{28 * (1 + g.IntN(12)), 28 * (1 + g.IntN(12))}
	}
	if images[size] == "" {
		var b bytes.Buffer
		_ = png.Encode(&b, image.NewGray(image.Rect(0, 0, size[0], size[1])))
		images[size] = base64.StdEncoding.EncodeToString(b.Bytes())
	}
	return images[size]
}

func (g *requests) dataURL() string { return quote("data:image/png;base64," + g.image()) }

func (g *requests) part() string {
	switch n := g.IntN(20); {
	case n < 9:
		return object{"type", `"text"`, "text", g.odd(g.text())}.String()
	case n < 14:
		o := object{"type", `"image_url"`, "image_url", object{"url", g.dataURL()}.String()}
		if g.in(4) {
			o = object{"type", `"image_url"`, "image_url", object{"url", g.dataURL(), "detail", g.odd(`"low"`)}.String()}
		}
		if g.in(8) {
			o.set("uuid", g.odd(g.one(fmt.Sprintf(`"u%d"`, g.Uint64()), "null")))
		}
		return o.String()
	case n == 14:
		return g.odd(g.text())
	case n == 15:
		return g.one(object{"image_url", g.dataURL()}.String(), object{"image_url", object{"url", g.dataURL()}.String()}.String(),
			object{"text", g.text()}.String(), "{}")
	case n == 16:
		return object{"type", g.one(`"input_text"`, `"output_text"`), "text", g.text()}.String()
	case n == 17:
		return g.one(object{"type", `"refusal"`, "refusal", g.text()}.String(), object{"type", `"thinking"`, "thinking",
			g.text()}.String(), object{"type", `"thinking"`, "thinking", g.text(), "closed", "true"}.String())
	case n == 18:
		return object{"type", `"input_image"`, "image_url", g.dataURL(), "detail", `"auto"`}.String()
	}
	return g.one(object{"type", `"tool_reference"`, "name", g.text()}.String(), object{"type", `"file"`, "file", "{}"}.String(),
		object{"type", "3"}.String(),
		object{"text", g.text(), "type", `"text"`, "cache_control", `{"type":"ephemeral"}`}.String(),
		object{"type", `"text"`, "text", g.text(), "uuid", `"q"`}.String())
}

func (g *requests) value() string {
	return g.one("1", "1.5", "true", "null", g.text(), `["a",2]`, `{"k":[1,{"z":null}],"ü":"<&>"}`, "1e3", "-0",
		"12345678901234567890", "0.1", "1E-7")
}

func (g *requests) arguments() string {
	args := object{}
	for range g.IntN(3) {
		args.set(g.one("b", "a", "city", "n"), g.value())
	}
	switch g.IntN(12) {
	case 0:
		return args.String()
	case 1:
		return g.one(`""`, `"{"`, "null", `"[1]"`, `"3"`, `"null"`, `" {\"a\": 1} "`, `"{\"a\": NaN}"`)
	}
	return quote(args.String())
}

func (g *requests) toolCall() string {
	fn := object{"name", g.odd(g.one(`"f"`, `"get_weather"`)), "arguments", g.arguments()}
	o := object{"id", g.odd(`"call_1"`), "type", g.odd(`"function"`), "function", fn.String()}
	if g.in(10) {
		o = object{"function", fn.String()}
	}
	if g.in(8) {
		o.set(g.one("index", "extra"), "1")
	}
	return o.String()
}

func (g *requests) schema() string {
	return g.one(`{"type":"object","properties":{"city":{"type":"string","description":"Stadt ü <b>"}},"required":["city"]}`,
		"{}", `{"properties":{}}`, `{"z":1,"a":[1,2.0,1e5],"type":"object"}`)
}

func (g *requests) tool() string {
	fn := object{"name", g.odd(g.one(`"f"`, `"get_weather"`))}
	if !g.in(3) {
		fn.set("description", g.odd(g.text()))
	}
	if !g.in(4) {
		fn.set("parameters", g.odd(g.schema()))
	}
	if g.in(5) {
		fn.set(g.one("strict", "defer_loading", "extra"), g.one("true", "false", "null"))
	}
	if g.in(6) {
		fn = append(fn[2:], fn[:2]...)
	}
	o := object{"type", g.odd(`"function"`), "function", g.odd(fn.String())}
	if g.in(8) {
		o.set(g.one("defer_loading", "cache_control", "strict"), g.one("true", "null"))
	}
	return o.String()
}

func (g *requests) message(i int) string {
	role := g.one("user", "user", "user", "assistant", "assistant", "system", "tool", "developer")
	if i == 0 && !g.in(3) {
		role = g.one("system", "user", "user")
	}
	if g.in(50) {
		role = g.one("function", "critic", "User", "ipython")
	}
	o := object{"role", g.odd(quote(role))}
	content := g.text()
	switch {
	case g.in(3) || role == "user" && g.in(2):
		content = g.list(0, 4, g.part)
	case role == "assistant" && g.in(4):
		content = "null"
	}
	if !g.in(30) || role == "assistant" {
		o.set("content", g.odd(content))
	}
	if g.in(8) {
		o.set("name", g.odd(g.one(`"bob"`, `""`)))
	}
	if role == "tool" && !g.in(6) || g.in(40) {
		o.set("tool_call_id", g.odd(`"call_1"`))
	}
	if role == "assistant" && g.in(3) || g.in(40) {
		o.set("tool_calls", g.odd(g.list(0, 2, g.toolCall)))
	}
	if role == "assistant" && g.in(4) || g.in(40) {
		o.set(g.one("reasoning", "reasoning_content"), g.odd(g.text()))
		if g.in(4) {
			o.set("reasoning_content", g.odd(g.text()))
		}
	}
	if role == "developer" && g.in(3) {
		o.set("tools", g.odd(g.list(0, 2, g.tool)))
	}
	if g.in(12) {
		o.set(g.one("refusal", "audio", "task", "extra", "function_call", "prefix", "thinking", "annotations"),
			g.one("null", `"x"`, "[]", "true"))
	}
	if g.in(15) { // role after content
		o = append(o[2:], o[:2]...)
	}
	return o.String()
}

func (g *requests) templateKwargs() string {
	o := object{}
	for range g.IntN(3) {
		o.set(g.one("enable_thinking", "add_vision_id", "documents", "tools", "continue_final_message", "add_generation_prompt",
			"bos_token", "x", "custom", "tokenize", "reasoning_effort", "messages"), g.one("true", "false", "null", `"auto"`,
			`"low"`, "[]", `[{"title":"a","text":"b"}]`))
	}
	if g.in(12) {
		o.set("chat_template", g.one("null", `"{{ messages|length }}"`))
	}
	return o.String()
}

// shared are fields of several APIs.
func (g *requests) shared(o *object) {
	o.set("model", `"m"`)
	for _, f := range []struct {
		of    int
		key   string
		value func() string
	}{
		{12, "truncate_prompt_tokens", func() string { return g.one("1", "5", "17", "40", "-1", "0", "19999", "20001", "-2") }},
		{30, "truncation_side", func() string { return g.one(`"left"`, `"right"`, `"x"`, "null") }},
		{20, "cache_salt", func() string { return g.one(`"s"`, `""`, "null", `"a@b"`, quote(strings.Repeat("x", 130))) }},
		{14, "mm_processor_kwargs", func() string {
			return g.one("{}", "null", `{"max_pixels":3136}`, `{"min_pixels":50000}`, `{"size":{"shortest_edge":784,"longest_edge":7840}}`,
				`{"unknown":1}`, `{"images_kwargs":{"max_pixels":3136}}`)
		}},
		{20, "max_tokens", func() string { return g.one("1", "0", "16", "20000", "20001", "-1", "null") }},
		{40, "temperature", func() string { return g.one("0", "1", "-1", "3", "null") }},
		{40, "stream", func() string { return g.one("true", "false", "null") }},
		{40, "n", func() string { return g.one("1", "2", "0") }},
		{40, "user", func() string { return g.odd(`"me"`) }},
		{40, "add_special_tokens", func() string { return g.one("true", "false") }},
		{60, "echo", func() string { return g.one("true", "false") }},
		{80, "stream_options", func() string { return `{"include_usage":true}` }},
		{60, "response_format", func() string { return g.one(`{"type":"json_object"}`, `{"type":"text"}`, `{"type":"json_schema"}`) }},
		{60, "top_p", func() string { return g.one("0.5", "1", "0", "2") }},
		{60, "logprobs", func() string { return g.one("true", "false", "5") }},
		{60, "stop", func() string { return g.one(`"x"`, `["a","b"]`, `[]`, "null", `[""]`) }},
		{60, "seed", func() string { return g.one("1", "null") }},
	} {
		if g.in(f.of) {
			o.set(f.key, f.value())
		}
	}
}

func (g *requests) chat() string {
	i := -1
	o := object{"messages", g.odd(g.list(1, 5, func() string { i++; return g.message(i) }))}
	if g.in(3) {
		o.set("tools", g.odd(g.list(0, 2, g.tool)))
		if g.in(3) {
			o.set("tool_choice", g.odd(g.one(`"none"`, `"auto"`, `"required"`, `{"type":"function","function":{"name":"f"}}`, "null", `"any"`)))
		}
	} else if g.in(30) {
		o.set("tool_choice", g.one(`"none"`, `"auto"`, "null"))
	}
	if g.in(10) {
		o.set("add_generation_prompt", g.odd(g.one("true", "false")))
	}
	if g.in(8) {
		o.set("continue_final_message", "true")
		if !g.in(3) {
			o.set("add_generation_prompt", "false")
		}
	}
	if g.in(10) {
		o.set("documents", g.odd(g.one(`[{"title":"a","text":"b"}]`, "[]", "null", `[{"a":1}]`)))
	}
	if g.in(8) {
		o.set("chat_template_kwargs", g.odd(g.templateKwargs()))
	}
	if g.in(12) {
		o.set("reasoning_effort", g.odd(g.one(`"low"`, `"none"`, `"high"`, "null", `"xhigh"`, `"huge"`)))
	}
	if g.in(30) {
		o.set("chat_template", g.one(`"{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}"`, `"{{ x"`, "null",
			`""`, `"{{ tools|tojson }}{{ documents }}{{ messages[0]|tojson }}"`))
	}
	g.shared(&o)
	return o.String()
}

func (g *requests) completions() string {
	ids := func() string {
		return g.list(1, 6, func() string { return strconv.Itoa(g.IntN(150000)) })
	}
	o := object{"prompt", g.odd(g.one(g.text(), g.list(1, 3, g.text), ids(), array(ids(), ids()), array(g.text(), ids()),
		array(g.text(), "null")))}
	if g.in(20) {
		o.set("suffix", g.one(`"x"`, "null", `""`))
	}
	if g.in(40) {
		o.set("prompt_embeds", g.one("null", `"AAAA"`))
	}
	g.shared(&o)
	return o.String()
}

func (g *requests) anthropicBlock() string {
	switch n := g.IntN(16); {
	case n < 6:
		return object{"type", `"text"`, "text", g.odd(g.text())}.String()
	case n < 9:
		source := object{"type", `"base64"`, "media_type", `"image/png"`, "data", quote(g.image())}
		if g.in(3) {
			source = object{"type", `"url"`, "url", g.dataURL()}
		}
		return object{"type", `"image"`, "source", g.odd(source.String())}.String()
	case n == 9:
		return object{"type", `"thinking"`, "thinking", g.odd(g.text()), "signature", `"s"`}.String()
	case n == 10:
		return object{"type", `"redacted_thinking"`, "data", `"x"`}.String()
	case n == 11:
		return object{"type", `"tool_use"`, "id", g.odd(`"t1"`), "name", g.odd(`"f"`), "input",
			g.odd(g.one("{}", `{"city":"Bern ü","n":1.50}`, `{"b":[1,null,true],"a":"<x>"}`))}.String()
	case n < 15:
		o := object{"type", `"tool_result"`, "tool_use_id", g.odd(`"t1"`)}
		if !g.in(5) {
			o.set("content", g.odd(g.one(g.text(), g.list(0, 3, func() string {
				return g.one(object{"type", `"text"`, "text", g.text()}.String(), object{"type", `"image"`, "source",
					object{"type", `"base64"`, "media_type", `"image/png"`, "data", quote(g.image())}.String()}.String(),
					object{"type", `"tool_reference"`, "tool_name", `"f"`}.String())
			}))))
		}
		if g.in(4) {
			o.set("is_error", g.one("true", "false"))
		}
		return o.String()
	}
	return g.one(object{"type", `"document"`, "source", "{}"}.String(), object{"type", `"tool_reference"`, "tool_name",
		`"f"`}.String(), object{"type", `"search_result"`, "content", "[]"}.String(),
		object{"type", `"text"`, "text", g.text(), "cache_control", `{"type":"ephemeral"}`}.String())
}

func (g *requests) messages() string {
	o := object{"max_tokens", g.odd(g.one("1", "16", "0", "20001"))}
	o.set("messages", g.odd(g.list(1, 5, func() string {
		content := g.text()
		if !g.in(3) {
			content = g.list(0, 4, g.anthropicBlock)
		}
		return object{"role", g.odd(quote(g.one("user", "user", "user", "assistant", "assistant", "system"))), "content", g.odd(content)}.String()
	})))
	if g.in(3) {
		o.set("system", g.odd(g.one(g.text(), g.list(0, 3, func() string { return object{"type", `"text"`, "text", g.text()}.String() }))))
	}
	if g.in(3) {
		o.set("tools", g.odd(g.list(0, 2, func() string {
			t := object{"name", g.odd(`"f"`)}
			if !g.in(3) {
				t.set("description", g.odd(g.text()))
			}
			t.set("input_schema", g.odd(g.schema()))
			if g.in(6) {
				t.set(g.one("type", "cache_control", "strict", "defer_loading"), g.one(`"custom"`, "null", "true", "{}"))
			}
			return t.String()
		})))
		if g.in(3) {
			o.set("tool_choice", g.odd(g.one(`{"type":"auto"}`, `{"type":"any"}`, `{"type":"none"}`, `{"type":"tool","name":"f"}`,
				`{"type":"tool"}`)))
		}
	}
	if g.in(8) {
		o.set("thinking", g.odd(g.one(`{"type":"enabled","budget_tokens":2048}`, `{"type":"enabled","budget_tokens":10}`,
			`{"type":"disabled"}`, `{"type":"adaptive"}`)))
	}
	if g.in(10) {
		o.set("output_config", g.odd(g.one(`{"effort":"low"}`, `{"effort":"high"}`, `{"effort":"x"}`, `{}`,
			`{"format":{"type":"json_schema","schema":{}}}`)))
	}
	if g.in(10) {
		o.set("chat_template_kwargs", g.odd(g.templateKwargs()))
	}
	g.shared(&o)
	return o.String()
}

func (g *requests) inputItem() string {
	o := object{}
	switch n := g.IntN(14); {
	case n < 6:
		content := g.text()
		if g.in(2) {
			content = g.list(0, 3, func() string {
				return g.one(object{"type", `"input_text"`, "text", g.odd(g.text())}.String(), object{"type", `"input_image"`,
					"image_url", g.dataURL(), "detail", `"auto"`}.String(), object{"type", `"input_image"`, "image_url", g.dataURL()}.String())
			})
		}
		o = object{"role", g.odd(quote(g.one("user", "user", "system", "developer", "assistant"))), "content", g.odd(content)}
		if g.in(2) {
			o.set("type", g.odd(`"message"`))
		}
	case n < 9:
		o = object{"type", `"message"`, "id", `"m1"`, "role", `"assistant"`, "status",
			g.odd(g.one(`"completed"`, `"completed"`, `"in_progress"`, `"incomplete"`)),
			"content", g.odd(g.list(0, 2, func() string { return object{"type", `"output_text"`, "text", g.text(), "annotations", "[]"}.String() }))}
	case n < 11:
		o = object{"type", `"function_call"`, "call_id", g.odd(`"c1"`), "name", g.odd(`"f"`), "arguments", g.arguments()}
		if g.in(3) {
			o.set("id", `"fc1"`)
		}
	case n < 13:
		o = object{"type", `"function_call_output"`, "call_id", g.odd(`"c1"`), "output",
			g.odd(g.one(g.text(), array(object{"type", `"input_text"`, "text", g.text()}.String())))}
	default:
		o = object{"type", `"reasoning"`, "id", `"r1"`, "summary",
			g.one("[]", array(object{"type", `"summary_text"`, "text", g.text()}.String()))}
		if g.in(2) {
			o.set("content", array(object{"type", `"reasoning_text"`, "text", g.text()}.String()))
		}
	}
	return o.String()
}

func (g *requests) responses() string {
	o := object{"input", g.odd(g.one(g.text(), g.list(1, 5, g.inputItem), g.list(1, 5, g.inputItem), g.list(1, 5, g.inputItem)))}
	if g.in(3) {
		o.set("instructions", g.odd(g.text()))
	}
	if g.in(3) {
		o.set("tools", g.odd(g.list(0, 2, func() string {
			t := object{"type", g.odd(`"function"`), "name", g.odd(`"f"`), "parameters", g.odd(g.schema())}
			if !g.in(3) {
				t.set("description", g.odd(g.text()))
			}
			if g.in(2) {
				t.set("strict", g.one("true", "false", "null"))
			}
			return t.String()
		})))
		if g.in(3) {
			o.set("tool_choice", g.odd(g.one(`"none"`, `"auto"`, `"required"`, `{"type":"function","name":"f"}`)))
		}
	}
	if g.in(8) {
		o.set("reasoning", g.odd(g.one(`{"effort":"low"}`, `{"effort":"none"}`, `{}`, `{"effort":"medium","summary":"auto"}`)))
	}
	if g.in(10) {
		o.set("chat_template_kwargs", g.odd(g.templateKwargs()))
	}
	if g.in(10) {
		o.set("truncation", g.one(`"auto"`, `"disabled"`, "null"))
	}
	if g.in(20) {
		o.set("max_output_tokens", g.one("1", "16", "20001", "0"))
	}
	g.shared(&o)
	return o.String()
}
