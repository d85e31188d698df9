package mistral

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/template"
)

// Request is a chat request as vLLM passes it to mistral-common.
type Request struct {
	Body     *body.Skeleton
	Messages []body.Message
	Tools    template.Value  // a list; None for none
	Continue bool            // continue_final_message
	Effort   string          // reasoning_effort, "" for none
	Done     <-chan struct{} // ends the tokenization, see tokenizer.Options
	Max      int             // bounds it, likewise
}

// message is a chat message in mistral-common's form.
type message struct {
	role   string // system, user, assistant or tool
	kind   body.ContentKind
	text   string  // if kind is Text
	chunks []chunk // if kind is List
	calls  []call
	callID string  // of a tool's message
	name   *string // of a tool's message
	prefix bool    // to be continued
}

type chunkKind uint8

const (
	textChunk chunkKind = iota
	thinkChunk
	imageChunk
)

// chunk is a part of a content list.
type chunk struct {
	kind chunkKind
	text string
	open bool       // a thought to be continued
	part *body.Part // of an image
}

// call is an assistant's call of a tool.
type call struct {
	id, name  string
	arguments template.Value // a dict
}

// ErrPython means that a text is valid only in Python, where mistral-common may accept it: an unpaired surrogate becomes U+FFFD in
// its byte tokenizers.
var ErrPython = errors.New("text with half of a surrogate pair")

// text reads a text; reason is the error for other values.
func text(body *body.Skeleton, v gjson.Result, reason string) (string, error) {
	text, ok := body.String(v)
	switch {
	case ok:
		return text, nil
	case v.Type == gjson.String && template.OnlyPython(body.Full(v)):
		return "", ErrPython
	}
	return "", refuse(reason)
}

// errAudio means that the length of audio in tokens is not known here.
var errAudio = audioError{}

type audioError struct{}

func (audioError) Error() string { return "audio in mistral mode is not read" }

// read converts the messages of a request to mistral-common's form (its from_openai, after vLLM's own changes).
func (t *Tokenizer) read(r *Request) ([]message, error) {
	if len(r.Messages) == 0 {
		return nil, refuse("no messages")
	}
	list := make([]message, len(r.Messages))
	for i := range r.Messages {
		if err := t.readMessage(r.Body, &r.Messages[i], &list[i]); err != nil {
			return nil, err
		}
	}
	list[len(list)-1].prefix = r.Continue
	return list, nil
}

func (t *Tokenizer) readMessage(skeleton *body.Skeleton, in *body.Message, m *message) (err error) {
	switch m.role = in.Role; m.role {
	case "user", "assistant", "tool", "system":
	case "developer":
		m.role = "system"
	default:
		return refuse("message of an unknown role")
	}
	m.kind = in.Kind
	switch in.Kind {
	case body.None:
		if m.role != "assistant" {
			return refuse("message without content")
		}
	case body.Text:
		m.text, err = text(skeleton, in.Content, "content is not valid text")
		if err != nil {
			return err
		}
	case body.List:
		m.chunks = make([]chunk, 0, len(in.Parts))
		for i := range in.Parts {
			c, err := t.readPart(skeleton, &in.Parts[i])
			if err != nil {
				return err
			}
			if !t.allowed(m.role, c.kind) {
				return refuse("content part that a message of this role cannot have")
			}
			m.chunks = append(m.chunks, c)
		}
	default:
		return refuse("content is neither text nor a list")
	}
	switch m.role {
	case "assistant":
		if err := m.readThought(t, skeleton, in); err != nil {
			return err
		}
		return t.readCalls(skeleton, in.Fields["tool_calls"], m)
	case "tool":
		id, err := text(skeleton, in.Fields["tool_call_id"], "message of a tool without tool_call_id")
		if err != nil {
			return err
		}
		m.callID = tail(id)
		if !t.goodCallID(m.callID) {
			return refuse("tool result with an id that is not allowed")
		}
		if name := in.Fields["name"]; name.Type != gjson.Null {
			text, err := text(skeleton, name, "a tool's name is not a string")
			if err != nil {
				return err
			}
			m.name = &text
		}
	}
	return nil
}

// empty reports whether Python would treat the content as false.
func (m *message) empty() bool { return m.text == "" && len(m.chunks) == 0 }

// goodCallID accepts nine ASCII letters and digits for versions 3 to 11, anything for 13 and later; "null" means none.
func (t *Tokenizer) goodCallID(id string) bool {
	switch {
	case t.version < 3:
		return true
	case t.version >= 13:
		return id != "" && id != "null"
	}
	id = strings.TrimSuffix(id, "\n") // like $ in Python
	return len(id) == 9 && !strings.ContainsFunc(id, func(r rune) bool {
		return (r|0x20 < 'a' || r|0x20 > 'z') && (r < '0' || r > '9')
	})
}

// allowed reports whether a message of this role may have such a part.
func (t *Tokenizer) allowed(role string, kind chunkKind) bool {
	switch kind {
	case imageChunk:
		return role == "user" && t.version >= 3 || role == "tool" && t.version >= 15
	case thinkChunk:
		return role == "assistant" && t.version >= 11 || role == "system" && t.version >= 7 && t.version < 15
	}
	return true
}

func (t *Tokenizer) readPart(body *body.Skeleton, p *body.Part) (chunk, error) {
	const other = "content part that mistral-common does not read"
	switch p.Type {
	case "text":
		text, err := text(body, p.Fields["text"], other)
		return chunk{text: text}, err
	case "thinking":
		closed := p.Fields["closed"]
		if closed.Exists() && !closed.IsBool() {
			break
		}
		text, err := text(body, p.Fields["thinking"], other)
		return chunk{kind: thinkChunk, text: text, open: closed.Type == gjson.False}, err
	case "image_url":
		if goodImage(body, p.Fields["image_url"]) {
			return chunk{kind: imageChunk, part: p}, nil
		}
		if notBase64(body, p.Fields["image_url"]) {
			return chunk{}, &RefusedError{501, "data URL in another encoding than base64"}
		}
	case "input_audio", "audio_url":
		if t.audio {
			return chunk{}, errAudio
		}
	}
	return chunk{}, refuse(other)
}

// goodURL reports whether mistral-common 1.13 accepts a URL's scheme (tokens/tokenizers/image.py): lower case only, though vLLM
// accepts any case.
func goodURL(body *body.Skeleton, v gjson.Result) bool {
	url := begin(body, v, len("file://"))
	if strings.Contains(url, `\`) {
		url, _ = body.String(v)
	}
	return strings.HasPrefix(url, "data:") || strings.HasPrefix(url, "file://") || strings.HasPrefix(url, "http")
}

// begin returns the first bytes of a text as they stand in the body, escapes included; "" for other values.
func begin(body *body.Skeleton, v gjson.Result, bytes int) string {
	var out []byte
	for _, p := range body.Raw(v) { // nil: not a text
		out = append(out, p[:min(len(p), bytes-len(out))]...)
		if len(out) == bytes {
			break
		}
	}
	return string(out)
}

// notBase64 reports whether an image_url is a data URL whose head does not end with ";base64" in lower case. vLLM 0.32 loads media
// before it calls mistral-common, and answers 501 to such a URL (MediaConnector._load_data_url).
func notBase64(body *body.Skeleton, v gjson.Result) bool {
	if v.IsObject() {
		v = v.Get("url")
	}
	head, _, found := strings.Cut(begin(body, v, maxDataHead), ",")
	return found && len(head) >= 5 && strings.EqualFold(head[:5], "data:") && !strings.HasSuffix(head, ";base64")
}

// maxDataHead is how much of a data URL is searched for its first comma, in bytes.
const maxDataHead = 1024

// goodImage reports whether an image_url is a URL, or an object with a URL and at most a detail besides.
func goodImage(body *body.Skeleton, v gjson.Result) bool {
	if !v.IsObject() {
		return v.Type == gjson.String && goodURL(body, v)
	}
	good, url := true, false
	v.ForEach(func(key, v gjson.Result) bool {
		switch key.String() {
		case "url":
			url = v.Type == gjson.String && goodURL(body, v)
		case "detail":
			good = v.Type == gjson.String || v.Type == gjson.Null
		default:
			good = false
		}
		return good
	})
	return good && url
}

// readThought puts an assistant's reasoning in front of its content. vLLM uses reasoning_content if there is no reasoning.
func (m *message) readThought(t *Tokenizer, skeleton *body.Skeleton, in *body.Message) error {
	v := in.Fields["reasoning"]
	if v.Type == gjson.Null {
		v = in.Fields["reasoning_content"]
	}
	if v.Type == gjson.Null {
		return nil
	}
	text, err := text(skeleton, v, "reasoning is not a string")
	if err != nil {
		return err
	}
	if !t.allowed(m.role, thinkChunk) || slices.ContainsFunc(m.chunks, func(c chunk) bool { return c.kind == thinkChunk }) {
		return refuse("reasoning of an assistant that cannot have it")
	}
	if m.kind == body.Text {
		m.chunks = []chunk{{text: m.text}}
	}
	m.kind, m.chunks = body.List, slices.Insert(m.chunks, 0, chunk{kind: thinkChunk, text: text})
	return nil
}

func (t *Tokenizer) readCalls(body *body.Skeleton, calls gjson.Result, m *message) error {
	if calls.Type == gjson.Null {
		return nil
	}
	raw := body.Full(calls)
	list, err := template.FromJSON(raw)
	if err := unread(raw, err); err != nil {
		return err
	}
	if err != nil || list.Kind() != template.KindList {
		return refuse("tool_calls is not a list")
	}
	for _, v := range list.Items() {
		fn := v.Field("function")
		c := call{id: tail(v.Field("id").Text()), name: fn.Field("name").Text(), arguments: fn.Field("arguments")}
		if !t.goodCallID(c.id) {
			return refuse("tool call with an id that is not allowed")
		}
		if raw := c.arguments.Text(); c.arguments.IsString() {
			c.arguments, err = template.FromJSON(raw)
			if err := unread(raw, err); err != nil {
				return err
			}
		}
		if c.arguments.Dict() == nil { // vLLM replaces anything else by an empty object
			c.arguments = template.NewDict(0).Value()
		}
		m.calls = append(m.calls, c)
	}
	return nil
}

// unread classifies a text for which FromJSON returned err: an error if mistral-common may accept it nevertheless, else nil.
func unread(text string, err error) error {
	switch {
	case errors.Is(err, template.ErrLimit):
		return err
	case err != nil && template.OnlyPython(text):
		return ErrPython
	}
	return nil
}

// tail returns the last nine characters of a tool call's id, as vLLM does.
func tail(id string) string {
	from := len(id)
	for range 9 {
		_, n := utf8.DecodeLastRuneInString(id[:from])
		from -= n
	}
	return id[from:]
}

// readTools returns the tools as the prompt holds them: type and function, with name, description and parameters.
func readTools(list template.Value) []template.Value {
	out := make([]template.Value, 0, len(list.Items()))
	for _, tool := range list.Items() {
		fn := tool.Field("function")
		about, parameters := fn.Field("description"), fn.Field("parameters")
		if about.IsNone() {
			about = template.String("")
		}
		if parameters.IsNone() {
			parameters = template.NewDict(0).Value()
		}
		f := template.NewDict(3).Set("name", fn.Field("name")).Set("description", about).Set("parameters", parameters)
		out = append(out, template.NewDict(2).Set("type", template.String("function")).Set("function", f.Value()).Value())
	}
	return out
}
