package engine

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/internal/steering"
)

// What a client must not say (package steering has the table). Clean finds each of its fields, wherever a body may hold it,
// and gives the edits that take it out. It needs no model and understands no prompt, so it works on every body that is
// JSON.
//
// It is only as good as the way here: what Envoy passes on without asking (Sightline down or too busy, other paths) is
// not cleaned.

const maxSteering = 4096 // fields taken out of one body

// Clean gives the edits that take the table's fields out of a scanned body: each a pair with its comma, every duplicate,
// escaped keys too, so that the body stays valid JSON. The error is a *Refused by
// us: a content part with a uuid and no data, or more fields than anybody needs. removed, if set, is told each field by
// the table's name (bootstrap_* for that family), never by the client's. One pass over the skeleton.
func Clean(body *body.Skeleton, removed func(field string)) ([]Edit, error) {
	c := cleaner{body: body, text: body.JSON(), removed: removed}
	if at := c.space(0); at < len(c.text) {
		c.value(at, steering.InBody)
	}
	if c.refused != nil {
		return nil, c.refused
	}
	return c.edits, nil
}

// cleaner walks a skeleton, which is known to be valid JSON.
type cleaner struct {
	body    *body.Skeleton
	text    string
	removed func(field string)
	edits   []Edit
	refused error
}

// value reads the value that begins at i and gives the offset behind it.
func (c *cleaner) value(i int, in steering.Scope) int {
	switch c.text[i] {
	case '"':
		return c.stringEnd(i)
	case '{':
		switch in {
		case steering.InList:
			return c.object(i, steering.InMessage)
		case steering.InContent:
			return c.object(i, steering.InPart)
		case steering.Nowhere:
			return c.skip(i)
		}
		return c.object(i, in)
	case '[':
		if in == steering.InList || in == steering.InContent {
			return c.list(i, in)
		}
		return c.skip(i)
	}
	for i < len(c.text) && !strings.ContainsRune(",]} \t\r\n", rune(c.text[i])) {
		i++
	}
	return i
}

func (c *cleaner) list(i int, in steering.Scope) int {
	for {
		i = c.space(i + 1) // behind the bracket or comma
		if c.text[i] == ']' {
			return i + 1
		}
		i = c.space(c.value(i, in))
		if c.text[i] == ']' {
			return i + 1
		}
	}
}

// object removes the pairs of one object. A pair that goes takes the comma in front of it along, or, where nothing is
// kept in front, the one behind it.
func (c *cleaner) object(i int, in steering.Scope) int {
	var p partFacts
	kept := false        // a pair before this one stays
	lead, last := -1, -1 // where a removed run at the front begins; where the pair before ended
	for {
		if i = c.space(i + 1); c.text[i] == '}' {
			break
		}
		from := i
		i = c.stringEnd(i)
		key := c.text[from+1 : i-1]
		if strings.IndexByte(key, '\\') >= 0 {
			key = gjson.Parse(c.text[from:i]).String()
		}
		i = c.space(c.space(i) + 1) // the colon
		if f := in.Field(key); f != nil {
			p.uuid = p.uuid || key == "uuid" && c.text[i] != 'n'
			if c.removed != nil {
				c.removed(f.Label())
			}
			to := c.value(i, steering.Nowhere)
			if kept {
				c.remove(last, to)
			} else if lead < 0 {
				lead = from
			}
			i, last = to, to
		} else {
			if lead >= 0 {
				c.remove(lead, from)
				lead = -1
			}
			at := i
			i = c.value(i, in.Below(key))
			if in == steering.InPart {
				p.note(key, c.text[at:i])
			}
			kept, last = true, i
		}
		if i = c.space(i); c.text[i] == '}' {
			break
		}
	}
	if lead >= 0 {
		c.remove(lead, last)
	}
	if p.uuid && !p.hasData() && c.refused == nil {
		c.refused = &Refused{Status: 400, Reason: "a content part has a uuid and no data: media are named by their content here", ByUs: true}
	}
	return i + 1
}

func (c *cleaner) remove(from, to int) {
	if len(c.edits) == maxSteering {
		c.refused = &Refused{Status: 400, Reason: fmt.Sprintf("more than %d fields that clients must not send", maxSteering), ByUs: true}
		return
	}
	c.edits = append(c.edits, Edit{From: c.body.BodyOffset(from), To: c.body.BodyOffset(to)})
}

func (c *cleaner) space(i int) int {
	for i < len(c.text) && (c.text[i] == ' ' || c.text[i] == '\n' || c.text[i] == '\t' || c.text[i] == '\r') {
		i++
	}
	return i
}

// stringEnd is behind the closing quote of the string that begins at i.
func (c *cleaner) stringEnd(i int) int {
	for i++; ; {
		q := i + strings.IndexByte(c.text[i:], '"')
		n := q
		for c.text[n-1] == '\\' {
			n--
		}
		if i = q + 1; (q-n)&1 == 0 {
			return i
		}
	}
}

// skip is behind the list or object that begins at i.
func (c *cleaner) skip(i int) int {
	for depth := 0; ; {
		switch c.text[i] {
		case '"':
			i = c.stringEnd(i)
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
}

// partFacts tells whether a content part holds anything but a name.
type partFacts struct {
	uuid  bool
	media [len(mediaKeys)]byte // first byte of the value; 0: no such key
	other bool
}

// mediaKeys in the order in which vLLM looks for them in a part with a uuid: the first one counts, null or not.
var mediaKeys = [...]string{"image_url", "image_pil", "image_embeds", "audio_embeds", "prompt_embeds", "audio_url", "input_audio", "video_url"}

func (p *partFacts) note(key, value string) {
	for i, k := range mediaKeys {
		if k == key {
			p.media[i] = value[0]
			return
		}
	}
	switch key {
	case "text", "refusal", "thinking", "content", "output", "source", "file", "file_id", "file_url", "file_data":
		p.other = p.other || value[0] != 'n'
	}
}

func (p *partFacts) hasData() bool {
	for _, v := range p.media {
		if v != 0 {
			return v != 'n'
		}
	}
	return p.other
}

// Unread judges a body that Scan refused with err. The result is a *Refused by us for what no engine reads, or one might
// read otherwise than we do: Python's json, in front of most engines, takes NaN, a byte order mark, UTF-16 and UTF-32 and
// encoded surrogates, and a body that is nested deeper than here. Only one that is merely large goes on as it is (a batch
// of token ids may be), nil, if it has no field of the table; one pass over the body.
func Unread(skeleton [][]byte, err error) error {
	if !errors.Is(err, body.ErrLarge) {
		return &Refused{Status: 400, Reason: err.Error() + " (want JSON in UTF-8 as RFC 8259 has it: no byte order mark, no NaN, no Infinity)", ByUs: true}
	}
	var k keys
	for _, p := range skeleton {
		if k.find(p) {
			return &Refused{Status: 413, Reason: err.Error() + ", and may hold fields that clients must not send", ByUs: true}
		}
	}
	return nil
}

// keys looks for the table's names among a JSON text's keys, piece by piece, wherever they stand.
type keys struct {
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
func (k *keys) find(p []byte) bool {
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
