package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// A tokenizer.json is one small description around two long lists, the vocabulary and the merges. encoding/json would
// need half a second and many times the file's size for them, so they are read here in place: the reader steps through
// objects and lists and hands out strings that point into the file. The small parts are cut out as raw text and given to
// encoding/json, which also checks them.

var errShort = errors.New("unexpected end of JSON")

// jsonReader walks over one JSON text.
type jsonReader struct {
	b   []byte
	i   int
	buf []byte // for strings with escapes
}

func (r *jsonReader) fail(want string) error {
	if r.i >= len(r.b) {
		return errShort
	}
	return fmt.Errorf("offset %d: want %s, got %q", r.i, want, r.b[r.i])
}

// peek skips white space and gives the next byte, 0 at the end.
func (r *jsonReader) peek() byte {
	for r.i < len(r.b) {
		switch c := r.b[r.i]; c {
		case ' ', '\n', '\t', '\r':
			r.i++
		default:
			return c
		}
	}
	return 0
}

func (r *jsonReader) expect(c byte) error {
	if r.peek() != c {
		return r.fail("'" + string(c) + "'")
	}
	r.i++
	return nil
}

// object calls fn for every key of an object; fn must read or skip the value. The key is valid until the next string.
func (r *jsonReader) object(fn func(key []byte) error) error {
	return r.members('{', '}', func() error {
		key, err := r.str()
		if err == nil {
			err = r.expect(':')
		}
		if err != nil {
			return err
		}
		return fn(key)
	})
}

// list calls fn for every element of a list; fn must read or skip it.
func (r *jsonReader) list(fn func() error) error { return r.members('[', ']', fn) }

func (r *jsonReader) members(open, end byte, fn func() error) error {
	if err := r.expect(open); err != nil {
		return err
	}
	if r.peek() == end {
		r.i++
		return nil
	}
	for {
		if err := fn(); err != nil {
			return err
		}
		switch r.peek() {
		case ',':
			r.i++
		case end:
			r.i++
			return nil
		default:
			return r.fail("',' or '" + string(end) + "'")
		}
	}
}

// str reads a string. Without escapes it points into the input, else into a buffer that the next string reuses.
// Bytes that are not UTF-8 and lone surrogates become U+FFFD.
func (r *jsonReader) str() ([]byte, error) {
	if err := r.expect('"'); err != nil {
		return nil, err
	}
	start := r.i
	for i := start; i < len(r.b); i++ {
		switch c := r.b[i]; {
		case c == '"':
			r.i = i + 1
			if s := r.b[start:i]; utf8.Valid(s) {
				return s, nil
			}
			return bytes.ToValidUTF8(r.b[start:i], []byte("\uFFFD")), nil
		case c == '\\':
			return r.escaped(start, i)
		}
	}
	r.i = len(r.b)
	return nil, errShort
}

// escaped finishes a string whose first backslash stands at i.
func (r *jsonReader) escaped(start, i int) ([]byte, error) {
	out := append(r.buf[:0], r.b[start:i]...)
	for i < len(r.b) {
		c := r.b[i]
		if c == '"' {
			r.i, r.buf = i+1, out
			if !utf8.Valid(out) {
				return bytes.ToValidUTF8(out, []byte("\uFFFD")), nil
			}
			return out, nil
		}
		if c != '\\' {
			out = append(out, c)
			i++
			continue
		}
		if i+1 >= len(r.b) {
			break
		}
		switch c := r.b[i+1]; c {
		case '"', '\\', '/':
			out = append(out, c)
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			u, ok := hex4(r.b, i+2)
			if !ok {
				r.i = i
				return nil, r.fail("four hexadecimal digits after \\u")
			}
			if 0xD800 <= u && u < 0xDC00 && i+7 < len(r.b) && r.b[i+6] == '\\' && r.b[i+7] == 'u' {
				if low, ok := hex4(r.b, i+8); ok && 0xDC00 <= low && low < 0xE000 {
					u = (u-0xD800)<<10 + (low - 0xDC00) + 0x10000
					i += 6
				}
			}
			out = utf8.AppendRune(out, u)
			i += 4
		default:
			r.i = i + 1
			return nil, r.fail("an escape")
		}
		i += 2
	}
	r.i = len(r.b)
	return nil, errShort
}

func hex4(b []byte, i int) (rune, bool) {
	if i+4 > len(b) {
		return 0, false
	}
	var v rune
	for _, c := range b[i : i+4] {
		switch {
		case '0' <= c && c <= '9':
			v = v<<4 | rune(c-'0')
		case 'a' <= c && c <= 'f':
			v = v<<4 | rune(c-'a'+10)
		case 'A' <= c && c <= 'F':
			v = v<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return v, true
}

// maxID bounds token ids: a file that names a larger one is refused, because tables are as long as the largest id.
const maxID = 1 << 23

// id reads a token id.
func (r *jsonReader) id() (uint32, error) {
	r.peek()
	start, v := r.i, uint32(0)
	for r.i < len(r.b) && '0' <= r.b[r.i] && r.b[r.i] <= '9' {
		if v = v*10 + uint32(r.b[r.i]-'0'); v > maxID {
			return 0, fmt.Errorf("offset %d: token id above %d", start, maxID)
		}
		r.i++
	}
	if r.i == start {
		return 0, r.fail("a token id")
	}
	return v, nil
}

// raw skips one value and gives its text.
func (r *jsonReader) raw() ([]byte, error) {
	r.peek()
	start := r.i
	if err := r.skip(0); err != nil {
		return nil, err
	}
	return r.b[start:r.i], nil
}

const maxDepth = 200

func (r *jsonReader) skip(depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("offset %d: nested deeper than %d", r.i, maxDepth)
	}
	switch r.peek() {
	case '{', '[':
		return r.skipNested()
	case '"':
		return r.skipString()
	case 0:
		return errShort
	}
	start := r.i
	for r.i < len(r.b) {
		switch r.b[r.i] {
		case ',', ']', '}', ' ', '\n', '\t', '\r':
			if r.i == start {
				return r.fail("a value")
			}
			return nil
		}
		r.i++
	}
	return nil
}

// skipNested skips a list or object by counting brackets outside strings; the parts that matter are parsed later.
func (r *jsonReader) skipNested() error {
	depth := 0
	for r.i < len(r.b) {
		switch r.b[r.i] {
		case '"':
			if err := r.skipString(); err != nil {
				return err
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
			if depth == 0 {
				r.i++
				return nil
			}
		}
		r.i++
	}
	return errShort
}

func (r *jsonReader) skipString() error {
	for i := r.i + 1; ; {
		n := bytes.IndexByte(r.b[i:], '"')
		if n < 0 {
			r.i = len(r.b)
			return errShort
		}
		end := i + n
		back := end
		for back > i && r.b[back-1] == '\\' {
			back--
		}
		i = end + 1
		if (end-back)%2 == 0 {
			r.i = i
			return nil
		}
	}
}

// number reads a JSON number.
func (r *jsonReader) number() (float64, error) {
	raw, err := r.raw()
	if err != nil {
		return 0, err
	}
	var v float64
	if err := json.Unmarshal(raw, &v); err != nil {
		return 0, fmt.Errorf("offset %d: %w", r.i, err)
	}
	return v, nil
}
