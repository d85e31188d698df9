package prompt

import (
	"errors"
	"strings"
	"sync"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/template"
)

// This file converts Anthropic's /v1/messages to a chat as vLLM 0.32 does (entrypoints/anthropic/serving.py): system texts in
// front, tool results as messages of their own before the user's, thinking as reasoning.

func (m *Renderer) messages(req *body.Request, d *Draft) error {
	s, err := m.settingsMessages(req)
	if err != nil {
		return err
	}
	r, err := m.readerFor(req.Body, s)
	if err != nil {
		return err
	}
	system, err := r.systemField(req.Fields["system"])
	if err != nil {
		return err
	}
	var turns []Turn
	for i := range req.Messages {
		msg := &req.Messages[i]
		if msg.Role != "system" {
			turns, err = r.messageTurns(turns, msg)
			if err != nil {
				return err
			}
			continue
		}
		text, err := r.inlineSystem(msg)
		if err == nil && text != "" {
			var merge bool
			merge, err = m.merges()
			if merge {
				system += text
			} else {
				turns = append(turns, TextTurn("system", text))
			}
		}
		if err != nil {
			return err
		}
	}
	if system != "" {
		turns = append([]Turn{TextTurn("system", system)}, turns...)
	}
	if len(turns) == 0 {
		return Refuse("messages is empty")
	}
	return r.render(turns, s, d)
}

// systemField reads the request's own system text.
func (r *Reader) systemField(v gjson.Result) (string, error) {
	switch {
	case v.Type == gjson.Null:
		return "", nil
	case v.IsArray():
		parts, err := r.contentParts(v)
		if err != nil {
			return "", err
		}
		return r.systemText(parts)
	}
	return r.String(v, "system is neither text nor a list")
}

// systemText joins text blocks without a coding client's attribution.
func (r *Reader) systemText(parts []body.Part) (string, error) {
	var b strings.Builder
	for i := range parts {
		switch p := &parts[i]; p.Type {
		case "tool_addition", "tool_removal":
			return "", ErrPart
		case "text":
			text, err := r.blockText(p)
			if err != nil {
				return "", err
			}
			if !strings.HasPrefix(text, attribution) {
				b.WriteString(text)
			}
		}
	}
	return b.String(), nil
}

// attribution begins a text that a coding client puts in front of its system text and that changes with each request.
const attribution = "x-anthropic-billing-header"

// blockText returns the text of a block, "" for null.
func (r *Reader) blockText(p *body.Part) (string, error) {
	if p.Fields["text"].Type == gjson.Null {
		return "", nil
	}
	return r.String(p.Fields["text"], "text block without valid text")
}

func (r *Reader) inlineSystem(m *body.Message) (string, error) {
	if m.Kind == body.List {
		return r.systemText(m.Parts)
	}
	text, err := r.String(m.Content, "content is not valid text")
	if strings.HasPrefix(text, attribution) {
		return "", nil
	}
	return text, err
}

// messageTurns appends a user's or assistant's message, preceded by the tool results in it as turns of their own.
func (r *Reader) messageTurns(turns []Turn, m *body.Message) ([]Turn, error) {
	if m.Kind != body.List {
		text, err := r.String(m.Content, "content is neither text nor a list")
		return append(turns, TextTurn(m.Role, text)), err
	}
	t := Turn{Role: m.Role, Kind: body.List}
	var reasoning strings.Builder
	thinks := false
	for i := range m.Parts {
		p := &m.Parts[i]
		var err error
		switch {
		case p.Type == "thinking":
			if text, ok := r.Body.String(p.Fields["thinking"]); ok {
				reasoning.WriteString(text)
				thinks = true
			}
		case p.Type == "tool_result" && m.Role == "user":
			turns, err = r.toolResult(turns, p)
		default:
			err = r.block(&t, p)
		}
		if err != nil {
			return nil, err
		}
	}
	if t.Role != "assistant" { // templates get only the assistant's calls and reasoning
		t.Calls, thinks = nil, false
	}
	if thinks {
		t.Fields = reasoningFields(reasoning.String())
	}
	switch {
	case len(t.Items) == 1 && t.Items[0].Medium == nil:
		t.Kind = body.Text
	case len(t.Items) == 0 && t.Role == "user":
		return turns, nil
	case len(t.Items) == 0:
		t.Kind = body.None
	}
	return append(turns, t), nil
}

// block appends one content block to its turn.
func (r *Reader) block(t *Turn, p *body.Part) error {
	switch p.Type {
	case "text":
		text, err := r.blockText(p)
		if text != "" {
			t.Items = append(t.Items, Item{Text: text})
		}
		return err
	case "image":
		if source := p.Fields["source"]; source.IsObject() {
			t.Items = append(t.Items, Item{Medium: r.imageSource(source, p.Raw)})
		}
	case "redacted_thinking", "tool_reference":
	case "tool_use":
		call, err := r.toolUse(p)
		t.Calls = append(t.Calls, call)
		return err
	case "tool_result": // from an assistant
		text := "Tool result: "
		if v := p.Fields["content"]; isText(v) {
			result, _ := r.Body.String(v)
			text += result
		} else if v.IsArray() && v.Get("0").Exists() {
			return ErrPart // vLLM inserts Python's repr of it
		}
		t.Items = append(t.Items, Item{Text: text})
	default:
		return Refuse("content block of an unknown type")
	}
	return nil
}

// reasoningFields returns the fields by which templates get an assistant's reasoning.
func reasoningFields(text string) []Field {
	return []Field{{"reasoning", template.String(text)}, {"reasoning_content", template.String(text)}}
}

// imageSource returns the medium of Anthropic's base64 or url source.
func (r *Reader) imageSource(source, part gjson.Result) *MediaPart {
	md := &MediaPart{Modality: "image", Part: part}
	if kind, _ := r.Body.String(body.Last(source, "type")); kind == "url" {
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

// toolUse returns a tool call in the chat's form.
func (r *Reader) toolUse(p *body.Part) (template.Value, error) {
	get := func(key string) template.Value {
		text, _ := r.Body.String(p.Fields[key])
		return template.String(text)
	}
	if get("id").Text() == "" { // vLLM makes one of the time
		return template.None, ErrPart
	}
	input := template.NewDict(0).Value()
	if v := p.Fields["input"]; v.IsObject() {
		var err error
		input, err = Value(r.Body, v, "input of a tool_use block that cannot be read")
		if err != nil {
			return template.None, err
		}
	}
	return orderedCall(call(get("id"), get("name"), input)), nil
}

func call(id, name, arguments template.Value) template.Value {
	f := template.NewDict(2).Set("name", name).Set("arguments", arguments)
	return template.NewDict(3).Set("id", id).Set("function", f.Value()).Set("type", FunctionType()).Value()
}

// toolResult appends a tool's message, and its images as a user's message.
func (r *Reader) toolResult(turns []Turn, p *body.Part) ([]Turn, error) {
	var texts []string
	var images, references []Item
	switch v := p.Fields["content"]; {
	case v.Type == gjson.Null:
	case v.Type == gjson.String:
		text, err := r.String(v, "tool result without valid text")
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
				text, _ := r.Body.String(q.Fields["text"])
				texts = append(texts, text)
			case "image":
				images = append(images, Item{Medium: r.imageSource(q.Fields["source"], q.Raw)})
			case "tool_reference":
				name, _ := r.Body.String(q.Fields["tool_name"])
				if name == "" {
					name, _ = r.Body.String(q.Fields["name"])
				}
				if name != "" && r.OpenAI {
					references = append(references, Item{Part: ToolReference(name)})
				} else if name != "" {
					references = append(references, Item{Text: name})
				}
			}
		}
	default:
		return nil, Refuse("tool result of an unknown form")
	}
	id, _ := r.Body.String(p.Fields["tool_use_id"])
	fields := []Field{{"tool_call_id", template.String(id)}}
	result := TextTurn("tool", strings.Join(texts, "\n"))
	result.Fields = fields
	turns = append(turns, result)
	if len(images) > 0 {
		turns = append(turns, Turn{Role: "user", Kind: body.List, Items: images})
	}
	if len(references) > 0 {
		turns = append(turns, Turn{Role: "tool", Kind: body.List, Items: references, Fields: fields})
	}
	return turns, nil
}

func (m *Renderer) settingsMessages(req *body.Request) (s settings, err error) {
	s = settings{tools: template.None, documents: template.None, effort: template.None, generate: true}
	s.kwargs, err = m.templateKwargs(req)
	if err != nil {
		return s, err
	}
	if effort := body.Last(req.Fields["output_config"], "effort"); isText(effort) {
		s.effort = template.String(effort.String())
	}
	if m.opt.Dialect.DisablesThinking && body.Last(req.Fields["thinking"], "type").String() == "disabled" {
		effort, err := m.disabled()
		if err != nil {
			return s, err
		}
		s.effort = template.String(effort)
	}
	s.tools, err = m.toolsMessages(req)
	if err != nil {
		return s, err
	}
	return s, m.kwargsAsFields(&s)
}

func (m *parameters) toolsMessages(req *body.Request) (template.Value, error) {
	raw, choice := req.Fields["tools"], body.Last(req.Fields["tool_choice"], "type").String()
	if choice != "none" && (raw.Type != gjson.Null || choice != "") {
		if err := m.toolParser(); err != nil {
			return template.None, err
		}
	}
	if raw.Type == gjson.Null {
		return template.None, nil
	}
	list, err := List(req.Body, raw, "tools is not a list")
	if err != nil {
		return template.None, err
	}
	return EachOf(list.Items(), func(tool template.Value) (template.Value, error) {
		schema := tool.Field("input_schema")
		if schema.Dict() == nil {
			return schema, Refuse("tool without an input_schema")
		}
		if _, ok := schema.Get("type"); !ok {
			schema = With(schema, Field{"type", template.String("object")})
		}
		return openAITool(With(tool, Field{"parameters", schema}), template.None)
	})
}

// messagesRules computes what vLLM finds out about a template before it serves /v1/messages.
func (m *Renderer) messagesRules() {
	m.merges = sync.OnceValues(func() (bool, error) {
		plain, err := m.plain.wantsSystemFirst()
		if plain || err != nil {
			return plain, err
		}
		return m.tools.wantsSystemFirst()
	})
	m.disabled = sync.OnceValues(m.disabledEffort)
}

// wantsSystemFirst reports whether a template fails on a second system message; if so, all are merged in front. The error is that of a
// template that does not run here.
func (t *chatTemplate) wantsSystemFirst() (bool, error) {
	if t == nil || t.Mentions("endgeneration") { // a tag that vLLM's test rendering does not know
		return true, nil
	}
	var list []template.Value
	for _, role := range []string{"system", "user", "system", "user"} {
		list = append(list, template.NewDict(2).Set("role", template.String(role)).Set("content", template.String("t")).Value())
	}
	var vars template.Vars
	vars.Set("messages", template.NewList(list...))
	vars.Set("add_generation_prompt", template.Bool(false))
	_, err := t.Render(nil, vars)
	return failed(renderError(err))
}

// disabledEffort returns the reasoning_effort that stands for disabled thinking: low if the template refuses none, or treats it as
// another one. The error is as wantsSystemFirst's.
func (m *Renderer) disabledEffort() (string, error) {
	probe := func(effort string) (string, bool, error) {
		var d Draft
		s := settings{tools: template.None, documents: template.None, effort: template.String(effort), generate: true}
		r, err := m.readerFor(nil, s)
		if err == nil {
			err = r.render([]Turn{TextTurn("user", "Hi")}, s, &d)
		}
		if err != nil {
			_, err = failed(err)
			return "", false, err
		}
		return d.Prompts[0].Text, true, nil
	}
	none, ok, err := probe("none")
	if !ok {
		return "low", err
	}
	for _, effort := range []string{"low", "medium", "high", "xhigh", "max"} {
		text, ok, err := probe(effort)
		if ok && text == none || err != nil {
			return "low", err
		}
	}
	return "none", nil
}

// failed reports whether an engine that renders the same fails too. An error that says nothing of the engine is returned.
func failed(err error) (bool, error) {
	if _, refused := errors.AsType[*Refused](err); refused || err == nil {
		return refused, nil
	}
	return false, err
}
