package sglang

import (
	"errors"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/prompt/template"
)

// This file builds the messages and tools that the template sees, as SGLang does (0.5.23, entrypoints/openai/serving_chat.py and
// parser/jinja_template_utils.py).

// part reads one content part. Only OpenAI's forms are accepted. ok is false if templates do not get the part.
func part(r *prompt.Reader, p *body.Part) (it prompt.Item, ok bool, err error) {
	switch p.Type {
	case "text":
		it.Text, err = r.String(p.Fields["text"], "text part without valid text")
	case "thinking", "reasoning":
		return it, false, nil
	case "tool_reference":
		name, err := r.String(p.Fields["name"], "tool_reference without a name")
		return prompt.Item{Part: prompt.ToolReference(name)}, true, err
	default:
		it.Medium, err = prompt.OpenAIMediaPart(p)
	}
	return it, true, err
}

// messages converts turns to the template's messages.
func messages(r *prompt.Reader, turns []prompt.Turn, goOn bool) (list []template.Value, tail string, err error) {
	if resultsMove(r, turns) {
		return nil, "", prompt.ErrPart
	}
	turns, tail = lastTurn(r, turns, goOn)
	list, err = r.EachTurn(turns, message)
	return list, tail, err
}

// lastTurn handles an assistant message at the end: if it is continued, its text is appended to the rendered prompt; otherwise it
// becomes a user message.
func lastTurn(r *prompt.Reader, turns []prompt.Turn, goOn bool) ([]prompt.Turn, string) {
	last := &turns[len(turns)-1]
	text, ok := last.SingleText()
	switch {
	case last.Kind == body.None:
		text, ok = "", true
	case last.Kind == body.List && !r.OpenAI:
		text, ok = spaced(last.Items), true
	}
	if !strings.EqualFold(last.Role, "assistant") || !ok {
		return turns, ""
	}
	if goOn {
		return turns[:len(turns)-1], text
	}
	*last = prompt.TextTurn("user", text)
	return turns, ""
}

// resultsMove reports whether SGLang may put the results of an assistant's calls into the calls' order, as it does where one has media and
// the template tells results apart by tool_call_id (_canonicalize_tool_message_order). The template's text alone does not say that it does.
func resultsMove(r *prompt.Reader, turns []prompt.Turn) bool {
	isMedium := func(it prompt.Item) bool { return it.Medium != nil }
	hasMedia := func(t prompt.Turn) bool { return slices.ContainsFunc(t.Items, isMedium) }
	if !r.Mentions("tool_call_id") || !slices.ContainsFunc(turns, hasMedia) {
		return false
	}
	calls := map[string]int{} // the place of each call of the last assistant, from 1
	last, moved, media := 0, false, false
	for i := range turns {
		t := &turns[i]
		switch strings.ToLower(t.Role) {
		case "assistant":
			clear(calls)
			for _, call := range t.Message.Fields["tool_calls"].Array() {
				calls[body.Last(call, "id").String()] = len(calls) + 1
			}
			last, moved, media = 0, false, false
		case "tool", "function":
			at := calls[t.Message.Fields["tool_call_id"].String()]
			moved, media, last = moved || at < last, media || slices.ContainsFunc(t.Items, isMedium), at
			if moved && media {
				return true
			}
		default:
			clear(calls)
		}
	}
	return false
}

func message(r *prompt.Reader, t *prompt.Turn) (template.Value, error) {
	d := template.NewDict(4)
	role := t.Role
	if role != "user" {
		role = strings.ToLower(role)
	}
	switch role {
	case "user":
		if t.Kind == body.None {
			return template.None, prompt.Refuse("user message without content")
		}
	case "system", "assistant", "tool", "function", "developer", "latest_reminder", "root":
	default:
		return template.None, prompt.Refuse("message of an unknown role")
	}
	content := template.String("")
	if text, ok := t.SingleText(); ok {
		content = template.String(text)
	} else if t.Kind == body.List {
		if !r.OpenAI || role == "tool" && prompt.OnlyText(t.Items) { // SGLang drops media here
			content = template.String(spaced(t.Items))
		} else {
			content = r.Parts(t.Items)
		}
	}
	d.Set("role", template.String(role))
	if t.Kind != body.List || !r.OpenAI { // otherwise SGLang rebuilds the message with content last
		d.Set("content", content)
	}
	if err := fields(r, d, t, role); err != nil {
		return template.None, err
	}
	d.Set("content", content)
	return d.Value(), nil
}

// spaced joins texts, also empty ones, with spaces.
func spaced(items []prompt.Item) string {
	var texts []string
	for _, it := range items {
		if it.Medium == nil && it.Part.Kind() == template.KindInvalid {
			texts = append(texts, it.Text)
		}
	}
	return strings.Join(texts, " ")
}

func fields(r *prompt.Reader, d *template.Dict, t *prompt.Turn, role string) error {
	m := t.Message
	if m == nil || role == "user" {
		return nil
	}
	for _, key := range []string{"tool_call_id", "name", "phase", "reasoning_content"} {
		if text, ok := r.Body.String(m.Fields[key]); ok {
			d.Set(key, template.String(text))
		}
	}
	if raw := m.Fields["tool_calls"]; raw.Type != gjson.Null {
		calls, err := prompt.List(r.Body, raw, "tool_calls is not a list")
		if err == nil {
			calls, err = prompt.EachOf(calls.Items(), func(call template.Value) (template.Value, error) {
				return toolCall(call, role == "assistant")
			})
		}
		if err != nil {
			return err
		}
		d.Set("tool_calls", calls)
	}
	if raw := m.Fields["tools"]; raw.Type != gjson.Null {
		list, err := prompt.List(r.Body, raw, "tools of a message is not a list")
		if err == nil {
			list, err = tools(list, gjson.Result{})
		}
		if err != nil {
			return err
		}
		if list.IsNone() {
			list = template.NewList()
		}
		d.Set("tools", list)
	}
	switch v := m.Fields["prefix"]; {
	case v.IsBool():
		d.Set("prefix", template.Bool(v.Bool()))
	case v.Type != gjson.Null:
		return prompt.ErrField // pydantic takes 1, "yes" and others for booleans
	}
	return nil
}

// toolCall returns a tool call as the request type dumps it, an assistant's with its arguments as an object. orjson reads them, which
// refuses NaN.
func toolCall(call template.Value, assistant bool) (template.Value, error) {
	fn := call.Field("function")
	if call.Dict() == nil || fn.Dict() == nil {
		return template.None, prompt.Refuse("tool call without a function")
	}
	args := fn.Field("arguments")
	if args.IsString() && assistant {
		var err error
		args, err = template.FromJSON(args.Text())
		if errors.Is(err, template.ErrLimit) {
			return template.None, prompt.ErrTemplateLimit
		}
		if err != nil || args.Dict() == nil {
			return template.None, prompt.Refuse("a tool call's arguments are not a JSON object")
		}
	}
	index := call.Field("index")
	if !index.IsNone() && index.Kind() != template.KindInt {
		return template.None, prompt.ErrField // as prefix
	}
	f := template.NewDict(2).Set("name", fn.Field("name")).Set("arguments", args)
	d := template.NewDict(4).Set("id", call.Field("id")).Set("index", index)
	return d.Set("type", prompt.FunctionType()).Set("function", f.Value()).Value(), nil
}

// tools returns tools as SGLang 0.5.23 dumps them: a function's keys in the client's order, then the missing ones as null, and
// defer_loading beside the function.
func tools(list template.Value, choice gjson.Result) (template.Value, error) {
	if choice.Type == gjson.String && choice.String() == "none" {
		return template.None, nil
	}
	var out []template.Value
	for _, tool := range list.Items() {
		fn := tool.Field("function")
		name := fn.Field("name")
		if !name.IsString() {
			return template.None, prompt.Refuse("tool without a function that has a name")
		}
		if choice.IsObject() && body.Last(body.Last(choice, "function"), "name").String() != name.Text() {
			continue
		}
		deferred := tool.Field("defer_loading")
		if !flag(deferred) || !standard(fn.Field("parameters")) {
			return template.None, prompt.ErrField
		}
		f := template.NewDict(5)
		for _, e := range fn.Dict().Entries() {
			switch e.Key.Text() {
			case "strict", "defer_loading":
				v := e.Value
				if v.IsNone() && e.Key.Text() == "defer_loading" {
					v = deferred
				}
				if !flag(v) {
					return template.None, prompt.ErrField
				}
				if !v.IsNone() {
					f.Set(e.Key.Text(), v)
				}
			case "description", "name", "parameters":
				f.Set(e.Key.Text(), e.Value)
			}
		}
		for _, key := range []string{"description", "parameters"} {
			if _, ok := f.Get(key); !ok {
				f.Set(key, template.None)
			}
		}
		kind, ok := tool.Get("type")
		if !ok {
			kind = prompt.FunctionType()
		}
		if _, has := f.Get("defer_loading"); !has && !deferred.IsNone() {
			f.Set("defer_loading", deferred)
		}
		out = append(out, template.NewDict(3).Set("type", kind).Set("function", f.Value()).Set("defer_loading", deferred).Value())
	}
	if len(out) == 0 {
		return template.None, nil
	}
	return template.NewList(out...), nil
}

// flag reports whether a value is one of JSON's booleans or null. pydantic takes more.
func flag(v template.Value) bool { return v.IsNone() || v.Kind() == template.KindBool }

var (
	standardTypes = []string{"null", "boolean", "object", "array", "number", "string", "integer"}
	schemasByName = []string{"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
	schemas       = []string{"anyOf", "oneOf", "allOf", "prefixItems", "items", "additionalProperties", "not", "if", "then", "else",
		"contains", "propertyNames", "unevaluatedItems", "unevaluatedProperties"}
)

// standard reports whether all types that a tool's schema names are JSON Schema's. SGLang rewrites others, such as int or varchar(9),
// before a template sees them (normalize_json_schema_types in function_call/utils.py), which is not done here.
func standard(schema template.Value) bool {
	other := func(v template.Value) bool { return !standard(v) }
	if slices.ContainsFunc(schema.Items(), other) {
		return false
	}
	if schema.Dict() == nil {
		return true
	}
	for _, e := range schema.Dict().Entries() {
		switch key := e.Key.Text(); {
		case key == "type":
			names := e.Value.Items()
			if e.Value.IsString() {
				names = []template.Value{e.Value}
			}
			if len(names) > len(standardTypes) {
				return false
			}
			for i, name := range names {
				same := func(v template.Value) bool { return v.Text() == name.Text() }
				if !slices.Contains(standardTypes, name.Text()) || slices.ContainsFunc(names[:i], same) {
					return false
				}
			}
		case slices.Contains(schemasByName, key) && e.Value.Dict() != nil:
			if slices.ContainsFunc(e.Value.Dict().Entries(), func(e template.Entry) bool { return other(e.Value) }) {
				return false
			}
		case slices.Contains(schemas, key) && other(e.Value):
			return false
		}
	}
	return true
}
