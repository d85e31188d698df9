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
func Clean(pieces [][]byte, s *Skeleton, bad error, salt *string, removed func(field string)) ([]Edit, error) {
	if s.JSON() == "" {
		err := judgeUnread(pieces, bad)
		if err == nil && salt != nil {
			err = &Refused{Status: http.StatusRequestEntityTooLarge, Reason: bad.Error() + ", so no tenant's cache_salt can be put in"}
		}
		return nil, err
	}
	c := cleaner{body: s, in: jsonread.New(s.JSON()), salt: salt, removed: removed}
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
	own := scope == denied.InBody && c.salt != nil // a cache_salt in this object is replaced
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
// token ids) and contains no field of the table. Cost: one pass over the body.
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

// keyFinder searches the keys of a JSON text, at any depth, for the table's names, piece by piece.
type keyFinder struct {
	begun  bool
	inside bool   // in a string
	escape bool   // after a backslash
	text   []byte // the beginning of the string, up to maxName
	odd    bool   // the string contains an escape
	closed bool   // a string has just ended: a colon makes it a key
}

const maxName = 64 // bytes; longer than every name of the table

// find reads a piece. It returns true for one of the table's names, for a key with an escape, which might be one, and for text that
// is not UTF-8: JSON begins with an ASCII character and contains no NUL (json.detect_encoding, Python 3.13).
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
			k.inside = !k.inside
			if k.inside {
				k.text, k.odd = k.text[:0], false
			}
		case k.inside:
			if len(k.text) < maxName {
				k.text = append(k.text, c)
			}
		case c == ':' && k.closed:
			if k.odd || denied.FieldOf(string(k.text)) != nil {
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
