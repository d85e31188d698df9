package prompt

import (
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/mmhash/chat"
	"github.com/sightline-router/sightline/mmhash/media/name"
	"github.com/sightline-router/sightline/mmhash/prompt/template"
)

// Medium is one image, video or audio clip as a request gives it, in prompt order.
type Medium struct {
	Modality string       // image, video or audio; what has no rule of its own: "other"
	Source   gjson.Result // a string: URL, data URL or base64; null where only a uuid is given
	HasUUID  bool
	UUID     string // as vLLM takes it: str(value)
	// OpaqueUUID: the uuid is a list or an object, of which vLLM takes Python's repr; it is not known here.
	OpaqueUUID bool
	Part       gjson.Result // the whole content part
}

// kind is what templates call the medium: embeddings are taken for what they embed.
func (md *Medium) kind() string { return strings.TrimSuffix(md.Modality, "_embeds") }

// media keys of a content part in the order in which vLLM looks for them when the part carries a uuid.
var mediaKeys = []struct{ key, modality string }{
	{"image_url", "image"}, {"image_pil", "image"}, {"image_embeds", "image_embeds"}, {"audio_embeds", "audio_embeds"},
	{"prompt_embeds", "prompt_embeds"}, {"audio_url", "audio"}, {"input_audio", "audio"}, {"video_url", "video"},
}

// partVLLM reads one content part: a text, or a medium. What vLLM answers with an error is a *Refused
// (vLLM 0.32, renderers/chat_utils.py and the OpenAI request types).
func (r *reader) partVLLM(p *chat.Part) (it item, skip bool, err error) {
	if p.Raw.Type == gjson.String { // a bare text in the list
		if it.text, skip = r.body.String(p.Raw); !skip {
			return it, false, refuse(400, "content part is no valid text")
		}
		return it, false, nil
	}
	if p.Fields == nil {
		return it, false, refuse(400, "content part is neither text nor an object")
	}
	if p.Type == "tool_reference" {
		name, ok := r.body.String(p.Fields["name"])
		if !ok {
			return it, false, refuse(400, "tool_reference without a name")
		}
		if !r.openai {
			return item{text: name}, false, nil
		}
		return item{part: toolReference(name)}, false, nil
	}
	it.text, it.medium, err = r.part(p)
	return it, false, err
}

func toolReference(name string) template.Value {
	d := template.NewDict(2)
	d.Set("type", template.String("tool_reference"))
	d.Set("name", template.String(name))
	return d.Value()
}

// part gives a part's text or its medium.
func (r *reader) part(p *chat.Part) (text string, md *Medium, err error) {
	uuid, has := p.Fields["uuid"]
	has = has && uuid.Type != gjson.Null
	switch p.Type {
	case "text", "input_text", "output_text", "refusal", "thinking":
		key := "text"
		if p.Type == "refusal" || p.Type == "thinking" {
			key = p.Type
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
	case "image_embeds", "audio_embeds":
		if !r.m.opt.MMEmbeds {
			return "", nil, refuse(400, "embeddings as input, without --enable-mm-embeds")
		}
		if modality, inner = key, ""; v.IsObject() { // several tensors by their names
			v = chat.Last(v, key)
		}
	case "video_embeds", "prompt_embeds":
		return "", nil, refuse(400, "embeddings as input, without --enable-mm-embeds")
	case "image_pil":
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
		if text, ok := r.body.String(uuid); ok {
			md.UUID = text
		} else if text, _, err := name.UUID([]byte(uuid.Raw)); err == nil {
			md.UUID = text
		} else {
			md.OpaqueUUID = true
		}
	}
	return md
}

// partPlain reads one content part as SGLang (0.5.23) and TensorRT-LLM (1.x) do: the OpenAI forms and nothing else.
func (r *reader) partPlain(p *chat.Part) (it item, skip bool, err error) {
	trt := r.m.opt.Engine == "trtllm"
	if p.Raw.Type == gjson.String && trt {
		var ok bool
		if it.text, ok = r.body.String(p.Raw); !ok {
			return it, false, refuse(400, "content part is no valid text")
		}
		return it, false, nil
	}
	if p.Fields == nil {
		return it, false, refuse(400, "content part is neither text nor an object")
	}
	key, modality, inner := p.Type, "", "url"
	switch p.Type {
	case "text":
		text, ok := r.body.String(p.Fields["text"])
		if !ok {
			return it, false, refuse(400, "text part without valid text")
		}
		return item{text: text}, false, nil
	case "thinking", "reasoning":
		if trt {
			return it, false, refuse(400, "content part of an unknown type")
		}
		return it, true, nil // SGLang gives templates no such part
	case "tool_reference":
		name, ok := r.body.String(p.Fields["name"])
		if !ok || trt {
			return it, false, refuse(400, "content part of an unknown type")
		}
		return item{part: toolReference(name)}, false, nil
	case "image_url":
		modality = "image"
	case "video_url":
		modality = "video"
	case "audio_url":
		modality = "audio"
	case "input_audio":
		modality, inner = "audio", "data"
	case "image_embeds":
		if !trt {
			return it, false, refuse(400, "content part of an unknown type")
		}
		return item{medium: &Medium{Modality: "image_embeds", Source: chat.Last(p.Fields[key], "data"), Part: p.Raw}}, false, nil
	default:
		return it, false, refuse(400, "content part of an unknown type")
	}
	v := chat.Last(p.Fields[key], inner)
	if v.Type != gjson.String {
		return it, false, refuse(400, "media part without a URL")
	}
	return item{medium: &Medium{Modality: modality, Source: v, Part: p.Raw}}, false, nil
}
