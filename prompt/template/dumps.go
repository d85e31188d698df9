package template

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// tojson as transformers defines it: json.dumps(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False).
// Nothing is escaped for HTML, and the result is a plain str.

// dumper writes JSON.
type dumper struct {
	s         *state
	dst       []byte
	ascii     bool
	indent    string
	indented  bool
	item, key string // separators
	sorted    bool
	depth     int
}

// AppendJSON appends v as json.dumps(v, ensure_ascii=False) writes it: ", " and ": ", keys in order. It fails for values that JSON
// cannot represent (Undefined, objects) and for nesting deeper than the default limit.
func AppendJSON(dst []byte, v Value) (out []byte, err error) {
	limits := Limits{Steps: math.MaxInt, OutputBytes: math.MaxInt >> 3}.withDefaults()
	s := &state{t: &Template{opts: Options{Limits: limits}}, maxOut: math.MaxInt}
	defer func() {
		if r := recover(); r != nil {
			out, err = dst, recovered(r, 0)
			if e, ok := errors.AsType[*Error](err); ok {
				err = errors.New("template: JSON: " + e.Msg)
			}
		}
	}()
	d := dumper{s: s, dst: dst, item: ", ", key: ": "}
	d.value(v)
	return d.dst, nil
}

func toJSON(s *state, v Value, a []Value) Value {
	d := dumper{s: s, item: ", ", key: ": "}
	d.ascii = flag(a[0])
	if given(a[1]) && !v.IsString() {
		d.indented, d.item = true, ","
		if a[1].IsString() {
			d.indent = a[1].str
		} else {
			n := max(0, integer(a[1]))
			s.grow(n)
			d.indent = strings.Repeat(" ", n)
		}
	}
	if given(a[2]) {
		seps := unpack(s, a[2], 2)
		d.item, d.key = text(seps[0]), text(seps[1])
	}
	d.sorted = flag(a[3])
	d.value(v)
	s.grow(len(d.dst))
	return String(string(d.dst))
}

func (d *dumper) value(v Value) {
	switch v.kind {
	case KindNone:
		d.dst = append(d.dst, "null"...)
	case KindBool:
		d.dst = strconv.AppendBool(d.dst, v.bool())
	case KindInt, KindBig:
		d.dst = d.s.appendRepr(d.dst, v)
	case KindFloat:
		d.dst = appendJSONFloat(d.dst, v.float())
	case KindString, KindMarkup:
		d.text(v.str)
	case KindList, KindTuple:
		items := v.Items()
		d.group('[', ']', len(items), func(i int) { d.value(items[i]) })
	case KindDict:
		d.dict(v.ref.(*Dict))
	default:
		raise("Object of type %s is not JSON serializable", v.typeName())
	}
	d.s.bound(d.dst)
}

// group writes brackets and n elements between them.
func (d *dumper) group(left, right byte, n int, element func(i int)) {
	d.dst = append(d.dst, left)
	if n == 0 {
		d.dst = append(d.dst, right)
		return
	}
	d.s.deeper()
	d.depth++
	for i := range n {
		if i > 0 {
			d.add(d.item)
		}
		d.newline()
		element(i)
	}
	d.depth--
	d.s.depth--
	d.newline()
	d.dst = append(d.dst, right)
}

func (d *dumper) newline() {
	if !d.indented {
		return
	}
	d.dst = append(d.dst, '\n')
	for range d.depth {
		d.add(d.indent)
	}
}

func (d *dumper) add(text string) {
	d.s.room(d.dst, len(text))
	d.dst = append(d.dst, text...)
}

func (d *dumper) dict(m *Dict) {
	entries := m.entries
	if d.sorted {
		d.s.step(2 * len(entries))
		d.s.grow(len(entries) * pairBytes)
		entries = slices.Clone(entries)
		slices.SortStableFunc(entries, func(a, b Entry) int { return ordered(d.s, "<", a.Key, b.Key) })
	}
	d.group('{', '}', len(entries), func(i int) {
		switch k := entries[i].Key; k.kind {
		case KindString, KindMarkup:
			d.text(k.str)
		case KindNone, KindBool, KindInt, KindBig, KindFloat:
			d.dst = append(d.dst, '"')
			d.value(k)
			d.dst = append(d.dst, '"')
		default:
			raise("keys must be str, int, float, bool or None, not %s", k.typeName())
		}
		d.add(d.key)
		d.value(entries[i].Value)
	})
}

func appendJSONFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	}
	return AppendFloat(dst, f)
}

// text writes a string in quotes: quotes, backslashes and control characters are escaped, other characters only in
// ASCII mode.
func (d *dumper) text(s string) {
	d.dst = append(d.dst, '"')
	for s != "" {
		n := piece(s)
		d.s.room(d.dst, n)
		d.escaped(s[:n])
		s = s[n:]
	}
	d.dst = append(d.dst, '"')
}

func (d *dumper) escaped(s string) {
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && !(d.ascii && c >= 0x7f) {
			i++
			continue
		}
		d.dst = append(d.dst, s[from:i]...)
		r, n := utf8.DecodeRuneInString(s[i:])
		if short := strings.IndexByte("\"\\\n\r\t\b\f", c); short >= 0 {
			d.dst = append(d.dst, '\\', `"\nrtbf`[short])
		} else {
			d.dst = appendJSONEscape(d.dst, r)
		}
		i += n
		from = i
	}
	d.dst = append(d.dst, s[from:]...)
}

// appendJSONEscape writes \uXXXX, as a surrogate pair outside the basic plane.
func appendJSONEscape(dst []byte, r rune) []byte {
	const hex = "0123456789abcdef"
	if r > 0xffff {
		r -= 0x10000
		dst = appendJSONEscape(dst, 0xd800+r>>10)
		r = 0xdc00 + r&0x3ff
	}
	return append(dst, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
}
