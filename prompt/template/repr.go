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
	text := string(s.appendRepr(nil, v))
	s.grow(len(text))
	return text
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
		return appendQuoted(dst, v.str)
	case KindMarkup:
		return append(appendQuoted(append(dst, "Markup("...), v.str), ')')
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
	if len(dst) > s.maxOut {
		limit("output of more than %d bytes", s.t.opts.Limits.OutputBytes)
	}
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

// quotePython is repr of a str.
func quotePython(s string) string { return string(appendQuoted(nil, s)) }

// appendQuoted appends repr of a str: single quotes unless only they occur in it.
func appendQuoted(dst []byte, s string) []byte {
	quote := byte('\'')
	if strings.IndexByte(s, '\'') >= 0 && strings.IndexByte(s, '"') < 0 {
		quote = '"'
	}
	dst = append(dst, quote)
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
		if isPyPrintable(r) {
			dst = append(dst, s[i:i+n]...)
		} else {
			dst = append(dst, pyHexEscape(r)...)
		}
		i += n
	}
	return append(dst, quote)
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

func isPyPrintable(r rune) bool { return r == ' ' || unicode.IsPrint(r) }

// escapeValue is markupsafe.escape(v): Markup is unchanged, everything else is converted to a str and escaped.
func escapeValue(s *state, v Value) Value {
	if v.kind == KindMarkup {
		return v
	}
	text := escapeHTML(toStr(s, v))
	s.grow(len(text))
	return markup(text)
}

var htmlEscaper = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;")

func escapeHTML(text string) string {
	if !strings.ContainsAny(text, `&<>'"`) {
		return text
	}
	return htmlEscaper.Replace(text)
}

// softStr is markupsafe.soft_str: str(v), but Markup stays.
func softStr(s *state, v Value) Value {
	if v.IsString() {
		return v
	}
	return String(toStr(s, v))
}
