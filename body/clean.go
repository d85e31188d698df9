package body

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body/jsonread"
	"github.com/sightline-router/sightline/internal/denied"
)

// Clean removes the fields that a client must not set (package denied has the table). It finds each of them, wherever a body may
// hold it, and returns the edits that remove it. It needs no model and does not interpret prompts, so it works on every body that
// is JSON; a body that is not JSON, or too large to be scanned, is judged by its bytes.
//
// It protects only requests that come here: what Envoy passes on without asking (Sightline down or too busy, other paths) is not
// cleaned.

const (
	maxSteering = 4096 // fields removed from one body
	saltKey     = "cache_salt"
)

// Edit replaces body bytes [From, To) with Text.
type Edit struct {
	From, To int
	Text     []byte
}

// Refused means that Sightline answers a request itself, because the request would let a client steer what it must not.
type Refused struct {
	Status int    // HTTP status
	Reason string // a fixed text, never the client's
}

func (e *Refused) Error() string { return fmt.Sprintf("refused (%d): %s", e.Status, e.Reason) }

func refuse(format string, args ...any) error {
	return &Refused{Status: http.StatusBadRequest, Reason: fmt.Sprintf(format, args...)}
}

// Clean returns the edits that remove the table's fields from a body, given as its pieces and as Read has left it with the error
// bad. Each edit removes a pair with its comma, including duplicates and escaped keys, so that the body stays valid JSON. removed,
// if set, is called for each field with the table's name (bootstrap_* for that family), never the client's. The error is a
// *Refused: a content part with a uuid and no data, too many fields, or a body that was not scanned and may contain fields. Cost:
// one pass over the skeleton, or over the body if there is none.
//
// If salt is not nil, the body's own cache_salt is removed too and *salt is inserted, without escapes; "": nothing is inserted.
// With hints, the fields that say what caches should keep are left (denied.Field.Hint).
func Clean(pieces [][]byte, s *Skeleton, bad error, salt *string, hints bool, removed func(field string)) ([]Edit, error) {
	if s.JSON() == "" {
		err := judgeUnread(pieces, bad, hints)
		if err == nil && salt != nil {
			err = &Refused{Status: http.StatusRequestEntityTooLarge, Reason: bad.Error() + ", so no tenant's cache_salt can be put in"}
		}
		return nil, err
	}
	c := cleaner{body: s, in: jsonread.New(s.JSON()), salt: salt, hints: hints, removed: removed}
	if c.in.Peek() != '{' {
		return nil, refuse("%v", ErrObject) // what it holds is not what the table describes
	}
	c.value(denied.InBody)
	if err := c.in.Err(); err != nil && c.refused == nil {
		c.refused = refuse("%v", ErrJSON)
	}
	if c.refused != nil {
		return nil, c.refused
	}
	return c.edits, nil
}

// cleaner walks a skeleton that is known to be valid JSON.
type cleaner struct {
	body    *Skeleton
	in      jsonread.Reader
	salt    *string
	hints   bool
	removed func(field string)
	edits   []Edit
	refused error
}

// value reads the next value, which belongs to this scope.
func (c *cleaner) value(scope denied.Scope) {
	switch first := c.in.Peek(); {
	case first == '{' && scope == denied.InList:
		c.object(denied.InMessage)
	case first == '{' && scope == denied.InContent:
		c.object(denied.InPart)
	case first == '{' && scope != denied.Nowhere:
		c.object(scope)
	case first == '[' && (scope == denied.InList || scope == denied.InContent):
		c.in.List(func() { c.value(scope) })
	default:
		c.in.Skip()
	}
}

// object removes the pairs of one object. A removed pair takes the comma before it along or, if no pair before it is kept, the one
// after it.
func (c *cleaner) object(scope denied.Scope) {
	var part partContent
	own := scope == denied.InBody && c.salt != nil // the salt is put into this object
	begin := c.in.Offset() + 1
	kept := false        // a pair before this one is kept
	lead, last := -1, -1 // start of a removed run at the front; end of the pair before
	c.in.Pairs(func(key string, from int) {
		if strings.IndexByte(key, '\\') >= 0 {
			key = gjson.Parse(`"` + key + `"`).String()
		}
		isNull := c.in.Peek() == 'n'
		f := scope.Field(key)
		if own && key == saltKey {
			f = &denied.Field{Name: saltKey}
		}
		if f != nil && !(f.Hint() && c.hints) {
			part.named = part.named || key == "uuid" && !isNull
			if c.removed != nil {
				c.removed(f.Label())
			}
			c.in.Skip()
			if kept {
				c.remove(last, c.in.Offset())
			} else if lead < 0 {
				lead = from
			}
		} else {
			if lead >= 0 {
				c.remove(lead, from)
				lead = -1
			}
			c.value(scope.Below(key))
			if scope == denied.InPart {
				part.add(key, isNull)
			}
			kept = true
		}
		last = c.in.Offset()
	})
	if lead >= 0 {
		c.remove(lead, last)
	}
	if own && *c.salt != "" && c.in.Err() == nil {
		text, at := `"`+saltKey+`":"`+*c.salt+`"`, c.body.BodyOffset(begin)
		if kept {
			text += ","
		}
		c.edits = slices.Insert(c.edits, 0, Edit{From: at, To: at, Text: []byte(text)})
	}
	if part.named && !part.hasData && c.refused == nil {
		c.refused = refuse("a content part has a uuid and no data: media are named by their content here")
	}
}

func (c *cleaner) remove(from, to int) {
	if len(c.edits) == maxSteering {
		c.refused = refuse("more than %d fields that clients must not send", maxSteering)
		return
	}
	c.edits = append(c.edits, Edit{From: c.body.BodyOffset(from), To: c.body.BodyOffset(to)})
}

// partContent records whether a content part holds anything but a name.
type partContent struct {
	named   bool // by a uuid
	hasData bool // under the first of MediaKeys that exists or, if none does, under another key of content
	media   int  // position, from the end, of the first of MediaKeys that exists; 0: none
}

// add records a pair of the part. Of duplicate keys the last value counts.
func (p *partContent) add(key string, isNull bool) {
	if i := slices.Index(MediaKeys[:], key); i >= 0 {
		if place := len(MediaKeys) - i; place >= p.media {
			p.media, p.hasData = place, !isNull
		}
		return
	}
	switch key {
	case "text", "refusal", "thinking", "content", "output", "source", "file", "file_id", "file_url", "file_data":
		p.hasData = p.hasData || p.media == 0 && !isNull
	}
}

// judgeUnread judges a body that was not scanned, for the reason bad. It returns a *Refused for a body that no engine reads, or
// that one might read differently: Python's json, in front of most engines, accepts NaN, a byte order mark, UTF-16 and UTF-32 and
// encoded surrogates, and deeper nesting than allowed here. It returns nil only for a body that is merely large (such as a batch of
// token ids): the text of one JSON object, without a field of the table. Cost: one pass over the body.
func judgeUnread(pieces [][]byte, bad error, hints bool) error {
	if !errors.Is(bad, ErrLarge) {
		return refuse("%v (want JSON in UTF-8 as RFC 8259 has it: no byte order mark, no NaN, no Infinity)", bad)
	}
	t := objectText{hints: hints}
	for _, p := range pieces {
		t.read(p)
	}
	switch {
	case t.wrong || !t.ended:
		return refuse("%v, and is not the text of a JSON object", bad)
	case t.steers:
		return &Refused{Status: http.StatusRequestEntityTooLarge, Reason: bad.Error() + ", and may hold fields that clients must not send"}
	}
	return nil
}

// objectText goes through a text, piece by piece, for proof that it is one JSON object and for the table's names among its keys, at
// any depth. The proof is about symbols and brackets, not about their order: text of another order is read by no engine, and
// has the same strings for all that try.
type objectText struct {
	open   [maxDepth]byte // the brackets that are open
	depth  int
	ended  bool   // the object was closed
	wrong  bool   // no such text
	steers bool   // a key is one of the table's names or contains an escape, and might be one
	inside bool   // in a string
	escape bool   // after a backslash
	text   []byte // the beginning of the string, up to maxName
	odd    bool   // the string contains an escape
	closed bool   // a string has just ended: a colon makes it a key
	hints  bool   // those of the table may stay
}

const maxName = 64 // bytes; longer than every name of the table

// symbols are the bytes of JSON outside of strings, but for brackets and quotes.
const symbols = ":, \t\r\n0123456789+-.Etruefalsn"

var isSymbol = func() (is [256]bool) {
	for _, c := range []byte(symbols) {
		is[c] = true
	}
	return is
}()

func (t *objectText) read(p []byte) {
	for _, c := range p {
		if t.wrong {
			return
		}
		switch {
		case t.inside && c < ' ':
			t.wrong = true
		case t.inside && t.escape:
			t.escape = false
		case t.inside && c == '\\':
			t.escape, t.odd = true, true
		case t.inside && c != '"':
			if len(t.text) < maxName {
				t.text = append(t.text, c)
			}
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
		case c == '{' || c == '[':
			t.push(c)
		case t.depth == 0: // before the object, or behind it
			t.wrong = true
		case c == '}' || c == ']':
			t.depth--
			t.wrong, t.ended = t.open[t.depth] != c-2, t.depth == 0 // in ASCII both pairs are two apart
			t.closed = false
		case c == '"':
			t.closed, t.inside = t.inside, !t.inside
			if t.inside {
				t.text, t.odd = t.text[:0], false
			}
		case c == ':' && t.closed:
			f := denied.FieldOf(string(t.text))
			t.steers = t.steers || t.odd || f != nil && !(f.Hint() && t.hints)
			t.closed = false
		default:
			t.wrong, t.closed = !isSymbol[c], false
		}
	}
}

// push opens a bracket: the first is the object's, and no deeper ones are allowed than where a body is scanned.
func (t *objectText) push(c byte) {
	if t.depth == len(t.open) || t.ended || t.depth == 0 && c != '{' {
		t.wrong = true
		return
	}
	t.open[t.depth] = c
	t.depth, t.closed = t.depth+1, false
}

// Rename returns the edits that replace the model's name, all of duplicate keys; nil if the name is too long a literal to be one.
func Rename(req *Request, name string) (edits []Edit) {
	text, err := json.Marshal(name)
	if err != nil {
		return nil
	}
	s := req.Body
	gjson.Parse(s.JSON()).ForEach(func(k, v gjson.Result) bool {
		if k.String() != "model" {
			return true
		}
		at := s.offset(v.Raw)
		if _, long := s.Literal(v); long || at < 0 {
			edits = nil
			return false
		}
		from := s.BodyOffset(at)
		edits = append(edits, Edit{From: from, To: from + len(v.Raw), Text: text})
		return true
	})
	return edits
}

// AskUsage returns the edit that asks for the token usage at the end of a streamed answer (stream_options.include_usage of OpenAI's
// completions and chats); none for other APIs, if the answer is no stream, or if the request says itself whether it wants it.
func AskUsage(path string, req *Request) (e Edit, ok bool) {
	s, options := req.Body, req.Fields["stream_options"]
	if path != denied.Chat && path != denied.Completions || req.Fields["stream"].Type != gjson.True {
		return e, false
	}
	const ask = `"include_usage":true`
	at, text := s.offset(options.Raw), ask
	switch {
	case options.Raw == "":
		at, text = strings.IndexByte(s.JSON(), '{')+1, `"stream_options":{`+ask+`},`
	case options.Type == gjson.Null:
		from := s.BodyOffset(at)
		return Edit{From: from, To: from + len("null"), Text: []byte("{" + ask + "}")}, at >= 0
	case !options.IsObject() || options.Get("include_usage").Exists() || at < 0:
		return e, false
	default:
		at++
		options.ForEach(func(_, _ gjson.Result) bool { text = ask + ","; return false })
	}
	from := s.BodyOffset(at)
	return Edit{From: from, To: from, Text: []byte(text)}, true
}
