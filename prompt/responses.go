package prompt

import (
	"errors"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/template"
)

// This file converts OpenAI's /v1/responses to a chat as vLLM 0.30 to 0.33 do (entrypoints/openai/responses): instructions in front,
// items of one assistant turn merged, functions alone of the tools. A request that continues a stored response cannot be predicted here.

func (m *Renderer) responses(req *body.Request, d *Draft) error {
	for _, key := range []string{"previous_response_id", "previous_input_messages"} {
		if v := req.Fields[key]; v.Type != gjson.Null {
			return ErrStored
		}
	}
	if v := req.Fields["prompt"]; v.Type != gjson.Null {
		return Refuse("prompt of a response")
	}
	s, err := m.settingsResponses(req)
	if err != nil {
		return err
	}
	r, err := m.readerFor(req.Body, s)
	if err != nil {
		return err
	}
	var turns []Turn
	if v := req.Fields["instructions"]; v.Type != gjson.Null {
		text, err := r.String(v, "instructions is not a string")
		if err != nil {
			return err
		}
		if text != "" {
			turns = append(turns, TextTurn("system", text))
		}
	}
	input := req.Fields["input"]
	if !input.IsArray() {
		text, err := r.String(input, "input is neither text nor a list")
		if err != nil {
			return err
		}
		return r.render(append(turns, TextTurn("user", text)), s, d)
	}
	items, err := req.Body.Messages(input)
	if errors.Is(err, body.ErrTooMany) {
		return ErrTooMany
	}
	if err != nil || len(items) == 0 {
		return Refuse("input is empty, or holds what is not an object")
	}
	first := len(turns)
	for i := range items {
		turns, err = r.inputItem(turns, first, &items[i])
		if err != nil {
			return err
		}
	}
	if unfinished(&items[len(items)-1], r.Body) {
		s.continueFinal, s.generate = true, false
	}
	return r.render(turns, s, d)
}

// unfinished reports whether an item is a message to be continued.
func unfinished(it *body.Message, body *body.Skeleton) bool {
	kind, ok := body.String(it.Fields["type"])
	status, _ := body.String(it.Fields["status"])
	return (!ok || kind == "message" || kind == "reasoning") && (status == "in_progress" || status == "incomplete")
}

// inputItem appends an input item, or merges it into the assistant turn before it. Turns before first are not the input's.
func (r *Reader) inputItem(turns []Turn, first int, it *body.Message) ([]Turn, error) {
	var before *Turn // an assistant turn that the item may belong to
	if n := len(turns); n > first && turns[n-1].Role == "assistant" {
		before = &turns[n-1]
	}
	kind, _ := r.Body.String(it.Fields["type"])
	if custom, is := strings.CutPrefix(kind, "custom_tool_"); is && r.m.opt.Dialect.CustomTools {
		kind = "custom_" + strings.TrimPrefix(custom, "call_")
	}
	switch kind {
	case "function_call", "custom_call":
		c := r.functionCall(it, kind)
		if before == nil {
			turns = append(turns, Turn{Role: "assistant"})
			before = &turns[len(turns)-1]
		}
		before.Calls = append(before.Calls, c)
		return turns, nil
	case "reasoning":
		if v, ok := r.Body.String(it.Fields["encrypted_content"]); ok && v != "" {
			return nil, Refuse("reasoning with encrypted content")
		}
		reasoning, ok := r.firstText(it.Content)
		if !ok {
			reasoning, _ = r.firstText(it.Fields["summary"])
		}
		if before == nil || len(before.Fields) > 0 {
			turns = append(turns, Turn{Role: "assistant"})
			before = &turns[len(turns)-1]
		}
		before.Fields = reasoningFields(reasoning)
		return turns, nil
	case "function_call_output", "custom_output":
		t, err := r.functionOutput(it)
		return append(turns, t), err
	case "", "message":
		return r.inputMessage(turns, before, it)
	}
	if it.Role != "" {
		return nil, ErrPart
	}
	return nil, Refuse("input item of a type that the engine does not render")
}

// itemField returns an item's text under a key, "" for none.
func (r *Reader) itemField(it *body.Message, key string) template.Value {
	s, _ := r.Body.String(it.Fields[key])
	return template.String(s)
}

// functionCall returns a call. A custom tool's is shown as one of a function whose only argument is its input.
func (r *Reader) functionCall(it *body.Message, kind string) template.Value {
	name, arguments := r.itemField(it, "name"), r.itemField(it, "arguments")
	if kind == "custom_call" {
		arguments = template.NewDict(1).Set("input", r.itemField(it, "input")).Value()
	} else if space := r.itemField(it, "namespace").Text(); space != "" {
		name = inNamespace(space, name.Text())
	}
	return call(r.itemField(it, "call_id"), name, arguments)
}

// inNamespace returns the name under which a template sees a function of a namespace.
func inNamespace(space, name string) template.Value { return template.String(space + "__" + name) }

// functionOutput returns a tool's message.
func (r *Reader) functionOutput(it *body.Message) (Turn, error) {
	t := TextTurn("tool", "")
	t.Fields = []Field{{"tool_call_id", r.itemField(it, "call_id")}}
	out := it.Fields["output"]
	if !out.IsArray() {
		var err error
		t.Items[0].Text, err = r.String(out, "function call output of an unknown form")
		return t, err
	}
	parts, err := r.contentParts(out)
	if err != nil {
		return t, err
	}
	t.Kind = body.List
	t.Items, err = r.inputParts(parts)
	return t, err
}

// inputMessage appends a message; before is the assistant turn preceding it, nil for none.
func (r *Reader) inputMessage(turns []Turn, before *Turn, it *body.Message) ([]Turn, error) {
	if it.Role == "assistant" {
		s, ok := r.Body.String(it.Content)
		if it.Kind == body.List {
			s, ok = r.firstText(it.Content)
		}
		switch {
		case ok && before != nil && before.Kind == body.None:
			before.Kind, before.Items = body.Text, []Item{{Text: s}}
			return turns, nil
		case ok:
			return append(turns, TextTurn("assistant", s)), nil
		}
	}
	t := Turn{Role: it.Role, Kind: it.Kind}
	var err error
	if it.Kind == body.List {
		t.Items, err = r.inputParts(it.Parts)
	} else {
		t = TextTurn(it.Role, "")
		t.Items[0].Text, err = r.String(it.Content, "input item without content that is text or a list")
	}
	t.Message = it // it goes on as a chat's message, with that one's other fields
	return append(turns, t), err
}

// firstText returns the text of a list's first entry.
func (r *Reader) firstText(list gjson.Result) (string, bool) {
	return r.Body.String(body.Last(list.Get("0"), "text"))
}

// inputParts reads the content parts of this API, where an image's detail may be missing.
func (r *Reader) inputParts(parts []body.Part) ([]Item, error) {
	out := make([]Item, 0, len(parts))
	for i := range parts {
		p := &parts[i]
		switch p.Type {
		case "input_text", "output_text", "text":
			text, err := r.String(p.Fields["text"], "text part without valid text")
			if err != nil {
				return nil, err
			}
			out = append(out, Item{Text: text, Kept: p.Type != "text"})
		case "input_image":
			v := p.Fields["image_url"]
			if v.Type != gjson.String || p.Fields["uuid"].Type != gjson.Null {
				return nil, ErrPart // file_id
			}
			detail := "auto"
			if text, ok := r.Body.String(p.Fields["detail"]); ok {
				detail = text
			}
			md := &MediaPart{Modality: "image", Source: v, Part: p.Raw}
			out = append(out, Item{Medium: md, Extras: []Field{{"detail", template.String(detail)}}})
		default:
			return nil, ErrPart
		}
	}
	return out, nil
}

func (m *parameters) settingsResponses(req *body.Request) (s settings, err error) {
	s = settings{tools: template.None, documents: template.None, effort: template.None, generate: true, addSpecial: true}
	s.kwargs, err = m.templateKwargs(req)
	if err != nil {
		return s, err
	}
	if s.kwargs != nil {
		if _, ok := s.kwargs.Get("tokenize"); ok { // this API passes it on to the template's renderer
			return s, ErrPart
		}
	}
	if effort, ok := req.Body.String(body.Last(req.Fields["reasoning"], "effort")); ok {
		s.effort = template.String(effort)
	}
	s.tools, err = m.toolsResponses(req)
	if err != nil {
		return s, err
	}
	return s, m.kwargsAsFields(&s)
}

func (m *parameters) toolsResponses(req *body.Request) (template.Value, error) {
	raw := req.Fields["tools"]
	if raw.Type == gjson.Null {
		return template.None, nil
	}
	list, err := List(req.Body, raw, "tools is not a list")
	if err != nil || len(list.Items()) == 0 {
		return template.None, err
	}
	var shown []template.Value
	for _, tool := range list.Items() {
		functions := []template.Value{tool}
		switch kind := tool.Field("type").Text(); {
		case kind == "function":
		case kind == "namespace":
			functions = nil
			for _, fn := range tool.Field("tools").Items() {
				if fn.Field("type").Text() == "function" {
					functions = append(functions, With(fn, Field{"name", inNamespace(tool.Field("name").Text(), fn.Field("name").Text())}))
				}
			}
		case kind == "custom" && tool.Field("format").Field("type").Text() == "grammar" && m.opt.Dialect.CustomTools:
			return template.None, Refuse("custom tool with a grammar")
		case kind == "custom" && m.opt.Dialect.CustomTools:
			functions[0] = template.NewDict(3).Set("name", tool.Field("name")).Set("description", tool.Field("description")).
				Set("parameters", customParameters).Value()
		case slices.Contains(hiddenTools, kind):
			continue
		default:
			return template.None, ErrPart
		}
		for _, fn := range functions {
			v, err := openAITool(fn, template.None)
			if err != nil {
				return template.None, err
			}
			shown = append(shown, v)
		}
	}
	return template.NewList(shown...), nil
}

// hiddenTools are the types of tools that no template sees. Of custom ones that is so before vLLM 0.32.
var hiddenTools = strings.Fields(`apply_patch code_interpreter computer computer_use_preview custom file_search image_generation local_shell
	mcp shell tool_search web_search web_search_2025_08_26 web_search_preview web_search_preview_2025_03_11`)

// customParameters are those of the function as which a custom tool is shown (vLLM 0.32, tool_parsers/utils.py).
var customParameters, _ = template.FromJSON(`{"type": "object", "properties": {"input": {"type": "string",
	"description": "The freeform text payload for this tool."}}, "required": ["input"], "additionalProperties": false}`)
