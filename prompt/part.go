package prompt

import (
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
)

// MediaPart is one image, video or audio clip of a request, in prompt order.
type MediaPart struct {
	Modality string       // image, video or audio; "other" for those without a rule of their own
	Source   gjson.Result // a string: URL, data URL or base64; null if only a uuid is given
	Prefix   string       // JSON text that turns Source's base64 into a data URL (Anthropic's API); otherwise ""
	HasUUID  bool
	UUID     string // as vLLM reads it: str(value)
	// OpaqueUUID: the uuid is a list or an object, of which vLLM takes Python's repr; that is not computed here.
	OpaqueUUID bool
	Part       gjson.Result // the whole content part
}

// Raw returns the URL or base64 as JSON text without its quotes, in pieces; base64 is not copied.
func (md *MediaPart) Raw(body *body.Skeleton) [][]byte {
	if md.Prefix == "" {
		return body.Raw(md.Source)
	}
	pieces := [][]byte{[]byte(md.Prefix)}
	if md.Source.Type == gjson.String {
		pieces = append(pieces, body.Raw(md.Source)...)
	}
	return pieces
}

// kind returns what templates call the medium: embeddings count as the modality that they embed.
func (md *MediaPart) kind() string { return strings.TrimSuffix(md.Modality, "_embeds") }

// MediaForm returns the modality of a part's type, and the key of its object that holds the source; ok is false for other types.
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

// OpenAIMediaPart reads a part that holds a medium in one of OpenAI's forms.
func OpenAIMediaPart(p *body.Part) (*MediaPart, error) {
	modality, inner, ok := MediaForm(p.Type)
	if !ok {
		return nil, Refuse("content part of an unknown type")
	}
	v := body.Last(p.Fields[p.Type], inner)
	if v.Type != gjson.String {
		return nil, Refuse("media part without a URL")
	}
	return &MediaPart{Modality: modality, Source: v, Part: p.Raw}, nil
}

// OwnTemplateBytes bounds the strings and lists that a request's own chat_template may make.
const OwnTemplateBytes = 32 << 20

// HasOwnTemplate reports whether a request brings its own chat_template.
func HasOwnTemplate(req *body.Request) bool { return req.Fields["chat_template"].Type == gjson.String }

// MediaBytes returns the bytes of the long literals of a request's messages, or of the items of /v1/responses, that hold media.
// Those are read where they are, while any other may be copied and tokenized.
func MediaBytes(req *body.Request) int {
	if req.Body.Long() == 0 {
		return 0
	}
	if input := req.Fields["input"]; len(req.Messages) == 0 && input.IsArray() {
		items, _ := req.Body.Messages(input) // of more than may be read, those that may
		return mediaBytes(req.Body, items)
	}
	return mediaBytes(req.Body, req.Messages)
}

func mediaBytes(b *body.Skeleton, messages []body.Message) (n int) {
	for i := range messages {
		for j := range messages[i].Parts {
			p := &messages[i].Parts[j]
			_, inner, _ := MediaForm(p.Type)
			v := body.Last(p.Fields[p.Type], inner)
			switch p.Type {
			case "image": // of Anthropic's API
				v = body.Last(p.Fields["source"], "data")
			case "input_image":
				v = p.Fields["image_url"]
			}
			long, _ := b.Literal(v)
			n += long.Len
		}
	}
	return n
}
