package prompt

import (
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/template"
)

// The message forms of SGLang (0.5.23, entrypoints/openai/serving_chat.py and parser/jinja_template_utils.py).

// lastTurnSGLang treats an assistant message at the end: continued, its text goes behind the rendered prompt; else it
// becomes a user message.
func lastTurnSGLang(turns []turn, goOn bool) ([]turn, string) {
	last := &turns[len(turns)-1]
	text, ok := last.prose()
	if last.kind == body.None {
		text, ok = "", true
	}
	if last.role != "assistant" || !ok {
		return turns, ""
	}
	if goOn {
		return turns[:len(turns)-1], text
	}
	*last = textTurn("user", text)
	return turns, ""
}

func (r *reader) messageSGLang(t *turn) (template.Value, error) {
	d := template.NewDict(4)
	role := t.role
	if role != "user" {
		role = strings.ToLower(role)
	}
	switch role {
	case "user":
		if t.kind == body.None {
			return template.None, refuse(400, "user message without content")
		}
	case "system", "assistant", "tool", "function", "developer", "latest_reminder", "root":
	default:
		return template.None, refuse(400, "message of an unknown role")
	}
	content := template.String("")
	if text, ok := t.prose(); ok {
		content = template.String(text)
	} else if t.kind == body.List {
		if !r.openai || role == "tool" && onlyText(t.items) { // media are dropped here
			content = template.String(spaced(t.items))
		} else {
			content = r.parts(t.items)
		}
	}
	d.Set("role", template.String(role))
	if t.kind != body.List || !r.openai { // else the message is put together anew, content last
		d.Set("content", content)
	}
	if err := r.fieldsSGLang(d, t, role); err != nil {
		return template.None, err
	}
	d.Set("content", content)
	return d.Value(), nil
}

// spaced joins texts by blanks, empty ones too.
func spaced(items []item) string {
	var texts []string
	for _, it := range items {
		if it.medium == nil && it.part.Kind() == template.KindInvalid {
			texts = append(texts, it.text)
		}
	}
	return strings.Join(texts, " ")
}

func (r *reader) fieldsSGLang(d *template.Dict, t *turn, role string) error {
	m := t.message
	if m == nil || role == "user" {
		return nil
	}
	for _, key := range []string{"tool_call_id", "name", "phase", "reasoning_content"} {
		if text, ok := r.text(m, key); ok {
			d.Set(key, template.String(text))
		}
	}
	if raw := m.Fields["tool_calls"]; raw.Type != gjson.Null {
		calls, err := readList(r.body, raw, "tool_calls is no list")
		if err == nil {
			calls, err = eachOf(calls.Items(), callSGLang)
		}
		if err != nil {
			return err
		}
		d.Set("tool_calls", calls)
	}
	if raw := m.Fields["tools"]; raw.Type != gjson.Null {
		tools, err := readList(r.body, raw, "tools of a message is no list")
		if err == nil {
			tools, err = toolsSGLang(tools, gjson.Result{})
		}
		if err != nil {
			return err
		}
		if tools.IsNone() {
			tools = template.NewList()
		}
		d.Set("tools", tools)
	}
	if v := m.Fields["prefix"]; v.IsBool() {
		d.Set("prefix", template.Bool(v.Bool()))
	}
	return nil
}

// callSGLang is a tool call as the request type dumps it, with its arguments as an object.
func callSGLang(call template.Value) (template.Value, error) {
	fn := call.Field("function")
	if call.Dict() == nil || fn.Dict() == nil {
		return template.None, refuse(400, "tool call without a function")
	}
	args := fn.Field("arguments")
	if args.IsString() {
		var err error
		if args, err = template.FromJSON(args.Text()); err != nil || args.Dict() == nil {
			return template.None, refuse(400, "a tool call's arguments are no JSON object")
		}
	}
	f := template.NewDict(2).Set("name", fn.Field("name")).Set("arguments", args)
	return template.NewDict(4).Set("id", call.Field("id")).Set("index", call.Field("index")).Set("type", functionType()).Set("function", f.Value()).Value(), nil
}
