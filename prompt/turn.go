package prompt

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/template"
	"github.com/sightline-router/sightline/prompt/vision"
)

// Turn is one message of any API, before the engine's rules convert it for the template.
type Turn struct {
	Role    string
	Kind    body.ContentKind // Text has one item, Other none
	Items   []Item
	Calls   []template.Value // tool calls of other APIs than chat; see Reader.ToolCalls
	Fields  []Field          // other fields that the template may read, in its order
	Message *body.Message    // of a chat request; nil for other APIs
}

// Item is one text or one medium of a turn.
type Item struct {
	Text   string
	Medium *MediaPart     // nil: a text
	Part   template.Value // if neither: passed to the template as it is
	Extras []Field        // other fields of the part that a template reads
	Kept   bool           // a text of a type that keeps a coding client's attribution line
}

// Field is an entry of a dict.
type Field struct {
	Name  string
	Value template.Value
}

// TextTurn is a turn of one text.
func TextTurn(role, text string) Turn {
	return Turn{Role: role, Kind: body.Text, Items: []Item{{Text: text}}}
}

// SingleText returns the turn's only text; ok is false if the content is a list or null.
func (t *Turn) SingleText() (text string, ok bool) {
	if t.Kind != body.Text {
		return "", false
	}
	return t.Items[0].Text, true
}

// OnlyText reports whether no item is a medium or a part for the template.
func OnlyText(items []Item) bool {
	return !slices.ContainsFunc(items, func(it Item) bool { return it.Medium != nil || it.Part.Kind() != template.KindInvalid })
}

// Reader turns one request into conversations by the engine's rules. Not safe for concurrent use.
type Reader struct {
	Body   *body.Skeleton
	OpenAI bool // the template expects content as a list of parts; else as one string with placeholders

	m     *Renderer
	t     *chatTemplate // nil if none is rendered
	media []MediaPart
	count map[string]int   // of media, by modality
	tally body.PartCounter // of parts in lists that are not a message's content
}

// reader returns a Reader for a request whose chat is rendered by t; nil: by no template.
func (m *Renderer) reader(body *body.Skeleton, t *chatTemplate) *Reader {
	return &Reader{Body: body, OpenAI: t != nil && t.openai, m: m, t: t}
}

// Options returns the server's options.
func (r *Reader) Options() *Options { return &r.m.opt }

// Facts returns what the engines do for the model's family.
func (r *Reader) Facts() vision.Facts { return r.m.facts }

// Mentions reports whether the template's source contains a text.
func (r *Reader) Mentions(text string) bool { return r.t.Mentions(text) }

// Placeholder returns the text that stands for the k-th medium of a modality in the model's prompts; ok is false if there is none.
func (r *Reader) Placeholder(modality string, k int) (string, bool) {
	if r.m.vision == nil {
		return "", false
	}
	return r.m.vision.Placeholder(modality, k)
}

// Take records a medium, in prompt order, and returns its number within its modality, from 1.
func (r *Reader) Take(md *MediaPart) int {
	if r.count == nil {
		r.count = make(map[string]int, 1)
	}
	r.media = append(r.media, *md)
	r.count[md.Modality]++
	return r.count[md.Modality]
}

// String reads a text; reason is the error for other values.
func (r *Reader) String(v gjson.Result, reason string) (string, error) {
	text, ok := r.Body.String(v)
	if !ok {
		return "", Refuse(reason)
	}
	return text, nil
}

// maxJSONText bounds the text of one value, in bytes. The text is copied once, and its strings again if they have escapes.
const maxJSONText = 16 << 20

// Value reads any value; reason is the error for one that no engine reads. A text that only Python reads is an *Unpredicted.
func Value(b *body.Skeleton, v gjson.Result, reason string) (template.Value, error) {
	if from, to := b.BodyRange(v); to-from > maxJSONText {
		return template.None, ErrTemplateLimit
	}
	text := b.Full(v)
	value, err := template.FromJSON(text)
	if err != nil {
		return template.None, cmp.Or(Unread(text, err), Refuse(reason))
	}
	return value, nil
}

// Unread classifies a text for which template.FromJSON returned err: an error if an engine may read it nevertheless, else nil.
func Unread(text string, err error) error {
	switch {
	case errors.Is(err, template.ErrLimit):
		return ErrTemplateLimit
	case err != nil && template.OnlyPython(text):
		return ErrPython
	}
	return nil
}

// List reads a list; reason is the error for other values.
func List(b *body.Skeleton, v gjson.Result, reason string) (template.Value, error) {
	list, err := Value(b, v, reason)
	if err == nil && list.Kind() != template.KindList {
		return template.None, Refuse(reason)
	}
	return list, err
}

// EachTurn returns the list of f's result for each turn.
func (r *Reader) EachTurn(turns []Turn, f func(*Reader, *Turn) (template.Value, error)) ([]template.Value, error) {
	list := make([]template.Value, len(turns))
	for i := range turns {
		var err error
		list[i], err = f(r, &turns[i])
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

// contentParts reads a list of content parts that is not a message's content. All such lists share one bound.
func (r *Reader) contentParts(list gjson.Result) ([]body.Part, error) {
	parts, err := r.Body.Parts(list)
	if err == nil {
		err = r.tally.Add(parts)
	}
	if err != nil {
		return nil, ErrTooMany
	}
	return parts, nil
}

// turns reads chat messages as the engine's request types do.
func (r *Reader) turns(messages []body.Message) ([]Turn, error) {
	out := make([]Turn, len(messages))
	for i := range messages {
		m, t := &messages[i], &out[i]
		t.Role, t.Kind, t.Message = m.Role, m.Kind, m
		switch m.Kind {
		case body.Text:
			text, err := r.String(m.Content, "content is not valid text")
			if err != nil {
				return nil, err
			}
			t.Items = []Item{{Text: text}}
		case body.List:
			t.Items = make([]Item, 0, len(m.Parts))
			for j := range m.Parts {
				it, ok, err := r.m.opt.Dialect.Part(r, &m.Parts[j])
				if err != nil {
					return nil, err
				}
				if ok {
					t.Items = append(t.Items, it)
				}
			}
		}
	}
	return out, nil
}

// ToolCalls returns a turn's tool calls as templates read them, None for none. A chat's calls begin with the keys of OpenAI's type,
// in that type's order. arguments converts the arguments that the client gave.
func (r *Reader) ToolCalls(t *Turn, arguments func(template.Value) (template.Value, error)) (template.Value, error) {
	calls := t.Calls
	if t.Message != nil && t.Role == "assistant" && t.Message.Fields["tool_calls"].Type != gjson.Null {
		list, err := Value(r.Body, t.Message.Fields["tool_calls"], "tool_calls cannot be read")
		if err != nil {
			return template.None, err
		}
		for _, call := range list.Items() {
			calls = append(calls, orderedCall(call))
		}
	}
	if len(calls) == 0 {
		return template.None, nil
	}
	return EachOf(calls, func(call template.Value) (template.Value, error) {
		fn := call.Field("function")
		if kind, typed := call.Get("type"); fn.Dict() == nil || typed && kind.Text() != "function" {
			return template.None, Refuse("tool call without a function")
		}
		args, err := arguments(fn.Field("arguments"))
		return With(call, Field{"function", With(fn, Field{"arguments", args})}), err
	})
}

// orderedCall returns a tool call as OpenAI's request types dump it.
func orderedCall(call template.Value) template.Value {
	return Ordered(call, "function", []string{"arguments", "name"}, "id", "function", "type")
}

// Parts returns a turn's items as the list that a template of the openai format reads.
func (r *Reader) Parts(items []Item) template.Value {
	list := make([]template.Value, 0, len(items))
	for _, it := range items {
		var v template.Value
		switch {
		case it.Medium != nil:
			r.Take(it.Medium)
			v = template.NewDict(1).Set("type", template.String(it.Medium.kind())).Value()
		case it.Part.Kind() != template.KindInvalid:
			v = it.Part
		default:
			v = TextPart(template.String(it.Text))
		}
		if len(it.Extras) > 0 { // a client may send any number: one copy for all
			v = With(v, it.Extras...)
		}
		list = append(list, v)
	}
	return template.NewList(list...)
}

// TextPart returns a text in the form of a template's content parts.
func TextPart(text template.Value) template.Value {
	return template.NewDict(2).Set("type", template.String("text")).Set("text", text).Value()
}

// ToolReference returns the mention of a tool in the form of a template's content parts.
func ToolReference(name string) template.Value {
	return template.NewDict(2).Set("type", template.String("tool_reference")).Set("name", template.String(name)).Value()
}

// JoinText joins the items' texts, without the empty ones.
func JoinText(items []Item, sep string) string {
	texts := make([]string, 0, len(items))
	for _, it := range items {
		if it.Medium == nil && it.Text != "" {
			texts = append(texts, it.Text)
		}
	}
	return strings.Join(texts, sep)
}

// With returns a copy of a dict with fields replaced in place, or appended if they are new.
func With(dict template.Value, fields ...Field) template.Value {
	d := template.NewDict(dict.Dict().Len() + len(fields))
	for _, e := range dict.Dict().Entries() {
		d.Set(e.Key.Text(), e.Value)
	}
	for _, f := range fields {
		d.Set(f.Name, f.Value)
	}
	return d.Value()
}

// Ordered returns a dict with the given keys first, in this order; likewise the dict in it under the key inner.
func Ordered(v template.Value, inner string, innerKeys []string, keys ...string) template.Value {
	if v.Dict() == nil {
		return v
	}
	d := template.NewDict(v.Dict().Len())
	for _, key := range keys {
		if e, ok := v.Get(key); ok {
			if key == inner {
				e = Ordered(e, "", nil, innerKeys...)
			}
			d.Set(key, e)
		}
	}
	for _, e := range v.Dict().Entries() {
		if key := e.Key.Text(); !slices.Contains(keys, key) {
			d.Set(key, e.Value)
		}
	}
	return d.Value()
}

// EachOf returns the list of f's result for each item.
func EachOf(items []template.Value, f func(template.Value) (template.Value, error)) (template.Value, error) {
	out := make([]template.Value, len(items))
	for i, v := range items {
		var err error
		out[i], err = f(v)
		if err != nil {
			return template.None, err
		}
	}
	return template.NewList(out...), nil
}

// Kinds of a value in a request.
func isText(v gjson.Result) bool { return v.Type == gjson.String }
