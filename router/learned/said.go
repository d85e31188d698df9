package learned

import (
	"bytes"
	"hash/maphash"
	"sync/atomic"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
)

// Said reads an answer as its client gets it, and keeps a keyed hash of its text. The next turn's last answer is compared with it: only an
// answer that came back as it was generated can be found in a cache. An answer with tool calls or reasoning, which clients and templates
// write anew, one of several (n), and one that broke off have no hash. It is written by one goroutine; a nil Said does nothing.
type Said struct {
	text  maphash.Hash
	rest  []byte // of a line that is not whole yet
	some  bool
	ended bool // its last part was read
	void  bool
	sum   atomic.Uint64 // 0: there is none
}

const maxSaid = 64 << 10 // bytes of a line; an answer with a longer one has no hash

// NewSaid returns the reader of an answer.
func (h *Hasher) NewSaid() *Said {
	s := new(Said)
	s.text.SetSeed(h.seed)
	return s
}

// Sum returns the hash of the whole text; 0: there is none.
func (s *Said) Sum() uint64 {
	if s == nil {
		return 0
	}
	return s.sum.Load()
}

// Write reads the next bytes of a response's body: a JSON object, or events of Chat Completions or Messages. last: there are no more.
func (s *Said) Write(piece []byte, last bool) {
	if s == nil || s.void || s.sum.Load() != 0 {
		return
	}
	for !s.void {
		line, more, whole := bytes.Cut(piece, []byte("\n"))
		if len(s.rest)+len(line) > maxSaid {
			s.void = true
			break
		}
		if len(s.rest) > 0 || !whole {
			s.rest = append(s.rest, line...)
			line = s.rest
		}
		if !whole && !last {
			return
		}
		s.line(line)
		s.rest, piece = s.rest[:0], more
		if !whole {
			break
		}
	}
	if s.void || last {
		s.rest = nil
	}
	if last && s.some && s.ended && !s.void {
		s.sum.Store(s.text.Sum64() | 1)
	}
}

// line reads a line of the body: an event's data, or the whole of a response.
func (s *Said) line(line []byte) {
	line = bytes.TrimSpace(bytes.TrimPrefix(line, []byte("data:")))
	if len(line) == 0 || line[0] != '{' {
		return
	}
	v := gjson.ParseBytes(line)
	switch v.Get("type").Str {
	case "message":
		s.parts(v.Get("content"))
		s.ended = true
	case "content_block_start":
		s.part(v.Get("content_block"))
	case "content_block_delta":
		s.part(v.Get("delta"))
	case "message_stop":
		s.ended = true
	}
	v.Get("choices").ForEach(func(_, choice gjson.Result) bool {
		s.void = s.void || choice.Get("index").Int() != 0 || s.ended && choice.Get("message").Exists()
		for _, name := range []string{"delta", "message"} {
			s.message(choice.Get(name))
		}
		s.ended = s.ended || choice.Get("finish_reason").Type == gjson.String
		return true
	})
}

// message adds a message, or a part of one.
func (s *Said) message(m gjson.Result) {
	m.ForEach(func(k, v gjson.Result) bool {
		switch k.Str {
		case "role":
		case "content":
			s.add(v.String())
		default:
			s.void = s.void || !isEmpty(v)
		}
		return true
	})
}

func (s *Said) parts(list gjson.Result) {
	list.ForEach(func(_, v gjson.Result) bool {
		s.part(v)
		return true
	})
}

func (s *Said) part(v gjson.Result) {
	if kind := v.Get("type").Str; kind != "text" && kind != "text_delta" {
		s.void = true
	}
	s.add(v.Get("text").String())
}

func (s *Said) add(text string) {
	_, _ = s.text.WriteString(text)
	s.some = s.some || text != ""
}

// isEmpty reports whether a field says nothing: null, or an empty text, list or object.
func isEmpty(v gjson.Result) bool {
	return v.Type == gjson.Null || v.Raw == `""` || v.Raw == "[]" || v.Raw == "{}"
}

// said returns the hash of an answer that a request gives back; 0: it is more than a text.
func (w *walk) said(m *body.Message) uint64 {
	for _, v := range m.Fields {
		if !isEmpty(v) {
			return 0
		}
	}
	s := w.h.NewSaid()
	if m.Kind == body.Text {
		text, ok := w.s.String(m.Content)
		s.add(text)
		s.void = !ok
	}
	for i := range m.Parts {
		p := &m.Parts[i]
		for key, v := range p.Fields {
			s.void = s.void || key != "text" && key != "cache_control" && !isEmpty(v)
		}
		text, ok := w.s.String(p.Fields["text"])
		s.add(text)
		s.void = s.void || !ok || p.Type != "text"
	}
	if s.void || !s.some {
		return 0
	}
	return s.text.Sum64() | 1
}
