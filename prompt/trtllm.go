package prompt

import (
	"slices"
	"strings"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/template"
	"github.com/sightline-router/sightline/prompt/vision"
)

// The message forms of TensorRT-LLM (1.3, serve/chat_utils.py and inputs/utils.py). Read in its source; no recording of a
// running server stands behind them.

func (r *reader) messageTRTLLM(t *turn) (template.Value, error) {
	d := template.NewDict(4)
	d.Set("role", template.String(t.role))
	items := t.items
	if t.kind == body.List {
		items = slices.DeleteFunc(slices.Clone(items), func(it item) bool { return it.medium == nil && it.text == "" })
	}
	switch {
	case onlyText(items):
		d.Set("content", template.String(joined(items, "\n")))
	case r.openai:
		d.Set("content", r.parts(items))
	default:
		d.Set("content", template.String(r.stringTRTLLM(items)))
	}
	m := t.message
	if m == nil {
		return d.Value(), nil
	}
	switch t.role {
	case "assistant":
		text, ok := r.text(m, "reasoning")
		if !ok {
			text, ok = r.text(m, "reasoning_content")
		}
		if ok {
			d.Set("reasoning_content", template.String(text))
		}
		if len(t.calls) > 0 {
			calls, err := callsTRTLLM(t.calls)
			if err != nil {
				return template.None, err
			}
			d.Set("tool_calls", calls)
		}
	case "tool":
		if id, ok := r.text(m, "tool_call_id"); ok {
			d.Set("tool_call_id", template.String(id))
		}
	}
	return d.Value(), nil
}

// stringTRTLLM puts placeholders to the joined texts, less those that the user typed.
func (r *reader) stringTRTLLM(items []item) string {
	text := joined(items, "\n")
	var placeholders []string
	for _, it := range items {
		if it.medium == nil {
			continue
		}
		if p, ok := r.m.placeholder(it.medium.Modality, r.take(it.medium)); ok {
			placeholders = append(placeholders, p)
		}
	}
	typed := vision.CountEach(text, placeholders)
	parts := slices.DeleteFunc(placeholders, func(p string) bool {
		typed[p]--
		return typed[p] >= 0
	})
	if len(parts) == 0 {
		return text
	}
	sep := "\n"
	if r.m.facts.PlaceholdersTouch {
		sep = ""
	}
	if r.m.facts.PlaceholdersFirst {
		return strings.Join(append(parts, text), sep)
	}
	return strings.Join(append([]string{text}, parts...), sep)
}

// callsTRTLLM makes objects of the calls' arguments; what is no JSON stays a text.
func callsTRTLLM(calls []template.Value) (template.Value, error) {
	return eachOf(calls, func(call template.Value) (template.Value, error) {
		fn := call.Field("function")
		if call.Dict() == nil || fn.Dict() == nil {
			return template.None, refuse(400, "tool call without a function")
		}
		args := fn.Field("arguments")
		switch {
		case args.IsNone():
			args = template.NewDict(0).Value()
		case args.IsString():
			v, err := template.FromJSON(args.Text())
			if err == nil && v.Dict() == nil {
				return template.None, refuse(400, "a tool call's arguments are no JSON object")
			}
			if err == nil {
				args = v
			}
		case args.Dict() == nil:
			return template.None, refuse(400, "a tool call's arguments are no JSON object")
		}
		return with(call, field{"function", with(fn, field{"arguments", args})}), nil
	})
}
