package template

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// JSON to Values, with the results of Python's json.loads: order kept, the last of equal keys wins at the place of the
// first, numbers with a fraction or exponent are floats and others integers of any size.

// maxJSONDepth bounds nesting: FromJSON reads what clients send.
const maxJSONDepth = 500

// FromJSON reads one JSON text. Strings without escapes point into raw. NaN and Infinity, invalid UTF-8 and lone
// surrogates, which no tokenizer takes, are errors.
func FromJSON(raw string) (Value, error) {
	r := jsonReader{src: raw}
	if !utf8.ValidString(raw) {
		return Value{}, fmt.Errorf("template: JSON: invalid UTF-8")
	}
	r.space()
	v := r.value(0)
	r.space()
	if r.err == nil && r.pos != len(raw) {
		r.fail("end of text")
	}
	if r.err != nil {
		return Value{}, r.err
	}
	return v, nil
}

// jsonReader reads values depth first. Entries and items collect on stacks and are then cut from shared blocks of
// memory, so that a body of many small objects costs few allocations.
type jsonReader struct {
	src     string
	pos     int
	err     error
	entries []Entry // of the objects being read
	items   []Value // of the arrays being read
	entryAt []Entry // free rest of the current block
	itemAt  []Value
	dictAt  []Dict
	listAt  []List
}

func (r *jsonReader) fail(want string) Value {
	if r.err == nil {
		got := "end of text"
		if r.pos < len(r.src) {
			got = strconv.QuoteToASCII(r.src[r.pos:min(len(r.src), r.pos+1)])
		}
		r.err = fmt.Errorf("template: JSON: byte %d: expected %s, got %s", r.pos, want, got)
	}
	return Value{}
}

func (r *jsonReader) space() {
	for r.pos < len(r.src) {
		switch r.src[r.pos] {
		case ' ', '\t', '\n', '\r':
			r.pos++
		default:
			return
		}
	}
}

func (r *jsonReader) take(c byte) bool {
	if r.pos < len(r.src) && r.src[r.pos] == c {
		r.pos++
		return true
	}
	return false
}

func (r *jsonReader) value(depth int) Value {
	if depth > maxJSONDepth {
		r.err = fmt.Errorf("template: JSON: nested deeper than %d", maxJSONDepth)
		return Value{}
	}
	if r.pos >= len(r.src) {
		return r.fail("a value")
	}
	switch c := r.src[r.pos]; {
	case c == '"':
		return String(r.text())
	case c == '{':
		return r.object(depth)
	case c == '[':
		return r.array(depth)
	case c == '-' || isDecDigit(c):
		return r.number()
	}
	for _, lit := range [...]struct {
		text string
		v    Value
	}{{"null", None}, {"true", pyTrue}, {"false", pyFalse}} {
		if strings.HasPrefix(r.src[r.pos:], lit.text) {
			r.pos += len(lit.text)
			return lit.v
		}
	}
	return r.fail("a value")
}

// elements reads what stands between brackets, from the opening one on.
func (r *jsonReader) elements(end byte, element func()) {
	r.pos++
	r.space()
	if r.take(end) {
		return
	}
	for r.err == nil {
		r.space()
		element()
		r.space()
		if r.err == nil && r.take(end) {
			return
		}
		if r.err == nil && !r.take(',') {
			r.fail("',' or '" + string(end) + "'")
		}
	}
}

func (r *jsonReader) object(depth int) Value {
	from := len(r.entries)
	r.elements('}', func() {
		if r.pos >= len(r.src) || r.src[r.pos] != '"' {
			r.fail("a key in quotes")
			return
		}
		key := r.text()
		r.space()
		if !r.take(':') {
			r.fail("':'")
			return
		}
		r.space()
		v := r.value(depth + 1)
		r.entries = append(r.entries, Entry{String(key), v})
	})
	if r.err != nil {
		return Value{}
	}
	if len(r.dictAt) == 0 {
		r.dictAt = make([]Dict, 16)
	}
	d := &r.dictAt[0]
	r.dictAt = r.dictAt[1:]
	mine := r.entries[from:]
	n := len(mine)
	if n > len(r.entryAt) {
		r.entryAt = make([]Entry, max(32, n))
	}
	d.entries = r.entryAt[:0:n]
	r.entryAt = r.entryAt[n:]
	for _, e := range mine {
		d.set(e.Key, e.Value)
	}
	clear(mine)
	r.entries = r.entries[:from]
	return d.Value()
}

func (r *jsonReader) array(depth int) Value {
	from := len(r.items)
	r.elements(']', func() {
		v := r.value(depth + 1)
		r.items = append(r.items, v)
	})
	if r.err != nil {
		return Value{}
	}
	if len(r.listAt) == 0 {
		r.listAt = make([]List, 8)
	}
	l := &r.listAt[0]
	r.listAt = r.listAt[1:]
	n := len(r.items) - from
	if n > len(r.itemAt) {
		r.itemAt = make([]Value, max(16, n))
	}
	l.items = r.itemAt[:n:n]
	r.itemAt = r.itemAt[n:]
	copy(l.items, r.items[from:])
	clear(r.items[from:])
	r.items = r.items[:from]
	return Value{kind: KindList, ref: l}
}

func (r *jsonReader) number() Value {
	start := r.pos
	r.take('-')
	if !r.take('0') && !r.digits() {
		return r.fail("a digit")
	}
	isFloat := false
	if r.pos+1 < len(r.src) && r.src[r.pos] == '.' && isDecDigit(r.src[r.pos+1]) {
		r.pos++
		isFloat = r.digits()
	}
	if r.pos < len(r.src) && r.src[r.pos]|0x20 == 'e' {
		r.pos++
		if !r.take('+') {
			r.take('-')
		}
		if !r.digits() {
			return r.fail("a digit")
		}
		isFloat = true
	}
	lit := r.src[start:r.pos]
	if isFloat {
		f, err := strconv.ParseFloat(lit, 64)
		if err != nil && !math.IsInf(f, 0) {
			return r.fail("a number")
		}
		return Float(f)
	}
	if len(lit) < 19 {
		n, _ := strconv.ParseInt(lit, 10, 64)
		return Int(n)
	}
	if len(strings.TrimPrefix(lit, "-")) > maxIntDigits {
		return r.fail(fmt.Sprintf("an integer of at most %d digits", maxIntDigits))
	}
	n, _ := new(big.Int).SetString(lit, 10)
	return bigValue(n)
}

func (r *jsonReader) digits() bool {
	start := r.pos
	for r.pos < len(r.src) && isDecDigit(r.src[r.pos]) {
		r.pos++
	}
	return r.pos > start
}

// text reads a string; the current byte is its opening quote.
func (r *jsonReader) text() string {
	r.pos++
	start := r.pos
	for i := start; i < len(r.src); i++ {
		switch c := r.src[i]; {
		case c == '"':
			r.pos = i + 1
			return r.src[start:i]
		case c == '\\':
			r.pos = i
			return r.escaped(start)
		case c < ' ':
			r.pos = i
			r.fail("no control character in a string")
			return ""
		}
	}
	r.pos = len(r.src)
	r.fail("'\"'")
	return ""
}

// escaped reads the rest of a string from its first escape on.
func (r *jsonReader) escaped(start int) string {
	var b strings.Builder
	b.WriteString(r.src[start:r.pos])
	for r.pos < len(r.src) {
		c := r.src[r.pos]
		switch {
		case c == '"':
			r.pos++
			return b.String()
		case c < ' ':
			r.fail("no control character in a string")
			return ""
		case c != '\\':
			b.WriteByte(c)
			r.pos++
			continue
		}
		r.pos++
		if r.pos >= len(r.src) {
			break
		}
		c = r.src[r.pos]
		r.pos++
		if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
			b.WriteByte("\"\\/\b\f\n\r\t"[i])
			continue
		}
		if c != 'u' {
			r.pos--
			r.fail("an escape")
			return ""
		}
		u, ok := r.hex4()
		if ok && utf16.IsSurrogate(u) {
			var low rune
			if ok = strings.HasPrefix(r.src[r.pos:], `\u`); ok {
				r.pos += 2
				low, ok = r.hex4()
			}
			u = utf16.DecodeRune(u, low)
			ok = ok && u != utf8.RuneError
		}
		if !ok {
			r.fail("four hex digits and no lone surrogate")
			return ""
		}
		b.WriteRune(u)
	}
	r.fail("'\"'")
	return ""
}

func (r *jsonReader) hex4() (rune, bool) {
	if r.pos+4 > len(r.src) {
		return 0, false
	}
	n, err := strconv.ParseUint(r.src[r.pos:r.pos+4], 16, 32)
	r.pos += 4
	return rune(n), err == nil
}
