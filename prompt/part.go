package prompt

import (
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/template"
)

// Medium is one image, video or audio clip as a request gives it, in prompt order.
type Medium struct {
	Modality string       // image, video or audio; what has no rule of its own: "other"
	Source   gjson.Result // a string: URL, data URL or base64; null where only a uuid is given
	Prefix   string       // JSON text that makes a data URL of Source's base64 (Anthropic's API); "" for all else
	HasUUID  bool
	UUID     string // as vLLM takes it: str(value)
	// OpaqueUUID: the uuid is a list or an object, of which vLLM takes Python's repr; it is not known here.
	OpaqueUUID bool
	Part       gjson.Result // the whole content part
}

// Raw is the URL or base64 as JSON text without its quotes, in pieces; base64 is not copied.
func (md *Medium) Raw(body *body.Skeleton) [][]byte {
	if md.Prefix == "" {
		return body.Raw(md.Source)
	}
	pieces := [][]byte{[]byte(md.Prefix)}
	if md.Source.Type == gjson.String {
		pieces = append(pieces, body.Raw(md.Source)...)
	}
	return pieces
}

// kind is what templates call the medium: embeddings are taken for what they embed.
func (md *Medium) kind() string { return strings.TrimSuffix(md.Modality, "_embeds") }

// mediaForms says of a part's type what medium it holds, and under which key of its object.
var mediaForms = map[string]struct{ modality, inner string }{
	"image_url": {"image", "url"}, "video_url": {"video", "url"}, "audio_url": {"audio", "url"}, "input_audio": {"audio", "data"},
}

// partFields are the fields that vLLM 0.32's types of parts have; templates get the others as they are.
var partFields = []string{"audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil", "image_url", "input_audio", "name",
	"prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid", "video_embeds", "video_url"}

// partVLLM reads one content part: a text, or a medium. What vLLM answers with an error is a *Refused
// (vLLM 0.32, renderers/chat_utils.py).
func (r *reader) partVLLM(p *body.Part) (it item, skip bool, err error) {
	if p.Raw.Type == gjson.String { // a bare text in the list
		it.text, err = r.string(p.Raw, "content part is no valid text")
		return it, false, err
	}
	if p.Fields == nil {
		return it, false, refuse(400, "content part is neither text nor an object")
	}
	if r.openai {
		if it.extras, err = r.extras(p); err != nil {
			return it, false, err
		}
	}
	uuid, marked := p.Fields["uuid"]
	if marked = marked && uuid.Type != gjson.Null; !marked {
		it.kept = p.Type != "text"
		switch p.Type {
		case "text", "input_text", "output_text":
			return r.textPart(it, p.Fields["text"], p.Type == "text")
		case "refusal", "thinking":
			return r.textPart(it, p.Fields[p.Type], p.Type == "refusal")
		case "tool_reference":
			name, err := r.string(p.Fields["name"], "tool_reference without a name")
			if !r.openai {
				return item{text: name}, false, err
			}
			return item{part: toolReference(name)}, false, err
		}
	}
	it.medium, err = r.mediumVLLM(p, uuid, marked)
	return it, false, err
}

// textPart reads a part's text. One that is no text is left to the template; null is no part where skips says so.
func (r *reader) textPart(it item, v gjson.Result, skips bool) (_ item, skip bool, err error) {
	text, ok := r.body.String(v)
	switch {
	case ok:
		it.text = text
	case v.Type == gjson.Null && (skips || !r.openai):
		return it, true, nil
	case v.Type == gjson.String && r.m.mistral != nil && template.OnlyPython(r.body.Full(v)):
		return it, false, ErrPython
	case v.Type == gjson.String || !r.openai:
		return it, false, refuse(400, "text part without valid text")
	default:
		value, err := readValue(r.body, v, "text part without valid text")
		if err != nil {
			return it, false, err
		}
		it.part = with(textPart(""), field{"text", value})
	}
	return it, false, nil
}

// extras are a part's fields that no type of part has, in their order.
func (r *reader) extras(p *body.Part) (list []field, err error) {
	known := 0
	for key := range p.Fields {
		if slices.Contains(partFields, key) {
			known++
		}
	}
	if known == len(p.Fields) {
		return nil, nil
	}
	all, err := template.FromJSON(r.body.Full(p.Raw))
	if err != nil {
		return nil, refuse(400, "content part cannot be read")
	}
	for _, e := range all.Dict().Entries() {
		if !slices.Contains(partFields, e.Key.Text()) {
			list = append(list, field{e.Key.Text(), e.Value})
		}
	}
	return list, nil
}

func toolReference(name string) template.Value {
	return template.NewDict(2).Set("type", template.String("tool_reference")).Set("name", template.String(name)).Value()
}

// mediumVLLM reads a part that is no text: by its type, or by the first media key where it has a uuid or no type.
func (r *reader) mediumVLLM(p *body.Part, uuid gjson.Result, marked bool) (*Medium, error) {
	key := p.Type
	if bare := key == "" && !body.Last(p.Raw, "type").Exists(); bare || marked {
		if i := slices.IndexFunc(body.MediaKeys[:], func(k string) bool { _, ok := p.Fields[k]; return ok }); i >= 0 {
			key = body.MediaKeys[i]
		} else {
			return nil, refuse(400, "content part without a type")
		}
	} else if key == "image_url" && p.Fields[key].Type == gjson.String {
		return nil, refuse(400, "media part without an object that holds its url")
	}
	v := p.Fields[key]
	form, known := mediaForms[key]
	modality, inner := form.modality, form.inner
	switch key {
	case "input_image":
		if !oneOf(p.Fields["detail"], "low", "high", "auto", "original") {
			return nil, refuse(400, "input_image without detail")
		}
		modality, inner, v = "image", "", p.Fields["image_url"]
	case "image_embeds", "audio_embeds":
		if !r.m.opt.MMEmbeds {
			return nil, refuse(400, "embeddings as input, without --enable-mm-embeds")
		}
		if modality, inner = strings.Clone(key), ""; v.IsObject() { // several tensors by their names
			v = body.Last(v, key)
		}
	case "video_embeds", "prompt_embeds":
		return nil, refuse(400, "embeddings as input, without --enable-mm-embeds")
	case "image_pil":
		return r.medium(p, key, v, uuid, marked), nil
	default:
		if !known {
			return nil, refuse(400, "content part of an unknown type")
		}
	}
	switch {
	case v.Type == gjson.Null && marked:
		return r.medium(p, modality, v, uuid, marked), nil
	case inner != "" && v.IsObject():
		v = body.Last(v, inner)
	case inner != "" && (p.Type != "" || key == "input_audio"):
		return nil, refuse(400, "media part without an object that holds its "+inner)
	}
	if v.Type != gjson.String {
		return nil, refuse(400, "media part without a URL")
	}
	return r.medium(p, modality, v, uuid, marked), nil
}

func (r *reader) medium(p *body.Part, modality string, source, uuid gjson.Result, has bool) *Medium {
	md := &Medium{Modality: modality, Source: source, HasUUID: has, Part: p.Raw}
	if has {
		if text, ok := r.body.String(uuid); ok {
			md.UUID = text
		} else if text, ok := uuidText(uuid.Raw); ok {
			md.UUID = text
		} else {
			md.OpaqueUUID = true
		}
	}
	return md
}

// partPlain reads one content part as SGLang (0.5.23) and TensorRT-LLM (1.x) do: the OpenAI forms and nothing else.
func (r *reader) partPlain(p *body.Part) (it item, skip bool, err error) {
	trt := r.m.opt.Engine == "trtllm"
	if p.Raw.Type == gjson.String && trt {
		it.text, err = r.string(p.Raw, "content part is no valid text")
		return it, false, err
	}
	if p.Fields == nil {
		return it, false, refuse(400, "content part is neither text nor an object")
	}
	form, known := mediaForms[p.Type]
	switch p.Type {
	case "text":
		it.text, err = r.string(p.Fields["text"], "text part without valid text")
		return it, false, err
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
	case "image_embeds":
		if !trt {
			return it, false, refuse(400, "content part of an unknown type")
		}
		return item{medium: &Medium{Modality: "image_embeds", Source: body.Last(p.Fields[p.Type], "data"), Part: p.Raw}}, false, nil
	default:
		if !known {
			return it, false, refuse(400, "content part of an unknown type")
		}
	}
	v := body.Last(p.Fields[p.Type], form.inner)
	if v.Type != gjson.String {
		return it, false, refuse(400, "media part without a URL")
	}
	return item{medium: &Medium{Modality: form.modality, Source: v, Part: p.Raw}}, false, nil
}
