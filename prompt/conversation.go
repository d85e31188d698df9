package prompt

import (
	"maps"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/prompt/template"
	"github.com/sightline-router/sightline/prompt/vision"
)

// The message forms of vLLM (0.32, renderers/chat_utils.py and renderers/hf.py).

// vllm lays out turns for the template t.
func (r *reader) vllm(turns []turn, t *chatTemplate) ([]template.Value, error) {
	list, err := r.layOut(turns, r.messageVLLM)
	developer := func(t turn) bool { return t.role == "developer" }
	if err == nil && slices.ContainsFunc(turns, developer) && !t.Mentions(`"developer"`) && !t.Mentions(`'developer'`) {
		list = systemFirst(list)
	}
	return list, err
}

func (r *reader) messageVLLM(t *turn) (template.Value, error) {
	d := template.NewDict(4)
	d.Set("role", template.String(t.role))
	if t.role == "system" {
		t.items = withoutBilling(t.items)
	}
	switch {
	case !r.openai:
		text, err := r.oneString(t.items)
		if err != nil {
			return template.None, err
		}
		d.Set("content", template.String(text))
	case t.role == "tool" && onlyText(t.items):
		texts := make([]string, len(t.items))
		for i, it := range t.items {
			texts[i] = it.text
		}
		d.Set("content", template.String(strings.Join(texts, "\n")))
	default:
		d.Set("content", r.parts(t.items))
	}
	if len(t.calls) > 0 {
		calls, err := callsVLLM(t.calls)
		if err != nil {
			return template.None, err
		}
		d.Set("tool_calls", calls)
	}
	for _, f := range t.fields {
		d.Set(f.name, f.value)
	}
	if m := t.message; m != nil {
		switch t.role {
		case "assistant":
			v := m.Fields["reasoning"]
			if v.Type == gjson.Null {
				v = m.Fields["reasoning_content"]
			}
			if v.Type != gjson.Null {
				reasoning, err := readValue(r.body, v, "reasoning cannot be read")
				if err != nil {
					return template.None, err
				}
				d.Set("reasoning", reasoning)
				d.Set("reasoning_content", reasoning)
			}
		case "tool":
			if v, ok := m.Fields["tool_call_id"]; ok {
				id, err := readValue(r.body, v, "tool_call_id cannot be read")
				if err != nil {
					return template.None, err
				}
				d.Set("tool_call_id", id)
			}
		}
		for _, key := range []string{"name", "task"} {
			if text, ok := r.text(m, key); ok {
				d.Set(key, template.String(text))
			}
		}
		if t.role == "developer" {
			tools := template.None
			if raw, ok := m.Fields["tools"]; ok && raw.Type != gjson.Null {
				var err error
				if tools, err = readValue(r.body, raw, "tools of a message cannot be read"); err != nil {
					return template.None, err
				}
				if lenientFields(m) > 0 {
					tools, _ = eachOf(tools.Items(), func(v template.Value) (template.Value, error) {
						return ordered(v, "function", []string{"name", "description", "parameters", "strict"}, "function", "type"), nil
					})
				}
			}
			d.Set("tools", tools)
		}
	}
	return d.Value(), nil
}

func onlyText(items []item) bool {
	return !slices.ContainsFunc(items, func(it item) bool { return it.medium != nil || it.part.Kind() != template.KindInvalid })
}

// withoutBilling drops a coding client's attribution line, which changes with every request, from system texts.
func withoutBilling(items []item) []item {
	if !slices.ContainsFunc(items, isBilling) {
		return items
	}
	var out []item
	for _, it := range items {
		if isBilling(it) {
			if _, it.text, _ = strings.Cut(it.text, "\n"); it.text == "" {
				continue
			}
		}
		out = append(out, it)
	}
	return out
}

func isBilling(it item) bool {
	return it.medium == nil && !it.kept && strings.HasPrefix(it.text, "x-anthropic-billing-header")
}

// oneString gives a message as one string. Placeholders are numbered over the whole request.
func (r *reader) oneString(items []item) (string, error) {
	if len(items) == 1 && items[0].medium == nil {
		return items[0].text, nil
	}
	var texts, placeholders []string
	for _, it := range items {
		if it.medium == nil {
			if it.text != "" {
				texts = append(texts, it.text)
			}
			continue
		}
		if p, ok := r.m.placeholder(it.medium.Modality, r.take(it.medium)); ok {
			placeholders = append(placeholders, p)
			if r.m.opt.Interleave {
				texts = append(texts, p)
			}
		}
	}
	return join(texts, placeholders)
}

// join puts a string content together: placeholders that stand there already, typed or interleaved, stay; the missing
// ones stand in front, one a line.
func join(texts, placeholders []string) (string, error) {
	text := strings.Join(texts, "\n")
	lines, more := missing(text, placeholders)
	if more {
		return "", refuse(400, "more placeholders typed than media given")
	}
	if text != "" {
		lines = append(lines, text)
	}
	return strings.Join(lines, "\n"), nil
}

// missing gives the placeholders that a text does not hold yet, equal ones together, and whether it holds too many.
func missing(text string, placeholders []string) (lines []string, more bool) {
	want := make(map[string]int, 1)
	for _, p := range placeholders {
		want[p]++
	}
	typed := vision.CountEach(text, slices.Collect(maps.Keys(want)))
	for _, p := range placeholders {
		n := want[p] - typed[p]
		more = more || n < 0
		for range n {
			lines = append(lines, p)
		}
		want[p], typed[p] = 0, 0
	}
	return lines, more
}

// callsVLLM makes objects of the calls' arguments; what is no object becomes an empty one.
func callsVLLM(calls []template.Value) (template.Value, error) {
	return eachOf(calls, func(call template.Value) (template.Value, error) {
		fn := call.Field("function")
		if kind, typed := call.Get("type"); fn.Dict() == nil || typed && kind.Text() != "function" {
			return template.None, refuse(400, "tool call without a function")
		}
		args := fn.Field("arguments")
		if args.IsString() {
			text := args.Text()
			var err error
			if args, err = template.FromJSON(text); err != nil && template.OnlyPython(text) {
				return template.None, ErrPython
			}
		}
		if args.Dict() == nil {
			args = template.NewDict(0).Value()
		}
		return with(call, field{"function", with(fn, field{"arguments", args})}), nil
	})
}

// orderedCall is a tool call as vLLM's request types give it out.
func orderedCall(call template.Value) template.Value {
	return ordered(call, "function", []string{"arguments", "name"}, "id", "function", "type")
}

// ordered is a dict with the keys that its type has in front, in the type's order; so is the dict in it under the key inner.
func ordered(v template.Value, inner string, innerKeys []string, keys ...string) template.Value {
	if v.Dict() == nil {
		return v
	}
	d := template.NewDict(v.Dict().Len())
	for _, key := range keys {
		if e, ok := v.Get(key); ok {
			if key == inner {
				e = ordered(e, "", nil, innerKeys...)
			}
			d.Set(key, e)
		}
	}
	for _, e := range v.Dict().Entries() {
		if key := e.Key.Text(); !slices.Contains(keys, key) {
			d.Set(key, e.Value)
		}
	}
	return d.Value()
}

// eachOf is the list of what f makes of each item.
func eachOf(items []template.Value, f func(template.Value) (template.Value, error)) (template.Value, error) {
	out := make([]template.Value, len(items))
	for i, v := range items {
		var err error
		if out[i], err = f(v); err != nil {
			return template.None, err
		}
	}
	return template.NewList(out...), nil
}

// systemFirst makes developer messages system ones, for a template that does not know that role; where a system message
// would then stand elsewhere than in front, all of them become one there.
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
