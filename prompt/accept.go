package prompt

import (
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
)

// Which chat messages vLLM (0.32) takes. Its request type gives a choice of types for a message: OpenAI's of each role,
// which take the content parts of that role alone, and one of vLLM's own, which takes any object as a part. The one that
// knows more of the message's fields is chosen, OpenAI's where both know the same; so one part of vLLM's own makes odd
// parts beside it pass.

// accept tells whether vLLM takes a message. The error is a *Refused.
func (r *reader) accept(m *body.Message) error {
	calls := m.Fields["tool_calls"]
	if t := calls.Type; t == gjson.Number || t == gjson.True || t == gjson.False {
		return refuse(400, "tool_calls is no list")
	}
	strict, lenient := strictFields(m), lenientFields(m)
	switch {
	case strict < 0 && lenient < 0:
		return refuse(400, "message with a field of another type than it has, or without one that it needs")
	case m.Role == "assistant" && calls.Type != gjson.Null && !each(calls, isToolCall):
		return refuse(400, "tool call without an id, a type and a function with a name and arguments")
	case strict < lenient || m.Kind != body.List:
		return nil
	}
	for i := range m.Parts {
		if !strictPart(m.Role, &m.Parts[i]) {
			return refuse(400, "content part of a form that the role does not have")
		}
	}
	return nil
}

// Forms of a value in a request.
func isText(v gjson.Result) bool       { return v.Type == gjson.String }
func isTextOrNull(v gjson.Result) bool { return v.Type == gjson.String || v.Type == gjson.Null }

// strictFields counts the fields that OpenAI's type of the role knows; -1 where the message is not of it.
func strictFields(m *body.Message) int {
	n := 1
	content := m.Kind == body.Text || m.Kind == body.List || m.Content.Raw == "{}" // what can be walked through passes
	field := func(key string, ok func(gjson.Result) bool, needed bool) {
		v, given := m.Fields[key]
		switch {
		case n < 0 || !given && !needed:
		case given && ok(v):
			n++
		default:
			n = -1
		}
	}
	switch m.Role {
	case "developer", "system", "user":
		field("name", isText, false)
	case "tool":
		field("tool_call_id", isText, true)
	case "function":
		field("name", isText, true)
		content = m.Kind == body.Text || m.Content.Raw == "null"
	case "assistant":
		field("name", isText, false)
		field("refusal", isTextOrNull, false)
		field("tool_calls", func(v gjson.Result) bool { return v.Type != gjson.Null }, false)
		field("audio", func(v gjson.Result) bool { return v.Type == gjson.Null || isText(body.Last(v, "id")) }, false)
		field("function_call", func(v gjson.Result) bool {
			return v.Type == gjson.Null || isText(body.Last(v, "name")) && isText(body.Last(v, "arguments"))
		}, false)
		if m.Kind == body.None {
			if m.Content.Raw == "null" && n > 0 {
				n++
			}
			return n
		}
	default:
		return -1
	}
	if !content || n < 0 {
		return -1
	}
	return n + 1
}

// lenientFields counts the fields that vLLM's own type knows, those of parts, tool calls and tools too.
func lenientFields(m *body.Message) int {
	n := 1
	switch {
	case m.Kind == body.Text:
		n++
	case m.Kind == body.List:
		n++
		for i := range m.Parts {
			p := &m.Parts[i]
			if p.Fields == nil && p.Raw.Type != gjson.String {
				return -1
			}
			n += knownFields(p)
		}
	case m.Content.Raw != "":
		return -1
	}
	for key, v := range m.Fields {
		var ok bool
		switch key {
		case "name":
			ok = isText(v)
		case "tool_call_id", "task", "reasoning":
			ok = isTextOrNull(v)
		case "reasoning_content": // stands for reasoning, where that is missing or null
			own, both := m.Fields["reasoning"]
			if own.Type != gjson.Null || v.Type == gjson.Null {
				continue
			}
			if ok = isText(v); ok && both {
				continue
			}
		case "tool_calls":
			ok = v.Type == gjson.Null || each(v, isToolCall)
			n += 4 * len(v.Array())
		case "tools":
			ok = v.Type == gjson.Null || v.IsArray() && each(v, isTool)
			n += 3 * len(v.Array())
		default:
			continue
		}
		if !ok {
			return -1
		}
		n++
	}
	return n
}

// each tells that all entries of a list are as they must be. A text that stands for a list is one of letters.
func each(list gjson.Result, ok func(gjson.Result) bool) bool {
	if !list.IsArray() {
		return list.Raw == "{}" || list.Raw == `""`
	}
	all := true
	list.ForEach(func(_, v gjson.Result) bool { all = ok(v); return all })
	return all
}

func isToolCall(v gjson.Result) bool {
	typed := func(inner, text string) bool {
		f := body.Last(v, inner)
		return body.Last(v, "type").String() == inner && isText(body.Last(f, "name")) && isText(body.Last(f, text))
	}
	return isText(body.Last(v, "id")) && (typed("function", "arguments") || typed("custom", "input"))
}

// isTool is a tool as a developer message has it.
func isTool(v gjson.Result) bool {
	f := body.Last(v, "function")
	for _, key := range []string{"description", "parameters", "strict"} {
		v := body.Last(f, key)
		if v.Exists() && (key == "description" && !isText(v) || key == "parameters" && !v.IsObject() || key == "strict" && v.Type != gjson.Null && !v.IsBool()) {
			return false
		}
	}
	return body.Last(v, "type").String() == "function" && isText(body.Last(f, "name"))
}

// knownFields counts the fields of a part that some type of part knows, 0 where it is of none.
func knownFields(p *body.Part) int {
	if p.Fields == nil {
		return 0
	}
	v := p.Fields[p.Type]
	uuid, marked := p.Fields["uuid"]
	switch p.Type {
	case "text", "refusal", "thinking":
		if isText(v) {
			return 2
		}
	case "image_url", "audio_url", "video_url":
		if detail := body.Last(v, "detail"); isText(body.Last(v, "url")) && (p.Type != "image_url" || !detail.Exists() || oneOf(detail, "auto", "low", "high")) {
			return 3
		}
	case "input_audio":
		if isText(body.Last(v, "data")) && oneOf(body.Last(v, "format"), "wav", "mp3") {
			return 4
		}
	case "file":
		if v.IsObject() {
			return 2
		}
	case "image_embeds", "audio_embeds", "video_embeds":
		if v.Exists() && (isTextOrNull(v) || v.IsObject()) {
			return 2
		}
	case "prompt_embeds":
		if isText(p.Fields["data"]) {
			return 2
		}
	case "tool_reference":
		if name, given := p.Fields["name"]; !given || isText(name) {
			return 1
		}
	}
	if marked && !isTextOrNull(uuid) {
		return 0
	}
	for _, key := range []string{"image_url", "audio_url", "video_url"} {
		if v, given := p.Fields[key]; given && isTextOrNull(v) {
			return 1
		}
	}
	if pil, given := p.Fields["image_pil"]; (given || marked) && pil.Type == gjson.Null || !given && marked {
		return 1
	}
	if isText(p.Fields["name"]) && !body.Last(p.Raw, "type").Exists() {
		return 1
	}
	return 0
}

func oneOf(v gjson.Result, texts ...string) bool {
	for _, t := range texts {
		if isText(v) && v.String() == t {
			return true
		}
	}
	return false
}

// strictPart tells whether OpenAI's type of a role takes a part.
func strictPart(role string, p *body.Part) bool {
	if p.Fields == nil || knownFields(p) < 2 {
		return false
	}
	switch p.Type {
	case "text":
		return true
	case "image_url", "input_audio", "file":
		return role == "user"
	case "refusal":
		return role == "assistant"
	}
	return false
}
