package prompt

import (
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/template"
)

// turn is one message, whichever API it came by, before an engine lays it out for the template.
type turn struct {
	role    string
	kind    body.ContentKind // None, Text (one item) or List
	items   []item
	calls   []template.Value // tool calls as the client gave them
	fields  []field          // what else the template may read, in its order
	message *body.Message    // of a chat request
}

// item is one text or one medium of a turn.
type item struct {
	text   string
	medium *Medium        // nil: a text
	part   template.Value // neither: handed to the template as it is
	extras []field        // what a template reads beside the text or the medium
	kept   bool           // a text of a type that keeps a coding client's attribution line
}

type field struct {
	name  string
	value template.Value
}

func textTurn(role, text string) turn {
	return turn{role: role, kind: body.Text, items: []item{{text: text}}}
}

// prose is the turn's one text; ok is false where the content is a list or null.
func (t *turn) prose() (text string, ok bool) {
	if t.kind != body.Text {
		return "", false
	}
	return t.items[0].text, true
}

// reader turns requests into conversations by the engine's rules.
type reader struct {
	m      *Model
	body   *body.Skeleton
	openai bool // content as a list of parts; else one string with placeholders in it
	media  []Medium
	count  map[string]int // of media, by modality
	tally  body.Tally     // of parts in lists that are not a message's content
}

// contentParts reads a list of content parts that is not a message's content: such lists are bounded together.
func (r *reader) contentParts(list gjson.Result) ([]body.Part, error) {
	parts, err := r.body.Parts(list)
	if err == nil {
		err = r.tally.Add(parts)
	}
	if err != nil {
		return nil, ErrMany
	}
	return parts, nil
}

// turns reads chat messages as the engine's request types do.
func (r *reader) turns(messages []body.Message) ([]turn, error) {
	out := make([]turn, len(messages))
	for i := range messages {
		m := &messages[i]
		if m.Role == "" && (!m.HasRole || r.m.opt.Engine != "vllm") {
			return nil, refuse(400, "message without a role")
		}
		if r.m.opt.Engine == "vllm" {
			if err := r.accept(m); err != nil {
				return nil, err
			}
		}
		t := &out[i]
		t.role, t.kind, t.message = m.Role, m.Kind, m
		switch m.Kind {
		case body.None:
		case body.Text:
			text, err := r.string(m.Content, "content is no valid text")
			if err != nil {
				return nil, err
			}
			t.items = []item{{text: text}}
		case body.List:
			t.items = make([]item, 0, len(m.Parts))
			for j := range m.Parts {
				it, skip, err := r.item(&m.Parts[j])
				if err != nil {
					return nil, err
				}
				if !skip {
					t.items = append(t.items, it)
				}
			}
		case body.Other:
			if r.m.opt.Engine != "vllm" { // it takes {} for an empty list
				return nil, refuse(400, "content is neither text nor a list")
			}
		}
		if calls, ok := m.Fields["tool_calls"]; ok && calls.Type != gjson.Null && m.Role == "assistant" {
			v, err := template.FromJSON(r.body.Full(calls))
			if err != nil || v.Kind() != template.KindList && r.m.opt.Engine != "vllm" {
				return nil, refuse(400, "tool_calls is no list")
			}
			t.calls = slices.Clone(v.Items())
			for i := range t.calls {
				if r.m.opt.Engine != "sglang" {
					t.calls[i] = orderedCall(t.calls[i])
				}
			}
		}
	}
	return out, nil
}

func (r *reader) item(p *body.Part) (it item, skip bool, err error) {
	if r.m.opt.Engine == "vllm" {
		return r.partVLLM(p)
	}
	return r.partPlain(p)
}

// text reads a message's field; ok is false where it is missing or no string.
func (r *reader) text(m *body.Message, key string) (string, bool) {
	return r.body.String(m.Fields[key])
}

// string reads a text; reason says what is wrong with what is none.
func (r *reader) string(v gjson.Result, reason string) (string, error) {
	text, ok := r.body.String(v)
	if !ok {
		return "", refuse(400, reason)
	}
	return text, nil
}

// readValue reads any value; reason says what is wrong with one that no engine reads. What only Python reads may be served.
func readValue(body *body.Skeleton, v gjson.Result, reason string) (template.Value, error) {
	text := body.Full(v)
	value, err := template.FromJSON(text)
	switch {
	case err == nil:
		return value, nil
	case template.OnlyPython(text):
		return template.None, ErrPython
	}
	return template.None, refuse(400, reason)
}

// readList reads a list; reason says what is wrong with what is none.
func readList(body *body.Skeleton, v gjson.Result, reason string) (template.Value, error) {
	list, err := readValue(body, v, reason)
	if err != nil {
		return template.None, err
	}
	if list.Kind() != template.KindList {
		return template.None, refuse(400, reason)
	}
	return list, nil
}

// layOut gives each turn as the template's message.
func (r *reader) layOut(turns []turn, message func(*turn) (template.Value, error)) ([]template.Value, error) {
	list := make([]template.Value, len(turns))
	for i := range turns {
		var err error
		if list[i], err = message(&turns[i]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// take notes a medium of the request and gives its number among those of its modality, from 1.
func (r *reader) take(md *Medium) int {
	if r.count == nil {
		r.count = make(map[string]int, 1)
	}
	r.media = append(r.media, *md)
	r.count[md.Modality]++
	return r.count[md.Modality]
}

// parts are a turn's items as the list that a template of the openai format reads.
func (r *reader) parts(items []item) template.Value {
	list := make([]template.Value, 0, len(items))
	for _, it := range items {
		var v template.Value
		switch {
		case it.medium != nil:
			r.take(it.medium)
			v = template.NewDict(1).Set("type", template.String(it.medium.kind())).Value()
		case it.part.Kind() != template.KindInvalid:
			v = it.part
		default:
			v = textPart(it.text)
		}
		if len(it.extras) > 0 { // as many as the client likes: one copy for all
			v = with(v, it.extras...)
		}
		list = append(list, v)
	}
	return template.NewList(list...)
}

func textPart(text string) template.Value {
	return template.NewDict(2).Set("type", template.String("text")).Set("text", template.String(text)).Value()
}

// with is a dict with keys replaced, in their old places, or put behind the others.
func with(dict template.Value, fields ...field) template.Value {
	d := template.NewDict(dict.Dict().Len() + len(fields))
	for _, e := range dict.Dict().Entries() {
		d.Set(e.Key.Text(), e.Value)
	}
	for _, f := range fields {
		d.Set(f.name, f.value)
	}
	return d.Value()
}

// joined puts texts together, the empty ones left out.
func joined(items []item, sep string) string {
	texts := make([]string, 0, len(items))
	for _, it := range items {
		if it.medium == nil && it.text != "" {
			texts = append(texts, it.text)
		}
	}
	return strings.Join(texts, sep)
}
