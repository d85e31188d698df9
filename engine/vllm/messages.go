package vllm

import (
	"maps"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/prompt/template"
	"github.com/sightline-router/sightline/prompt/vision"
)

// This file builds the messages that the template sees, as vLLM does (0.32, renderers/chat_utils.py and renderers/hf.py).

// messagesWithoutBilling drops a coding client's attribution line from system turns first, as vLLM does since 0.32.
func messagesWithoutBilling(r *prompt.Reader, turns []prompt.Turn, goOn bool) ([]template.Value, string, error) {
	turns = slices.Clone(turns)
	for i := range turns {
		if turns[i].Role == "system" {
			turns[i].Items = withoutBilling(turns[i].Items)
		}
	}
	return messages(r, turns, goOn)
}

// messages converts turns to the template's messages.
func messages(r *prompt.Reader, turns []prompt.Turn, _ bool) ([]template.Value, string, error) {
	list, err := r.EachTurn(turns, message)
	developer := slices.ContainsFunc(turns, func(t prompt.Turn) bool { return t.Role == "developer" })
	if err == nil && developer && !r.Mentions(`"developer"`) && !r.Mentions(`'developer'`) {
		list = systemFirst(list)
	}
	return list, "", err
}

func message(r *prompt.Reader, t *prompt.Turn) (template.Value, error) {
	d := template.NewDict(4)
	d.Set("role", template.String(t.Role))
	d.Set("content", content(r, t))
	calls, err := r.ToolCalls(t, arguments)
	if err != nil {
		return template.None, err
	}
	if !calls.IsNone() {
		d.Set("tool_calls", calls)
	}
	for _, f := range t.Fields {
		d.Set(f.Name, f.Value)
	}
	if t.Message != nil {
		if err := fields(r, t, d); err != nil {
			return template.None, err
		}
	}
	return d.Value(), nil
}

// content returns a message's content in the form that the template expects.
func content(r *prompt.Reader, t *prompt.Turn) template.Value {
	items := t.Items
	switch {
	case !r.OpenAI:
		return template.String(oneString(r, items))
	case t.Role == "tool" && prompt.OnlyText(items):
		texts := make([]string, len(items))
		for i, it := range items {
			texts[i] = it.Text
		}
		return template.String(strings.Join(texts, "\n"))
	}
	return r.Parts(items)
}

// fields sets the other fields of a role's message that the template sees.
func fields(r *prompt.Reader, t *prompt.Turn, d *template.Dict) error {
	m := t.Message
	switch t.Role {
	case "assistant":
		v := m.Fields["reasoning"]
		if v.Type == gjson.Null {
			v = m.Fields["reasoning_content"]
		}
		if v.Type != gjson.Null {
			reasoning, err := prompt.Value(r.Body, v, "reasoning cannot be read")
			if err != nil {
				return err
			}
			d.Set("reasoning", reasoning)
			d.Set("reasoning_content", reasoning)
		}
	case "tool":
		if v, ok := m.Fields["tool_call_id"]; ok {
			id, err := prompt.Value(r.Body, v, "tool_call_id cannot be read")
			if err != nil {
				return err
			}
			d.Set("tool_call_id", id)
		}
	}
	for _, key := range []string{"name", "task"} {
		if text, ok := r.Body.String(m.Fields[key]); ok {
			d.Set(key, template.String(text))
		}
	}
	if t.Role == "developer" {
		tools, err := developerTools(r, m.Fields["tools"])
		if err != nil {
			return err
		}
		d.Set("tools", tools)
	}
	return nil
}

// developerTools returns the tools in a developer's message. If vLLM's own message type accepts every one of them, they get that
// type's field order; otherwise OpenAI's type is used, which leaves them as they are.
func developerTools(r *prompt.Reader, raw gjson.Result) (template.Value, error) {
	if raw.Type == gjson.Null {
		return template.None, nil
	}
	tools, err := prompt.Value(r.Body, raw, "tools of a message cannot be read")
	if err != nil {
		return template.None, err
	}
	typed := tools.Kind() == template.KindList
	raw.ForEach(func(_, v gjson.Result) bool { typed = typed && isTool(v); return typed })
	if !typed {
		return tools, nil
	}
	return prompt.EachOf(tools.Items(), func(v template.Value) (template.Value, error) {
		return prompt.Ordered(v, "function", []string{"name", "description", "parameters", "strict"}, "function", "type"), nil
	})
}

// isTool reports whether vLLM's message type accepts a tool.
func isTool(v gjson.Result) bool {
	f := body.Last(v, "function")
	about, parameters, strict := body.Last(f, "description"), body.Last(f, "parameters"), body.Last(f, "strict")
	return body.Last(v, "type").String() == "function" && body.Last(f, "name").Type == gjson.String &&
		(!about.Exists() || about.Type == gjson.String) && (!parameters.Exists() || parameters.IsObject()) &&
		(strict.Type == gjson.Null || strict.IsBool())
}

// withoutBilling drops a coding client's attribution line from system texts, because it changes with every request.
func withoutBilling(items []prompt.Item) []prompt.Item {
	if !slices.ContainsFunc(items, isBilling) {
		return items
	}
	var out []prompt.Item
	for _, it := range items {
		if isBilling(it) {
			_, it.Text, _ = strings.Cut(it.Text, "\n")
			if it.Text == "" {
				continue
			}
		}
		out = append(out, it)
	}
	return out
}

func isBilling(it prompt.Item) bool {
	return it.Medium == nil && !it.Kept && strings.HasPrefix(it.Text, "x-anthropic-billing-header")
}

// oneString returns a message's content as one string. Placeholders are numbered over the whole request.
func oneString(r *prompt.Reader, items []prompt.Item) string {
	if len(items) == 1 && items[0].Medium == nil {
		return items[0].Text
	}
	var texts, placeholders []string
	for _, it := range items {
		if it.Medium == nil {
			if it.Text != "" {
				texts = append(texts, it.Text)
			}
			continue
		}
		if p, ok := r.Placeholder(it.Medium.Modality, r.Take(it.Medium)); ok {
			placeholders = append(placeholders, p)
			if r.Options().Interleave {
				texts = append(texts, p)
			}
		}
	}
	return join(texts, placeholders)
}

// join builds a string content. Placeholders already in the texts, typed or interleaved, stay; the missing ones are put in front,
// one per line, equal ones together.
func join(texts, placeholders []string) string {
	text := strings.Join(texts, "\n")
	want := make(map[string]int, 1)
	for _, p := range placeholders {
		want[p]++
	}
	typed := vision.CountEach(text, slices.Collect(maps.Keys(want)))
	var lines []string
	for _, p := range placeholders {
		for range want[p] - typed[p] {
			lines = append(lines, p)
		}
		want[p], typed[p] = 0, 0
	}
	if text != "" {
		lines = append(lines, text)
	}
	return strings.Join(lines, "\n")
}

// arguments converts a call's arguments to an object; anything that is not an object becomes an empty one.
func arguments(args template.Value) (template.Value, error) {
	if args.IsString() {
		text := args.Text()
		var err error
		args, err = template.FromJSON(text)
		err = prompt.Unread(text, err)
		if err != nil {
			return template.None, err
		}
	}
	if args.Dict() == nil {
		return template.NewDict(0).Value(), nil
	}
	return args, nil
}

// systemFirst turns developer messages into system messages, for a template that does not know that role. If a system message would
// then come after another role, all of them are merged into one at the front.
func systemFirst(list []template.Value) []template.Value {
	out := make([]template.Value, len(list))
	var texts []string
	var rest []template.Value
	merge := false
	for i, m := range list {
		role := m.Field("role")
		if role.Text() == "developer" {
			d := template.NewDict(m.Dict().Len())
			for _, e := range m.Dict().Entries() {
				if key := e.Key.Text(); key != "tools" {
					d.Set(key, e.Value)
				}
			}
			d.Set("role", template.String("system"))
			m = d.Value()
		} else if role.Text() != "system" {
			out[i], rest = m, append(rest, m)
			continue
		}
		out[i] = m
		merge = merge || i > 0
		content := m.Field("content")
		text := content.Text()
		if !content.IsString() {
			var lines []string
			for _, p := range content.Items() {
				if t, ok := p.Get("text"); ok {
					lines = append(lines, t.Text())
				}
			}
			text = strings.Join(lines, "\n")
		}
		if text != "" {
			texts = append(texts, text)
		}
	}
	if !merge {
		return out
	}
	d := template.NewDict(2).Set("role", template.String("system")).Set("content", template.String(strings.Join(texts, "\n\n")))
	return append([]template.Value{d.Value()}, rest...)
}
