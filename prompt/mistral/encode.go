package mistral

import (
	"cmp"
	"slices"
	"strings"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/template"
	"github.com/sightline-router/sightline/prompt/tokenizer"
)

// Encoded is a request as token ids. IDs holds one [IMG] for each image; Images are the images' parts in prompt order.
type Encoded struct {
	IDs    []uint32
	Images []*body.Part
}

// Encode makes the prompt of a request. The error is a *RefusedError, ErrPython, or says what is not supported (audio).
func (t *Tokenizer) Encode(r *Request) (Encoded, error) {
	list, err := t.read(r)
	if err != nil {
		return Encoded{}, err
	}
	size := 64
	for i := range r.Messages {
		size += len(r.Messages[i].Content.Raw)/3 + 16
	}
	e := encoder{t: t, ids: make([]uint32, 0, size), tools: readTools(r.Tools), done: r.Done, max: r.Max}
	if t.effort != nil {
		e.effort = cmp.Or(r.Effort, t.effort.Default)
	}
	list, e.system = t.normalize(list)
	e.messages(list)
	if e.err != nil {
		return Encoded{}, e.err
	}
	return Encoded{IDs: e.ids, Images: e.images}, nil
}

// encoder writes one prompt. Output after its first error is ignored.
type encoder struct {
	t      *Tokenizer
	ids    []uint32
	images []*body.Part
	tools  []template.Value
	system string // up to version 3
	effort string // version 15
	done   <-chan struct{}
	max    int
	err    error
}

func (e *encoder) fail(err error) {
	if e.err == nil {
		e.err = err
	}
}

func (e *encoder) control(ids ...uint32) { e.ids = append(e.ids, ids...) }

func (e *encoder) text(text string) {
	e.ids = e.t.text.Encode(e.ids, text, tokenizer.Options{PlainSpecials: true, Done: e.done, Max: e.max})
}

// json writes a value as json.dumps(v, ensure_ascii=False) does.
func (e *encoder) json(v template.Value) {
	text, err := template.AppendJSON(nil, v)
	e.fail(err)
	e.text(string(text))
}

// content writes a text or a list of chunks.
func (e *encoder) content(m *message) {
	if m.kind == body.Text {
		e.text(m.text)
	} else {
		e.chunks(m.chunks)
	}
}

func (e *encoder) messages(list []message) {
	firstUser, lastUser := -1, -1
	for i := range list {
		if list[i].role == "user" {
			lastUser = i
			if firstUser < 0 {
				firstUser = i
			}
		}
	}
	e.control(e.t.id.bos)
	for i := range list {
		m := &list[i]
		switch m.role {
		case "user":
			e.user(m, i == firstUser, i == lastUser)
		case "assistant":
			e.assistant(m, i < lastUser)
		case "tool":
			e.result(m, i < lastUser)
		case "system":
			e.control(e.t.id.system)
			e.content(m)
			e.control(e.t.id.systemEnd)
		}
		if e.err != nil {
			return
		}
	}
}

func (e *encoder) user(m *message, first, last bool) {
	id, v := &e.t.id, e.t.version
	if v == 1 {
		text := m.text
		if first && e.system != "" {
			text = e.system + "\n\n" + text
		}
		e.text("[INST] " + text + " [/INST]")
		return
	}
	if v >= 13 && first || v < 13 && last {
		if len(e.tools) > 0 {
			e.control(id.tools)
			e.json(template.NewList(e.tools...))
			e.control(id.toolsEnd)
		}
		if e.effort != "" {
			e.control(id.settings)
			e.text(`{"reasoning_effort": "` + e.effort + `"}`)
			e.control(id.settingsEnd)
		}
	}
	e.control(id.inst)
	system := ""
	if last && e.system != "" {
		system = e.system + "\n\n"
	}
	if m.kind == body.Text {
		e.text(system + m.text)
	} else {
		if system != "" {
			e.text(system)
		}
		e.chunks(imageFirst(m.chunks))
	}
	e.control(id.instEnd)
}

// imageFirst moves an image that has only text before it to the front.
func imageFirst(list []chunk) []chunk {
	n := len(list) - 1
	if n < 1 || list[n].kind != imageChunk || slices.ContainsFunc(list[:n], func(c chunk) bool { return c.kind != textChunk }) {
		return list
	}
	return append([]chunk{list[n]}, list[:n]...)
}

func (e *encoder) chunks(list []chunk) {
	id := &e.t.id
	for _, c := range list {
		switch c.kind {
		case textChunk:
			e.text(c.text)
		case imageChunk:
			if !e.t.images {
				e.fail(refuse("image for a tokenizer without an image encoder"))
			}
			e.control(id.img)
			e.images = append(e.images, c.part)
		case thinkChunk:
			if !id.canThink {
				e.fail(refuse("reasoning for a tokenizer without tokens for it"))
			}
			e.control(id.think)
			e.text(c.text)
			if !c.open {
				e.control(id.thinkEnd)
			}
		}
	}
}

func (e *encoder) assistant(m *message, beforeLastUser bool) {
	v := e.t.version
	calling := len(m.calls) > 0
	switch {
	case v == 1 && calling:
		e.fail(refuse("tool calls, which version 1 has no form for"))
	case v == 2 && calling && beforeLastUser:
		return // version 2 drops calls of earlier turns
	}
	switch {
	case m.kind == body.List:
		e.chunks(m.chunks)
	case v == 1:
		e.text(m.text)
	case m.text != "":
		e.text(strings.TrimRight(m.text, " "))
	}
	if calling {
		e.calls(m.calls)
	}
	if !m.prefix {
		e.control(e.t.id.eos)
	}
}

func (e *encoder) calls(calls []call) {
	id, v := &e.t.id, e.t.version
	if v < 11 { // a JSON list
		list := make([]template.Value, 0, len(calls))
		for _, c := range calls {
			d := template.NewDict(3).Set("name", template.String(c.name)).Set("arguments", c.arguments)
			if v >= 3 && c.id != "" && c.id != "null" {
				d.Set("id", template.String(c.id))
			}
			list = append(list, d.Value())
		}
		e.control(id.calls)
		e.json(template.NewList(list...))
		return
	}
	for _, c := range calls {
		e.control(id.calls)
		e.text(c.name)
		if v == 11 {
			e.control(id.callID)
			e.text(c.id)
		}
		e.control(id.args)
		e.json(c.arguments)
	}
}

// result writes a tool's result.
func (e *encoder) result(m *message, beforeLastUser bool) {
	id, v := &e.t.id, e.t.version
	if v == 1 {
		e.fail(refuse("tool results, which version 1 has no form for"))
	}
	if v == 2 && beforeLastUser {
		return
	}
	e.control(id.results)
	switch {
	case v < 7:
		e.jsonResult(m)
	case v < 13:
		e.text(m.callID)
		e.control(id.toolContent)
		e.text(m.text)
	default:
		e.content(m)
	}
	e.control(id.resultsEnd)
}

// jsonResult writes a result as JSON; a content that is itself JSON is embedded as such.
func (e *encoder) jsonResult(m *message) {
	content := template.NewDict(0).Value()
	if m.text != "" {
		var err error
		content, err = parseJSON(m.text)
		if err != nil {
			e.fail(err)
			return
		}
	}
	if e.t.version >= 3 {
		e.json(template.NewDict(2).Set("content", content).Set("call_id", template.String(m.callID)).Value())
		return
	}
	name := template.None
	if m.name != nil {
		name = template.String(*m.name)
	}
	e.json(template.NewList(template.NewDict(2).Set("name", name).Set("content", content).Value()))
}
