package router

import (
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/router/changes"
	"github.com/sightline-router/sightline/router/learned"
)

// clientText is a request as its client wrote it: what is compared of a prompt that no rule reads to its end.
type clientText struct {
	s     *body.Skeleton
	text  strings.Builder
	left  int // bytes that it may have
	parts []changes.Part
	media []changes.Span
	key   func(link string) uint64
	path  *learned.Path  // that names the media, in the same order
	sizes []placedMedium // about how many tokens they have
}

// clientText returns the request's texts and media, in the order in which templates mostly write them; nil: they are too long.
func (r *reading) clientText(l *lookup, key func(link string) uint64, most int) *changes.Input {
	c := clientText{s: &r.body, left: most, key: key, path: l.recalled.path, sizes: l.images}
	fields, messages := r.req.Fields, r.req.Messages
	for _, name := range []string{"instructions", "system"} {
		c.part(changes.System, 0, "", func() { c.value(fields[name]) })
	}
	if tools := fields["tools"]; tools.Exists() {
		c.part(changes.Tools, 0, "", func() { c.raw(tools) })
	}
	c.part(changes.Whole, 0, "", func() { c.value(fields["prompt"]) })
	if input := fields["input"]; input.Type == gjson.String {
		c.part(changes.Message, 1, "user", func() { c.value(input) })
	} else if len(messages) == 0 && input.IsArray() {
		messages, _ = r.body.Messages(input)
	}
	for i := range messages {
		m := &messages[i]
		kind, role := changes.Message, changes.Role(m.Role)
		if i == 0 && (role == "system" || role == "developer") {
			kind = changes.System
		}
		c.add("\n" + role + "\n")
		c.part(kind, i+1, role, func() { c.message(m) })
	}
	if c.left < 0 {
		return nil
	}
	return &changes.Input{Text: c.text.String(), Parts: c.parts, Media: c.media}
}

// add copies a text.
func (c *clientText) add(text string) {
	c.left -= len(text)
	if c.left >= 0 {
		c.text.WriteString(text)
	}
}

// part makes a part of what write adds.
func (c *clientText) part(kind changes.Kind, number int, role string, write func()) {
	at := c.text.Len()
	write()
	if n := c.text.Len() - at; n > 0 {
		c.parts = append(c.parts, changes.Part{Kind: kind, Number: number, Role: role, At: at, Len: n})
	}
}

func (c *clientText) raw(v gjson.Result) {
	for _, piece := range c.s.AppendPieces(nil, v) {
		c.add(string(piece))
	}
}

// value adds a text, or a list of texts and content parts.
func (c *clientText) value(v gjson.Result) {
	switch {
	case v.Type == gjson.String:
		text, _ := c.s.String(v)
		c.add(text)
	case v.IsArray() && v.Get("0").IsObject():
		list, _ := c.s.Parts(v)
		c.content(list)
	case v.Exists():
		c.raw(v)
	}
}

// message adds a message: reasoning, as most templates mark it, then content and calls of tools.
func (c *clientText) message(m *body.Message) {
	for _, name := range []string{"reasoning_content", "reasoning"} {
		if v := m.Fields[name]; v.Type == gjson.String && v.Raw != `""` {
			c.add("<think>\n")
			c.value(v)
			c.add("\n</think>\n\n")
			break
		}
	}
	if m.Kind == body.Text {
		c.value(m.Content)
	}
	c.content(m.Parts)
	if calls := m.Fields["tool_calls"]; calls.IsArray() {
		c.raw(calls)
	}
}

func (c *clientText) content(list []body.Part) {
	for i := range list {
		switch p := &list[i]; {
		case learned.IsMedium(p):
			c.medium(p)
		case p.Fields["text"].Type == gjson.String:
			c.value(p.Fields["text"])
		default:
			c.raw(p.Raw)
		}
	}
}

const mostWordsOfMedium = 1 << 13

// medium adds one that is named by its part of the body, and sized as memory estimates it.
func (c *clientText) medium(p *body.Part) {
	i := len(c.media)
	if i >= min(len(c.path.Media), maxMedia) {
		return
	}
	step := &c.path.Steps[c.path.Media[i].Step]
	md := changes.Span{Offset: c.text.Len(), Length: 1, Key: c.path.Media[i].ID}
	if i < len(c.sizes) {
		md.Length = min(max(1, c.sizes[i].Tokens), mostWordsOfMedium)
	}
	if !step.Untold {
		md.Form.Pixels = int64(step.Bytes)
	}
	for _, v := range p.Fields {
		for _, v := range []gjson.Result{v, body.Last(v, "url")} {
			if text := v.Str; v.Type == gjson.String && strings.HasPrefix(text, "http") {
				base, query, _ := strings.Cut(text, "?")
				if url := c.key(base); md.Form.URL == 0 || url < md.Form.URL { // of several links one, whatever the order of a map
					md.Form.URL, md.Form.Signed = url, query != ""
				}
			}
		}
	}
	c.media = append(c.media, md)
}
