package prompt

import (
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
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

// MediaForm says of a part's type what medium it holds, and under which key of its object; ok is false for other types.
func MediaForm(kind string) (modality, inner string, ok bool) {
	switch kind {
	case "image_url":
		return "image", "url", true
	case "video_url":
		return "video", "url", true
	case "audio_url":
		return "audio", "url", true
	case "input_audio":
		return "audio", "data", true
	}
	return "", "", false
}

// OpenAIMedium reads a part that holds a medium in one of OpenAI's forms.
func OpenAIMedium(p *body.Part) (*Medium, error) {
	modality, inner, ok := MediaForm(p.Type)
	if !ok {
		return nil, Refuse("content part of an unknown type")
	}
	v := body.Last(p.Fields[p.Type], inner)
	if v.Type != gjson.String {
		return nil, Refuse("media part without a URL")
	}
	return &Medium{Modality: modality, Source: v, Part: p.Raw}, nil
}
