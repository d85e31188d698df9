package prompt

import (
	"math"
	"strings"
	"sync"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/template"
)

// Anthropic's /v1/messages, made a chat as vLLM 0.32 does (entrypoints/anthropic/serving.py): system texts in front, tool
// results as messages of their own before the user's, thinking as reasoning.

func (m *Model) messages(req *body.Request, d *Draft) error {
	if n := req.Fields["max_tokens"]; n.Type != gjson.True && (n.Type != gjson.Number || n.Num < 1 || n.Num != math.Trunc(n.Num)) {
		return refuse(400, "max_tokens is missing or not positive")
	}
	if req.Batch != nil {
		return refuse(400, "messages is a list of lists")
	}
	s, err := m.settingsMessages(req)
	if err != nil {
		return err
	}
	t, err := m.templateFor(s)
	if err != nil {
		return err
	}
	r := reader{m: m, body: req.Body, openai: t.openai}
	var system []string
	switch v := req.Fields["system"]; {
	case v.Type == gjson.Null:
	case v.IsArray():
		parts, err := r.contentParts(v)
		if err != nil {
			return err
		}
		text, err := r.systemText(parts)
		if err != nil {
			return err
		}
		system = append(system, text)
	default:
		text, err := r.string(v, "system is neither text nor a list")
		if err != nil {
			return err
		}
		system = append(system, text)
	}
	merge := m.merges[0]() || m.merges[1]()
	var turns []turn
	for i := range req.Messages {
		msg := &req.Messages[i]
		if msg.Role != "system" {
			if turns, err = r.messageTurns(turns, msg); err != nil {
				return err
			}
			continue
		}
		text, err := r.inlineSystem(msg)
		switch {
		case err != nil:
			return err
		case text == "":
		case merge:
			system = append(system, text)
		default:
			turns = append(turns, textTurn("system", text))
		}
	}
	if text := strings.Join(system, ""); text != "" {
		turns = append([]turn{textTurn("system", text)}, turns...)
	}
	if len(turns) == 0 {
		return refuse(400, "messages is empty")
	}
	return r.render(turns, t, s, d)
}

// systemText joins text blocks, less a coding client's attribution.
func (r *reader) systemText(parts []body.Part) (string, error) {
	var b strings.Builder
	for i := range parts {
		switch p := &parts[i]; {
		case !isBlock(p):
			return "", refuse(400, "content block with a field of another type than it has")
		case p.Type == "tool_addition" || p.Type == "tool_removal":
			return "", ErrPart
		case p.Fields == nil || p.Type == "":
			return "", refuse(400, "content block without a type")
		case p.Type == "text":
			text, ok := r.body.String(p.Fields["text"])
			if !ok && p.Fields["text"].Type != gjson.Null {
				return "", refuse(400, "text block without valid text")
			}
			if !strings.HasPrefix(text, "x-anthropic-billing-header") {
				b.WriteString(text)
			}
		}
	}
	return b.String(), nil
}

func (r *reader) inlineSystem(m *body.Message) (string, error) {
	switch m.Kind {
	case body.Text:
		text, err := r.string(m.Content, "content is no valid text")
		if strings.HasPrefix(text, "x-anthropic-billing-header") {
			return "", nil
		}
		return text, err
	case body.List:
		return r.systemText(m.Parts)
	}
	return "", refuse(400, "content is neither text nor a list")
}

// messageTurns appends a user's or assistant's message, with the tool results in it as turns before it.
func (r *reader) messageTurns(turns []turn, m *body.Message) ([]turn, error) {
	if m.Role != "user" && m.Role != "assistant" {
		return nil, refuse(400, "message of an unknown role")
	}
	if m.Kind == body.Text {
		text, err := r.string(m.Content, "content is no valid text")
		return append(turns, textTurn(m.Role, text)), err
	}
	if m.Kind != body.List {
		return nil, refuse(400, "content is neither text nor a list")
	}
	t := turn{role: m.Role, kind: body.List}
	var reasoning strings.Builder
	thinks := false
	for i := range m.Parts {
		p := &m.Parts[i]
		if !isBlock(p) {
			return nil, refuse(400, "content block with a field of another type than it has")
		}
		switch p.Type {
		case "text":
			text, ok := r.body.String(p.Fields["text"])
			if !ok && p.Fields["text"].Type != gjson.Null {
				return nil, refuse(400, "text block without valid text")
			}
			if text != "" {
				t.items = append(t.items, item{text: text})
			}
		case "image":
			if source := p.Fields["source"]; source.IsObject() && source.Raw != "{}" {
				t.items = append(t.items, item{medium: r.imageSource(source, p.Raw)})
			} else if source.Type != gjson.Null {
				return nil, refuse(400, "image block without a source")
			}
		case "thinking":
			if text, ok := r.body.String(p.Fields["thinking"]); ok {
				reasoning.WriteString(text)
				thinks = true
			}
		case "redacted_thinking", "tool_reference":
		case "tool_use":
			call, err := r.toolUse(p)
			if err != nil {
				return nil, err
			}
			t.calls = append(t.calls, call)
		case "tool_result":
			if m.Role != "user" {
				text := "Tool result: "
				if v := p.Fields["content"]; isText(v) {
					result, _ := r.body.String(v)
					text += result
				} else if v.IsArray() && v.Get("0").Exists() {
					return nil, ErrPart // Python's print of it
				}
				t.items = append(t.items, item{text: text})
				continue
			}
			var err error
			if turns, err = r.toolResult(turns, p); err != nil {
				return nil, err
			}
		default:
			return nil, refuse(400, "content block of an unknown type")
		}
	}
	if t.role != "assistant" { // templates get calls and reasoning of the assistant only
		t.calls, thinks = nil, false
	}
	if thinks {
		t.fields = reasoningFields(reasoning.String())
	}
	switch {
	case len(t.items) == 1 && t.items[0].medium == nil:
		t.kind = body.Text
	case len(t.items) == 0 && t.role == "user":
		return turns, nil
	case len(t.items) == 0:
		t.kind = body.None
	}
	return append(turns, t), nil
}

// reasoningFields are what templates get of an assistant's reasoning.
func reasoningFields(text string) []field {
	return []field{{"reasoning", template.String(text)}, {"reasoning_content", template.String(text)}}
}

// isBlock tells that the fields of a content block have their types.
func isBlock(p *body.Part) bool {
	for key, v := range p.Fields {
		ok := true
		switch key {
		case "text", "id", "tool_use_id", "name", "tool_name", "thinking", "signature", "data":
			ok = isText(v)
		case "source", "input":
			ok = v.IsObject()
		case "content":
			ok = isText(v) || v.IsArray()
			if v.IsArray() {
				v.ForEach(func(_, e gjson.Result) bool { ok = e.IsObject(); return ok })
			}
		case "is_error":
			ok = v.IsBool()
		}
		if !ok && v.Type != gjson.Null {
			return false
		}
	}
	return true
}

// imageSource makes a medium of Anthropic's base64 or url source.
func (r *reader) imageSource(source, part gjson.Result) *Medium {
	md := &Medium{Modality: "image", Part: part}
	if kind, _ := r.body.String(body.Last(source, "type")); kind == "url" {
		md.Source = body.Last(source, "url")
		return md
	}
	kind := "image/jpeg"
	if v := body.Last(source, "media_type"); v.Type == gjson.String {
		kind = v.Raw[1 : len(v.Raw)-1]
	}
	md.Source, md.Prefix = body.Last(source, "data"), "data:"+kind+";base64,"
	return md
}

// toolUse is a tool call in the chat's form.
func (r *reader) toolUse(p *body.Part) (template.Value, error) {
	get := func(key string) template.Value {
		text, _ := r.body.String(p.Fields[key])
		return template.String(text)
	}
	input := template.NewDict(0).Value()
	if v := p.Fields["input"]; v.IsObject() {
		var err error
		if input, err = readValue(r.body, v, "input of a tool_use block that cannot be read"); err != nil {
			return template.None, err
		}
	}
	return orderedCall(call(get("id"), get("name"), input)), nil
}

func call(id, name, arguments template.Value) template.Value {
	f := template.NewDict(2).Set("name", name).Set("arguments", arguments)
	return template.NewDict(3).Set("id", id).Set("function", f.Value()).Set("type", functionType()).Value()
}

// toolResult appends a tool's message, and its pictures as a user's.
func (r *reader) toolResult(turns []turn, p *body.Part) ([]turn, error) {
	var texts []string
	var images, references []item
	switch v := p.Fields["content"]; {
	case v.Type == gjson.Null:
	case v.Type == gjson.String:
		text, err := r.string(v, "tool result without valid text")
		if err != nil {
			return nil, err
		}
		texts = []string{text}
	case v.IsArray():
		parts, err := r.contentParts(v)
		if err != nil {
			return nil, err
		}
		for i := range parts {
			switch q := &parts[i]; q.Type {
			case "text":
				text, _ := r.body.String(q.Fields["text"])
				texts = append(texts, text)
			case "image":
				images = append(images, item{medium: r.imageSource(q.Fields["source"], q.Raw)})
			case "tool_reference":
				name, _ := r.body.String(q.Fields["tool_name"])
				if name == "" {
					name, _ = r.body.String(q.Fields["name"])
				}
				if name != "" && r.openai {
					references = append(references, item{part: toolReference(name)})
				} else if name != "" {
					references = append(references, item{text: name})
				}
			}
		}
	default:
		return nil, refuse(400, "tool result of an unknown form")
	}
	id, _ := r.body.String(p.Fields["tool_use_id"])
	fields := []field{{"tool_call_id", template.String(id)}}
	result := textTurn("tool", strings.Join(texts, "\n"))
	result.fields = fields
	turns = append(turns, result)
	if len(images) > 0 {
		turns = append(turns, turn{role: "user", kind: body.List, items: images})
	}
	if len(references) > 0 {
		turns = append(turns, turn{role: "tool", kind: body.List, items: references, fields: fields})
	}
	return turns, nil
}

func (m *Model) settingsMessages(req *body.Request) (s settings, err error) {
	s = settings{tools: template.None, documents: template.None, effort: template.None, generate: true}
	if s.kwargs, err = m.templateKwargs(req); err != nil {
		return s, err
	}
	defer func() {
		if err == nil {
			err = m.kwargsAsFields(&s)
		}
	}()
	if v := req.Fields["output_config"]; v.Type != gjson.Null && !v.IsObject() {
		return s, refuse(400, "output_config is no object")
	}
	if effort := body.Last(req.Fields["output_config"], "effort"); effort.Type != gjson.Null {
		switch effort.String() {
		case "low", "medium", "high", "xhigh", "max":
			s.effort = template.String(effort.String())
		default:
			return s, refuse(400, "output_config with an unknown effort")
		}
	}
	if v := req.Fields["thinking"]; v.Type != gjson.Null {
		switch body.Last(v, "type").String() {
		case "disabled":
			s.effort = template.String(m.disabled())
		case "enabled":
			if n := body.Last(v, "budget_tokens").Num; n < 1024 || n >= req.Fields["max_tokens"].Num {
				return s, refuse(400, "thinking with too small a budget, or one as large as max_tokens")
			}
		case "adaptive":
		default:
			return s, refuse(400, "thinking of an unknown type")
		}
	}
	choice := body.Last(req.Fields["tool_choice"], "type").String()
	if name := body.Last(req.Fields["tool_choice"], "name"); choice == "tool" && (!isText(name) || name.Raw == `""`) {
		return s, refuse(400, "tool_choice without a name")
	}
	raw := req.Fields["tools"]
	if raw.Type == gjson.Null {
		if choice != "" && choice != "none" && !m.opt.AutoToolChoice {
			return s, refuse(400, "tools without --enable-auto-tool-choice")
		}
		return s, nil
	}
	if choice != "none" && !m.opt.AutoToolChoice {
		return s, refuse(400, "tools without --enable-auto-tool-choice")
	}
	list, err := readList(req.Body, raw, "tools is no list")
	if err != nil || choice == "none" && m.opt.ExcludeToolsOnNone {
		return s, err
	}
	s.tools, err = eachOf(list.Items(), func(tool template.Value) (template.Value, error) {
		schema := tool.Field("input_schema")
		if schema.Dict() == nil {
			return schema, refuse(400, "tool without an input_schema")
		}
		if _, ok := schema.Get("type"); !ok {
			schema = with(schema, field{"type", template.String("object")})
		}
		return toolVLLM(with(tool, field{"parameters", schema}), template.None)
	})
	return s, err
}

// messagesRules prepares what vLLM finds out about a template before it serves /v1/messages.
func (m *Model) messagesRules() {
	for i, t := range []*chatTemplate{m.plain, m.tools} {
		m.merges[i] = sync.OnceValue(func() bool { return t == nil || t.wantsSystemFirst() })
	}
	m.disabled = sync.OnceValue(m.disabledEffort)
}

// wantsSystemFirst tells that a template fails on a second system message: then all are merged in front.
func (t *chatTemplate) wantsSystemFirst() bool {
	if t.Mentions("endgeneration") { // a tag that vLLM's trial does not know
		return true
	}
	var list []template.Value
	for _, role := range []string{"system", "user", "system", "user"} {
		list = append(list, template.NewDict(2).Set("role", template.String(role)).Set("content", template.String("t")).Value())
	}
	var vars template.Vars
	vars.Set("messages", template.NewList(list...))
	vars.Set("add_generation_prompt", template.Bool(false))
	_, err := t.Render(nil, vars)
	return err != nil
}

// disabledEffort is the reasoning_effort that stands for disabled thinking: low where the template refuses none, or takes
// it for another one.
func (m *Model) disabledEffort() string {
	probe := func(effort string) (string, bool) {
		t, err := m.templateFor(settings{tools: template.None})
		if err != nil {
			return "", false
		}
		var d Draft
		r := reader{m: m, openai: t.openai}
		s := settings{tools: template.None, documents: template.None, effort: template.String(effort), generate: true}
		if err := r.render([]turn{textTurn("user", "Hi")}, t, s, &d); err != nil {
			return "", false
		}
		return d.Prompts[0].Text, true
	}
	none, ok := probe("none")
	if !ok {
		return "low"
	}
	for _, effort := range []string{"low", "medium", "high", "xhigh", "max"} {
		if text, ok := probe(effort); ok && text == none {
			return "low"
		}
	}
	return "none"
}
