package prompt

import (
	"errors"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/template"
)

// OpenAI's /v1/responses, made a chat as vLLM 0.32 does (entrypoints/openai/responses): instructions in front, items that
// belong to one assistant turn put together. What goes on from a stored response cannot be known here.

func (m *Model) responses(req *body.Request, d *Draft) error {
	for _, key := range []string{"previous_response_id", "previous_input_messages"} {
		if v := req.Fields[key]; v.Type != gjson.Null {
			return ErrStored
		}
	}
	if v := req.Fields["prompt"]; v.Type != gjson.Null {
		return refuse(400, "prompt of a response")
	}
	s, err := m.settingsResponses(req)
	if err != nil {
		return err
	}
	t, err := m.templateFor(s)
	if err != nil {
		return err
	}
	r := reader{m: m, body: req.Body, openai: t.openai}
	var turns []turn
	if text, ok := req.Body.String(req.Fields["instructions"]); ok && text != "" {
		turns = append(turns, textTurn("system", text))
	} else if !ok && req.Fields["instructions"].Type != gjson.Null {
		return refuse(400, "instructions is no text")
	}
	switch input := req.Fields["input"]; {
	case input.Type == gjson.String:
		text, err := r.string(input, "input is no valid text")
		if err != nil {
			return err
		}
		turns = append(turns, textTurn("user", text))
	case input.IsArray():
		items, err := req.Body.Messages(input)
		if errors.Is(err, body.ErrMany) {
			return ErrMany
		}
		if err != nil {
			return refuse(400, "input holds what is no object")
		}
		first := len(turns)
		for i := range items {
			if turns, err = r.inputItem(turns, first, &items[i]); err != nil {
				return err
			}
		}
		if len(items) > 0 && unfinished(&items[len(items)-1], r.body) {
			s.goOn, s.generate = true, false
		}
	default:
		return refuse(400, "input is neither text nor a list")
	}
	if len(turns) == 0 {
		return refuse(400, "input is empty")
	}
	return r.render(turns, t, s, d)
}

// unfinished tells that an item is a message to be continued.
func unfinished(it *body.Message, body *body.Skeleton) bool {
	kind, ok := body.String(it.Fields["type"])
	status, _ := body.String(it.Fields["status"])
	return (!ok || kind == "message" || kind == "reasoning") && (status == "in_progress" || status == "incomplete")
}

// inputItem appends an input item, or puts it to the assistant turn before it. Turns before first are not the input's.
func (r *reader) inputItem(turns []turn, first int, it *body.Message) ([]turn, error) {
	kind, _ := r.body.String(it.Fields["type"])
	var before *turn // an assistant turn that the item may belong to
	if n := len(turns); n > first && turns[n-1].role == "assistant" {
		before = &turns[n-1]
	}
	text := func(key string) template.Value {
		s, _ := r.body.String(it.Fields[key])
		return template.String(s)
	}
	switch {
	case kind == "function_call":
		if it.Fields["namespace"].Type != gjson.Null {
			return nil, ErrPart
		}
		for _, key := range []string{"call_id", "name", "arguments"} {
			if !isText(it.Fields[key]) {
				return nil, refuse(400, "function call without a call_id, a name and arguments")
			}
		}
		name, args := text("name"), text("arguments")
		c := call(text("call_id"), name, args)
		if before == nil {
			turns = append(turns, turn{role: "assistant"})
			before = &turns[len(turns)-1]
		}
		before.calls = append(before.calls, c)
		return turns, nil
	case kind == "reasoning":
		if v, ok := r.body.String(it.Fields["encrypted_content"]); ok && v != "" {
			return nil, refuse(400, "reasoning with encrypted content")
		}
		reasoning, ok := r.firstText(it.Content)
		if !ok {
			reasoning, _ = r.firstText(it.Fields["summary"])
		}
		if before == nil || len(before.fields) > 0 {
			turns = append(turns, turn{role: "assistant"})
			before = &turns[len(turns)-1]
		}
		before.fields = reasoningFields(reasoning)
		return turns, nil
	case kind == "function_call_output":
		if !isText(it.Fields["call_id"]) {
			return nil, refuse(400, "function call output without a call_id")
		}
		t := turn{role: "tool", fields: []field{{"tool_call_id", text("call_id")}}}
		switch out := it.Fields["output"]; {
		case out.Type == gjson.String:
			s, err := r.string(out, "function call output without valid text")
			if err != nil {
				return nil, err
			}
			t.kind, t.items = body.Text, []item{{text: s}}
		case out.IsArray():
			parts, err := r.contentParts(out)
			if err != nil {
				return nil, err
			}
			t.kind = body.List
			if t.items, err = r.inputParts(parts); err != nil {
				return nil, err
			}
		default:
			return nil, refuse(400, "function call output of an unknown form")
		}
		return append(turns, t), nil
	case kind != "" && kind != "message":
		return nil, ErrPart
	case it.Role == "":
		return nil, refuse(400, "input item of an unknown type")
	case it.Role == "assistant":
		s, ok := r.body.String(it.Content)
		if it.Kind == body.List {
			s, ok = r.firstText(it.Content)
		}
		switch {
		case ok && before != nil && before.kind == body.None:
			before.kind, before.items = body.Text, []item{{text: s}}
			return turns, nil
		case ok:
			return append(turns, textTurn("assistant", s)), nil
		case kind == "message" && it.Content.Raw == "[]" && (isText(it.Fields["status"]) || !it.Fields["status"].Exists()):
			return nil, refuse(500, "assistant message without content")
		}
	}
	switch it.Role {
	case "user", "system", "developer", "assistant":
	default:
		return nil, refuse(400, "message of an unknown role")
	}
	t := turn{role: it.Role, kind: it.Kind}
	switch it.Kind {
	case body.Text:
		s, err := r.string(it.Content, "content is no valid text")
		if err != nil {
			return nil, err
		}
		t.items = []item{{text: s}}
	case body.List:
		var err error
		if t.items, err = r.inputParts(it.Parts); err != nil {
			return nil, err
		}
	default:
		return nil, refuse(400, "content is neither text nor a list")
	}
	if t.role == "developer" {
		t.fields = []field{{"tools", template.None}}
	}
	return append(turns, t), nil
}

// firstText is the text of a list's first entry.
func (r *reader) firstText(list gjson.Result) (string, bool) {
	return r.body.String(body.Last(list.Get("0"), "text"))
}

// inputParts reads the content parts that this API has; detail of a picture may be left out.
func (r *reader) inputParts(parts []body.Part) ([]item, error) {
	out := make([]item, 0, len(parts))
	for i := range parts {
		p := &parts[i]
		switch p.Type {
		case "input_text", "output_text", "text":
			text, err := r.string(p.Fields["text"], "text part without valid text")
			if err != nil {
				return nil, err
			}
			out = append(out, item{text: text, kept: p.Type != "text"})
		case "input_image":
			v := p.Fields["image_url"]
			if v.Type != gjson.String || p.Fields["uuid"].Type != gjson.Null {
				return nil, ErrPart // file_id
			}
			detail := "auto"
			if text, ok := r.body.String(p.Fields["detail"]); ok {
				detail = text
			}
			out = append(out, item{medium: &Medium{Modality: "image", Source: v, Part: p.Raw}, extras: []field{{"detail", template.String(detail)}}})
		default:
			return nil, ErrPart
		}
	}
	return out, nil
}

func (m *Model) settingsResponses(req *body.Request) (s settings, err error) {
	s = settings{tools: template.None, documents: template.None, effort: template.None, generate: true, addSpecial: true}
	if s.kwargs, err = m.templateKwargs(req); err != nil {
		return s, err
	}
	if s.kwargs != nil {
		if _, ok := s.kwargs.Get("tokenize"); ok { // this API hands it on to the template's renderer
			return s, ErrPart
		}
	}
	defer func() {
		if err == nil {
			err = m.kwargsAsFields(&s)
		}
	}()
	if v := req.Fields["reasoning"]; v.Type != gjson.Null && !v.IsObject() {
		return s, refuse(400, "reasoning is no object")
	}
	if effort, ok := req.Body.String(body.Last(req.Fields["reasoning"], "effort")); ok {
		s.effort = template.String(effort)
	}
	choice := req.Fields["tool_choice"]
	if isText(choice) && !oneOf(choice, "none", "auto", "required") {
		return s, refuse(400, "tool_choice of an unknown form")
	}
	raw := req.Fields["tools"]
	none := raw.Type == gjson.Null || raw.IsArray() && !raw.Get("0").Exists()
	if none {
		if choice.IsObject() || choice.String() == "required" {
			return s, refuse(400, "tool_choice without tools")
		}
		return s, nil
	}
	if choice.String() == "none" && m.opt.ExcludeToolsOnNone {
		return s, nil
	}
	list, err := readList(req.Body, raw, "tools is no list")
	if err != nil {
		return s, err
	}
	forced, _ := req.Body.String(body.Last(choice, "name"))
	named := 0
	s.tools, err = eachOf(list.Items(), func(tool template.Value) (template.Value, error) {
		if forced != "" && tool.Field("name").Text() == forced {
			named++
		}
		if tool.Field("type").Text() != "function" {
			return template.None, ErrPart
		}
		return toolVLLM(tool, template.None)
	})
	if err != nil {
		return s, err
	}
	if forced != "" && (named == 0 || named > 1 && m.opt.AutoToolChoice) {
		return s, refuse(400, "tool_choice names no tool of the request, or two")
	}
	return s, nil
}
