package prompt

import (
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/mmhash/chat"
)

// media keys of a content part in the order in which vLLM looks for them when the part carries a uuid.
var mediaKeys = []struct{ key, modality string }{
	{"image_url", "image"}, {"image_pil", "image"}, {"image_embeds", "image_embeds"}, {"audio_embeds", "audio_embeds"},
	{"prompt_embeds", "prompt_embeds"}, {"audio_url", "audio"}, {"input_audio", "audio"}, {"video_url", "video"},
}

// part reads one content part: a text, or a medium. What vLLM answers with an error is a *Refused
// (vLLM 0.32, entrypoints/chat_utils.py and the OpenAI request types).
func (r *reader) part(p *chat.Part) (text string, md *Medium, err error) {
	if p.Raw.Type == gjson.String { // a bare text in the list
		text, ok := r.body.String(p.Raw)
		if !ok {
			return "", nil, refuse(400, "content part is no valid text")
		}
		return text, nil, nil
	}
	if p.Fields == nil {
		return "", nil, refuse(400, "content part is neither text nor an object")
	}
	uuid, has := p.Fields["uuid"]
	has = has && uuid.Type != gjson.Null
	switch p.Type {
	case "text", "input_text", "output_text", "refusal", "thinking":
		key := map[string]string{"refusal": "refusal", "thinking": "thinking"}[p.Type]
		if key == "" {
			key = "text"
		}
		text, ok := r.body.String(p.Fields[key])
		if !ok {
			return "", nil, refuse(400, "text part without valid text")
		}
		return text, nil, nil
	case "": // the simple forms, {"image_url": "…"}; anything else fails validation
		for _, k := range mediaKeys {
			if v, ok := p.Fields[k.key]; ok && (v.Type == gjson.String || v.Type == gjson.Null && has) {
				return "", r.medium(p, k.modality, v, uuid, has), nil
			}
		}
		return "", nil, refuse(400, "content part without a type")
	}
	key := p.Type
	if has { // with a uuid the first media key counts, whatever the type says
		for _, k := range mediaKeys {
			if _, ok := p.Fields[k.key]; ok {
				key = k.key
				break
			}
		}
	}
	v := p.Fields[key]
	inner := "url"
	modality := ""
	switch key {
	case "image_url":
		modality = "image"
	case "video_url":
		modality = "video"
	case "audio_url":
		modality = "audio"
	case "input_audio":
		modality, inner = "audio", "data"
	case "input_image":
		if _, ok := p.Fields["detail"]; !ok {
			return "", nil, refuse(400, "input_image without detail")
		}
		modality, inner, v = "image", "", p.Fields["image_url"]
	case "image_embeds", "audio_embeds", "prompt_embeds", "image_pil":
		return "", r.medium(p, key, v, uuid, has), nil
	default:
		return "", nil, refuse(400, "content part of an unknown type")
	}
	switch {
	case v.Type == gjson.Null && has:
		return "", r.medium(p, modality, v, uuid, has), nil
	case inner != "" && v.IsObject():
		v = chat.Last(v, inner)
	case inner != "":
		return "", nil, refuse(400, "media part without an object that holds its "+inner)
	}
	if v.Type != gjson.String {
		return "", nil, refuse(400, "media part without a URL")
	}
	return "", r.medium(p, modality, v, uuid, has), nil
}

func (r *reader) medium(p *chat.Part, modality string, source, uuid gjson.Result, has bool) *Medium {
	md := &Medium{Modality: modality, Source: source, HasUUID: has, Part: p.Raw}
	if has {
		md.UUIDPair = uuid
		md.UUID = pyStr(uuid)
		if text, ok := r.body.String(uuid); ok {
			md.UUID = text
		}
	}
	return md
}
