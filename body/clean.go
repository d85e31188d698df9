package body

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body/jsonread"
	"github.com/sightline-router/sightline/internal/steering"
)

// What a client must not say (package steering has the table). Clean finds each of its fields, wherever a body may hold
// it, and gives the edits that take it out. It needs no model and understands no prompt, so it works on every body that is
// JSON; what is none, or too large to be read, is judged by its bytes.
//
// It is only as good as the way here: what Envoy passes on without asking (Sightline down or too busy, other paths) is
// not cleaned.

const (
	maxSteering = 4096 // fields taken out of one body
	saltKey     = "cache_salt"
)

// Edit replaces body bytes [From, To) by Text.
type Edit struct {
	From, To int
	Text     []byte
}

// Refused says that a request is answered by us, because it would let a client steer what it must not.
type Refused struct {
	Status int    // HTTP status
	Reason string // our words, never the client's
}

func (e *Refused) Error() string { return fmt.Sprintf("refused (%d): %s", e.Status, e.Reason) }

func refuse(format string, args ...any) error {
	return &Refused{Status: http.StatusBadRequest, Reason: fmt.Sprintf(format, args...)}
}

// Clean gives the edits that take the table's fields out of a body, given as its pieces and as Read has left it with the
// error bad: each a pair with its comma, every duplicate, escaped keys too, so that the body stays valid JSON. removed, if
// set, is told each field by the table's name (bootstrap_* for that family), never by the client's. The error is a *Refused:
// a content part with a uuid and no data, more fields than anybody needs, or a body that was not scanned and may hold
// fields. One pass over the skeleton, or over the body where there is none.
//
// With salt, the body's own cache_salt goes too, and the salt is put in its place, without escapes; "": none is.
func Clean(pieces [][]byte, s *Skeleton, bad error, salt *string, removed func(field string)) ([]Edit, error) {
	if s.JSON() == "" {
		err := judgeUnread(pieces, bad)
		if err == nil && salt != nil {
			err = &Refused{Status: http.StatusRequestEntityTooLarge, Reason: bad.Error() + ", so no tenant's cache_salt can be put in"}
		}
		return nil, err
	}
	c := cleaner{body: s, in: jsonread.New(s.JSON()), salt: salt, removed: removed}
	c.value(steering.InBody)
	if err := c.in.Err(); err != nil && c.refused == nil {
		c.refused = refuse("%v", ErrJSON)
	}
	if c.refused != nil {
		return nil, c.refused
	}
	return c.edits, nil
}

// cleaner walks a skeleton, which is known to be valid JSON.
type cleaner struct {
	body    *Skeleton
	in      jsonread.Reader
	salt    *string
	removed func(field string)
	edits   []Edit
	refused error
}

// value reads the next value, which stands in a place of this scope.
func (c *cleaner) value(scope steering.Scope) {
	switch first := c.in.Peek(); {
	case first == '{' && scope == steering.InList:
		c.object(steering.InMessage)
	case first == '{' && scope == steering.InContent:
		c.object(steering.InPart)
	case first == '{' && scope != steering.Nowhere:
		c.object(scope)
	case first == '[' && (scope == steering.InList || scope == steering.InContent):
		c.in.List(func() { c.value(scope) })
	default:
		c.in.Skip()
	}
}

// object removes the pairs of one object. A pair that goes takes the comma in front of it along, or, where nothing is
// kept in front, the one behind it.
func (c *cleaner) object(scope steering.Scope) {
	var part partContent
	own := scope == steering.InBody && c.salt != nil // a cache_salt in here is replaced
	begin := c.in.Offset() + 1
	kept := false        // a pair before this one stays
	lead, last := -1, -1 // where a removed run at the front begins; where the pair before ended
	c.in.Pairs(func(key string, from int) {
		if strings.IndexByte(key, '\\') >= 0 {
			key = gjson.Parse(`"` + key + `"`).String()
		}
		isNull := c.in.Peek() == 'n'
		f := scope.Field(key)
		if own && key == saltKey {
			f = &steering.Field{Name: saltKey}
		}
		if f != nil {
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
			if scope == steering.InPart {
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

// partContent tells whether a content part holds anything but a name.
type partContent struct {
	named   bool // by a uuid
	hasData bool // under the first of MediaKeys that is there, or, where none is, under another key of content
	media   int  // of the first of MediaKeys that is there, its place from the end; 0: none is
}

// add notes a pair of the part. Of a key that stands twice the last value counts.
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

// judgeUnread judges a body that was not scanned, for the reason bad. The result is a *Refused for what no engine reads, or
// one might read otherwise than we do: Python's json, in front of most engines, takes NaN, a byte order mark, UTF-16 and
// UTF-32 and encoded surrogates, and a body that is nested deeper than here. Only one that is merely large goes on as it is
// (a batch of token ids may be), nil, if it has no field of the table; one pass over the body.
func judgeUnread(pieces [][]byte, bad error) error {
	if !errors.Is(bad, ErrLarge) {
		return refuse("%v (want JSON in UTF-8 as RFC 8259 has it: no byte order mark, no NaN, no Infinity)", bad)
	}
	var k keyFinder
	if slices.ContainsFunc(pieces, k.find) {
		return &Refused{Status: http.StatusRequestEntityTooLarge, Reason: bad.Error() + ", and may hold fields that clients must not send"}
	}
	return nil
}

// keyFinder looks for the table's names among a JSON text's keys, piece by piece, wherever they stand.
type keyFinder struct {
	begun  bool
	inside bool   // a string
	escape bool   // behind a backslash
	text   []byte // the string's beginning, as far as a name may be long
	odd    bool   // the string has an escape
	closed bool   // a string has just ended: a colon makes it a key
}

const maxName = 64 // bytes; longer than every name of the table

// find reads a piece. True: there is a name of the table, a key with an escape, which might be one, or a text that is not
// UTF-8: JSON begins with an ASCII character and has no NUL (json.detect_encoding, Python 3.13).
func (k *keyFinder) find(p []byte) bool {
	for _, c := range p {
		switch {
		case c == 0 || !k.begun && c >= utf8.RuneSelf:
			return true
		case k.inside && k.escape:
			k.escape = false
		case k.inside && c == '\\':
			k.escape, k.odd = true, true
		case c == '"':
			k.closed = k.inside
			if k.inside = !k.inside; k.inside {
				k.text, k.odd = k.text[:0], false
			}
		case k.inside:
			if len(k.text) < maxName {
				k.text = append(k.text, c)
			}
		case c == ':' && k.closed:
			if k.odd || steering.FieldOf(string(k.text)) != nil {
				return true
			}
			k.closed = false
		case c != ' ' && c != '\t' && c != '\n' && c != '\r':
			k.closed = false
		}
		k.begun = true
	}
	return false
}
