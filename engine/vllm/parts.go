package vllm

import (
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt"
)

// This file reads content parts as vLLM does (0.32, renderers/chat_utils.py).

// partFields are the fields of vLLM's part types; templates get all other fields unchanged.
var partFields = []string{"audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil",
	"image_url", "input_audio", "name",
	"prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid", "video_embeds", "video_url"}

// part reads one content part: a text, or a medium. ok is false if the part does not reach the prompt.
func part(r *prompt.Reader, p *body.Part) (it prompt.Item, ok bool, err error) {
	if p.Raw.Type == gjson.String { // a bare string in the list
		it.Text, err = r.String(p.Raw, "content part is not valid text")
		return it, true, err
	}
	if p.Fields == nil {
		return it, false, prompt.Refuse("content part is neither text nor an object")
	}
	if r.OpenAI {
		it.Extras, err = extras(r, p)
		if err != nil {
			return it, false, err
		}
	}
	uuid := p.Fields["uuid"]
	if uuid.Type == gjson.Null {
		it.Kept = p.Type != "text"
		switch p.Type {
		case "text", "input_text", "output_text":
			return textPart(r, it, p.Fields["text"], p.Type == "text")
		case "refusal", "thinking":
			return textPart(r, it, p.Fields[p.Type], p.Type == "refusal")
		case "tool_reference":
			return toolReference(r, p)
		}
	}
	it.Medium, err = medium(r, p, uuid)
	return it, true, err
}

// toolReference reads the mention of a tool. Its name is a text in templates that get texts, and whatever it is in others.
func toolReference(r *prompt.Reader, p *body.Part) (it prompt.Item, ok bool, err error) {
	name, given := p.Fields["name"]
	if !r.OpenAI {
		if given && name.Type == gjson.Null {
			return it, false, nil
		}
		it.Text, err = r.String(name, "tool_reference without a name")
		return it, true, err
	}
	if !given {
		return it, false, prompt.Refuse("tool_reference without a name")
	}
	value, err := prompt.Value(r.Body, name, "name of a tool_reference cannot be read")
	return prompt.Item{Part: prompt.With(prompt.ToolReference(""), prompt.Field{Name: "name", Value: value})}, true, err
}

// textPart reads a part's text. A text that is not a string is left to the template. If skips is set, null drops the part.
func textPart(r *prompt.Reader, it prompt.Item, v gjson.Result, skips bool) (_ prompt.Item, ok bool, err error) {
	text, ok := r.Body.String(v)
	switch {
	case ok:
		it.Text = text
	case v.Type == gjson.Null && (skips || !r.OpenAI):
		return it, false, nil
	case v.Type != gjson.String && !r.OpenAI:
		return it, false, prompt.Refuse("text part without valid text")
	default:
		value, err := prompt.Value(r.Body, v, "text part without valid text")
		if err != nil {
			return it, false, err
		}
		it.Part = prompt.TextPart(value)
	}
	return it, true, nil
}

// extras returns a part's fields that no part type has, in their order.
func extras(r *prompt.Reader, p *body.Part) (list []prompt.Field, err error) {
	known := 0
	for key := range p.Fields {
		if slices.Contains(partFields, key) {
			known++
		}
	}
	if known == len(p.Fields) {
		return nil, nil
	}
	all, err := prompt.Value(r.Body, p.Raw, "content part cannot be read")
	if err != nil {
		return nil, err
	}
	list = make([]prompt.Field, 0, len(p.Fields)-known)
	for _, e := range all.Dict().Entries() {
		if !slices.Contains(partFields, e.Key.Text()) {
			list = append(list, prompt.Field{Name: e.Key.Text(), Value: e.Value})
		}
	}
	return list, nil
}

// medium reads a part that is not text: by its type, or by its first media key if it has a uuid or no type.
func medium(r *prompt.Reader, p *body.Part, uuid gjson.Result) (*prompt.MediaPart, error) {
	key, marked := p.Type, uuid.Type != gjson.Null
	if marked || key == "" && !body.Last(p.Raw, "type").Exists() {
		key = ""
		for _, k := range body.MediaKeys {
			if _, ok := p.Fields[k]; ok && key == "" {
				key = k
			}
		}
	}
	v := p.Fields[key]
	modality, inner, known := prompt.MediaForm(key)
	switch key {
	case "input_image":
		if detail := p.Fields["detail"].String(); !slices.Contains([]string{"low", "high", "auto", "original"}, detail) {
			return nil, prompt.Refuse("input_image without detail")
		}
		modality, v = "image", p.Fields["image_url"]
	case "image_embeds", "audio_embeds":
		modality, inner = strings.Clone(key), key // or several tensors by name
	case "image_pil":
		return named(r, p, key, v, uuid), nil
	default:
		if !known {
			return nil, prompt.Refuse("content part of an unknown type")
		}
	}
	switch {
	case marked && v.Type == gjson.Null:
		return named(r, p, modality, v, uuid), nil
	case inner != "" && v.IsObject():
		v = body.Last(v, inner)
	case known && (p.Type != "" || key == "input_audio"): // vLLM reads a bare string only from parts without a type
		return nil, prompt.Refuse("media part without an object that holds its " + inner)
	}
	if v.Type != gjson.String {
		return nil, prompt.Refuse("media part without a URL")
	}
	return named(r, p, modality, v, uuid), nil
}

// named returns a part's medium with the client's uuid, if it has one.
func named(r *prompt.Reader, p *body.Part, modality string, source, uuid gjson.Result) *prompt.MediaPart {
	md := &prompt.MediaPart{Modality: modality, Source: source, HasUUID: uuid.Type != gjson.Null, Part: p.Raw}
	if md.HasUUID {
		if text, ok := r.Body.String(uuid); ok {
			md.UUID = text
		} else if text, ok := uuidText(uuid.Raw); ok {
			md.UUID = text
		} else {
			md.OpaqueUUID = true
		}
	}
	return md
}
