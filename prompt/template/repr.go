package template

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// str() and repr() as Python writes them.

// toStr is str(v).
func toStr(s *state, v Value) string {
	switch v.kind {
	case KindString, KindMarkup:
		return v.str
	case KindUndefined:
		return ""
	}
	text := s.appendRepr(nil, v)
	s.grow(len(text))
	return string(text)
}

// appendRepr appends repr(v).
func (s *state) appendRepr(dst []byte, v Value) []byte {
	switch v.kind {
	case KindUndefined:
		return append(dst, "Undefined"...)
	case KindNone:
		return append(dst, "None"...)
	case KindBool:
		if v.bool() {
			return append(dst, "True"...)
		}
		return append(dst, "False"...)
	case KindInt:
		return strconv.AppendInt(dst, v.int(), 10)
	case KindBig:
		return append(dst, v.str...)
	case KindFloat:
		return AppendFloat(dst, v.float())
	case KindString:
		return s.appendQuoted(dst, v.str)
	case KindMarkup:
		return append(s.appendQuoted(append(dst, "Markup("...), v.str), ')')
	case KindList:
		return append(s.appendItems(append(dst, '['), v.Items()), ']')
	case KindTuple:
		items := v.Items()
		dst = s.appendItems(append(dst, '('), items)
		if len(items) == 1 {
			dst = append(dst, ',')
		}
		return append(dst, ')')
	case KindDict:
		d := v.ref.(*Dict)
		return append(s.appendEach(append(dst, '{'), d.Len(), func(dst []byte, i int) []byte {
			dst = append(s.appendRepr(dst, d.entries[i].Key), ": "...)
			return s.appendRepr(dst, d.entries[i].Value)
		}), '}')
	}
	if ns, ok := v.ref.(*namespace); ok {
		return append(s.appendRepr(append(dst, "<Namespace "...), ns.attrs.Value()), '>')
	}
	unsupported("str of a %s", v.typeName()) // Python prints an address
	return dst
}

// bound checks the limits while a text is written, and stops one that exceeds the output limit.
func (s *state) bound(dst []byte) {
	s.step(1)
	s.room(dst, 0)
}

// appendEach writes n elements separated by commas.
func (s *state) appendEach(dst []byte, n int, element func(dst []byte, i int) []byte) []byte {
	s.deeper()
	for i := range n {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		dst = element(dst, i)
		s.bound(dst)
	}
	s.depth--
	return dst
}

func (s *state) appendItems(dst []byte, items []Value) []byte {
	return s.appendEach(dst, len(items), func(dst []byte, i int) []byte { return s.appendRepr(dst, items[i]) })
}

// AppendFloat appends Python's repr(f): the shortest text that parses back to f, in exponent form below 1e-4 and from 1e16.
func AppendFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "nan"...)
	case math.IsInf(f, 0):
		if f < 0 {
			dst = append(dst, '-')
		}
		return append(dst, "inf"...)
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64) // like Python, Go writes at least two exponent digits
	}
	from := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	if slices.Contains(dst[from:], '.') {
		return dst
	}
	return append(dst, ".0"...)
}

// quotePython is repr of a str, for messages: the end of a long one is left out.
func quotePython(s string) string {
	const longest = 256
	if len(s) > longest {
		s = strings.ToValidUTF8(s[:longest], "") + "…"
	}
	quote := quoteOf(s)
	return string(append(appendEscaped([]byte{quote}, s, quote), quote))
}

// quoteOf returns the quotes that repr puts around a str: single ones unless only they occur in it.
func quoteOf(s string) byte {
	if strings.IndexByte(s, '\'') >= 0 && strings.IndexByte(s, '"') < 0 {
		return '"'
	}
	return '\''
}

// pieceBytes is how much of a text is written at a time, so that it can be stopped and stays within the limits.
const pieceBytes = 64 << 10

// piece returns the length of the first piece of a text: whole characters, about pieceBytes.
func piece(text string) int {
	n := min(pieceBytes, len(text))
	for n < len(text) && !utf8.RuneStart(text[n]) {
		n++
	}
	return n
}

// appendQuoted appends repr of a str.
func (s *state) appendQuoted(dst []byte, text string) []byte {
	quote := quoteOf(text)
	dst = append(dst, quote)
	for text != "" {
		n := piece(text)
		s.room(dst, n)
		dst, text = appendEscaped(dst, text[:n], quote), text[n:]
	}
	return append(dst, quote)
}

func appendEscaped(dst []byte, s string, quote byte) []byte {
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			i++
			switch short := strings.IndexByte("\n\r\t", c); {
			case c == quote || c == '\\':
				dst = append(dst, '\\', c)
			case short >= 0:
				dst = append(dst, '\\', "nrt"[short])
			case c < ' ' || c == 0x7f:
				dst = append(dst, pyHexEscape(rune(c))...)
			default:
				dst = append(dst, c)
			}
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == ' ' || unicode.IsPrint(r) {
			dst = append(dst, s[i:i+n]...)
		} else {
			dst = append(dst, pyHexEscape(r)...)
		}
		i += n
	}
	return dst
}

// pyHexEscape is the escape of a character in Python's backslashreplace: \xhh, \uhhhh or \Uhhhhhhhh.
func pyHexEscape(r rune) string {
	switch {
	case r > 0xffff:
		return fmt.Sprintf(`\U%08x`, r)
	case r > 0xff:
		return fmt.Sprintf(`\u%04x`, r)
	}
	return fmt.Sprintf(`\x%02x`, r)
}

// escapeValue is markupsafe.escape(v): Markup is unchanged, everything else is converted to a str and escaped.
func escapeValue(s *state, v Value) Value {
	if v.kind == KindMarkup {
		return v
	}
	text := toStr(s, v)
	if !strings.ContainsAny(text, `&<>'"`) {
		return markup(text)
	}
	b := builder{s: s}
	for text != "" {
		n := piece(text)
		b.add(htmlEscaper.Replace(text[:n]))
		text = text[n:]
	}
	return markup(b.text())
}

var htmlEscaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;")

// softStr is markupsafe.soft_str: str(v), but Markup stays.
func softStr(s *state, v Value) Value {
	if v.IsString() {
		return v
	}
	return String(toStr(s, v))
}
