package template

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// str.format and the % operator, with the number formats that prompts use. Left out (an error): format specifications
// inside specifications, the flags # and z, the conversions a, c and n, and * widths.

// formatter is one str.format in progress.
type formatter struct {
	s    *state
	args *callArgs
	next int // next automatic field number; -1 after a manual one
}

func formatMethod(s *state, v Value, a *callArgs) Value {
	f := &formatter{s: s, args: a}
	var out strings.Builder
	for text := v.str; text != ""; {
		i := strings.IndexAny(text, "{}")
		if i < 0 {
			out.WriteString(text)
			break
		}
		out.WriteString(text[:i])
		c := text[i]
		text = text[i+1:]
		if text != "" && text[0] == c {
			out.WriteByte(c)
			text = text[1:]
			continue
		}
		end := strings.IndexAny(text, "{}")
		if c == '}' || end < 0 {
			raise(valueError, "Single '%c' encountered in format string", c)
		}
		if text[end] == '{' {
			raise(notSupported, "'{' inside a field of a format string")
		}
		part := f.field(text[:end], v.kind == KindMarkup)
		text = text[end+1:]
		s.grow(len(part))
		out.WriteString(part)
	}
	return made(s, v, out.String())
}

// field formats one field: name, conversion and specification.
func (f *formatter) field(field string, escape bool) string {
	name, spec, _ := strings.Cut(field, ":")
	name, conv, converted := strings.Cut(name, "!")
	v := f.lookup(name)
	switch {
	case conv == "s":
		v = String(toStr(f.s, v))
	case conv == "r":
		v = String(string(f.s.appendRepr(nil, v)))
	case converted:
		raise(valueError, "Unknown conversion specifier %s (want s or r)", quotePython(conv))
	}
	switch {
	case !escape:
		return formatValue(f.s, v, spec)
	case v.kind != KindMarkup:
		return escapeHTML(formatValue(f.s, v, spec))
	case spec != "":
		raise(valueError, "Unsupported format specification for Markup.")
	}
	return v.str
}

// lookup finds the value of a field name such as "0", "user.name" or "items[3]".
func (f *formatter) lookup(field string) Value {
	switch {
	case field == "":
		if f.next < 0 {
			raise(valueError, "cannot switch from manual field specification to automatic field numbering")
		}
		field = strconv.Itoa(f.next)
		f.next++
	case all(field, isDigitRune):
		if f.next > 0 {
			raise(valueError, "cannot switch from automatic field numbering to manual field specification")
		}
		f.next = -1
	}
	cut := func(text string) (name, rest string) {
		if i := strings.IndexAny(text, ".["); i >= 0 {
			return text[:i], text[i:]
		}
		return text, ""
	}
	first, rest := cut(field)
	v := f.argument(first)
	for rest != "" {
		f.s.step(1)
		var name string
		dot := rest[0] == '.'
		if dot {
			name, rest = cut(rest[1:])
		} else {
			end := strings.IndexByte(rest, ']')
			if rest[0] != '[' || end < 0 {
				raise(valueError, "Only '.' or '[' may follow ']' in format field specifier")
			}
			name, rest = rest[1:end], rest[end+1:]
		}
		if name == "" {
			raise(valueError, "Empty attribute in format string")
		}
		i, isNumber := fieldNumber(name)
		switch {
		case dot:
			v = getattr(f.s, v, name)
		case isNumber:
			v = getitem(f.s, v, Int(int64(i)))
		default:
			v = getitem(f.s, v, String(name))
		}
	}
	return v
}

// argument gives an argument of format by number or name.
func (f *formatter) argument(name string) Value {
	if i, ok := fieldNumber(name); ok {
		if i >= len(f.args.pos) {
			raise(indexError, "Replacement index %d out of range for positional args tuple", i)
		}
		return f.args.pos[i]
	}
	for _, k := range f.args.kw {
		if k.name == name {
			return k.val
		}
	}
	return raise(keyError, "%s", quotePython(name))
}

func fieldNumber(text string) (int, bool) {
	n, err := strconv.Atoi(text)
	return n, err == nil && all(text, isDecimalRune)
}

// formatSpec is [[fill]align][sign][0][width][grouping][.precision][type].
type formatSpec struct {
	fill      string
	align     byte // '<' '>' '=' '^', 0 for none
	sign      byte
	zero      bool
	width     int
	group     byte // ',' or '_'
	precision int  // -1 for none
	verb      byte // 0 for none
}

// specReader reads a format specification from the left.
type specReader string

// any takes one byte if it is in set, and gives 0 otherwise.
func (r *specReader) any(set string) byte {
	if *r != "" && strings.IndexByte(set, (*r)[0]) >= 0 {
		c := (*r)[0]
		*r = (*r)[1:]
		return c
	}
	return 0
}

// number takes a number, and gives -1 where there is none.
func (r *specReader) number() int {
	rest := strings.TrimLeft(string(*r), "0123456789")
	digits := string(*r)[:len(*r)-len(rest)]
	*r = specReader(rest)
	if digits == "" {
		return -1
	}
	n, err := strconv.ParseInt(digits, 10, 32)
	if err != nil {
		raise(valueError, "Too many decimal digits in format string")
	}
	return int(n)
}

func parseSpec(spec string) formatSpec {
	f := formatSpec{fill: " "}
	const aligns = "<>=^"
	r := specReader(spec)
	_, n := utf8.DecodeRuneInString(spec)
	filled := len(spec) > n && strings.IndexByte(aligns, spec[n]) >= 0
	if filled {
		f.fill, r = spec[:n], r[n:]
	}
	f.align = r.any(aligns)
	f.sign = r.any("+- ")
	if !filled && r.any("0") != 0 {
		f.zero, f.fill = true, "0"
	}
	f.width = r.number()
	f.group = r.any(",_")
	dot := r.any(".") != 0
	if f.precision = r.number(); dot != (f.precision >= 0) {
		raise(valueError, "Format specifier missing precision")
	}
	if len(r) > 1 || r != "" && strings.IndexByte("sdboxXeEfFgG%", r[0]) < 0 {
		raise(notSupported, "format specification %s", quotePython(spec))
	}
	if r != "" {
		f.verb = r[0]
	}
	return f
}

// formatValue is format(v, spec).
func formatValue(s *state, v Value, spec string) string {
	switch {
	case spec == "":
		return toStr(s, v)
	case v.IsString():
		return parseSpec(spec).text(s, v.str)
	case v.isInteger():
		return parseSpec(spec).ofNumber().int(s, v)
	case v.kind == KindFloat:
		return parseSpec(spec).ofNumber().float(s, v.float())
	}
	raise(typeError, "unsupported format string passed to %s.__format__", v.typeName())
	return ""
}

// ofNumber puts the filling of a leading zero between sign and digits.
func (f formatSpec) ofNumber() formatSpec {
	if f.zero && f.align == 0 {
		f.align = '='
	}
	return f
}

// pad fills text up to the width. head (a sign) stays in front of the filling of "=" alignment.
func (f formatSpec) pad(s *state, head, text string, def byte) string {
	missing := f.width - utf8.RuneCountInString(head) - utf8.RuneCountInString(text)
	if missing <= 0 {
		return head + text
	}
	s.grow(missing * len(f.fill))
	align := f.align
	if align == 0 {
		align = def
	}
	fill := func(n int) string { return strings.Repeat(f.fill, n) }
	switch align {
	case '<':
		return head + text + fill(missing)
	case '^':
		return fill(missing/2) + head + text + fill(missing-missing/2)
	case '=':
		return head + fill(missing) + text
	}
	return fill(missing) + head + text
}

func (f formatSpec) text(s *state, text string) string {
	if f.verb != 0 && f.verb != 's' || f.sign != 0 || f.group != 0 || f.align == '=' {
		raise(valueError, "format specification does not fit a str")
	}
	return f.pad(s, "", f.cut(text), '<')
}

// cut shortens text to the precision.
func (f formatSpec) cut(text string) string {
	if f.precision < 0 {
		return text
	}
	return runeSlice(text, 0, min(f.precision, utf8.RuneCountInString(text)))
}

func (f formatSpec) signOf(negative bool) string {
	switch {
	case negative:
		return "-"
	case f.sign == '+' || f.sign == ' ':
		return string(f.sign)
	}
	return ""
}

var bases = map[byte]int{0: 10, 'd': 10, 'b': 2, 'o': 8, 'x': 16, 'X': 16}

// digits writes the absolute value of an integer.
func (f formatSpec) digits(v Value) string {
	n := new(big.Int).Abs(v.bigInt())
	switch base := bases[f.verb]; {
	case base == 10:
		return bigText(n)
	case f.verb == 'X':
		return strings.ToUpper(n.Text(base))
	default:
		return n.Text(base)
	}
}

func (f formatSpec) int(s *state, v Value) string {
	base := bases[f.verb]
	switch {
	case f.verb == 's':
		raise(valueError, "Unknown format code 's' for object of type 'int'")
	case base == 0:
		return f.float(s, toFloat(v))
	case f.precision >= 0:
		raise(valueError, "Precision not allowed in integer format specifier")
	case f.group == ',' && base != 10:
		raise(valueError, "Cannot specify ',' with '%c'.", f.verb)
	}
	return f.number(s, f.signOf(v.bigInt().Sign() < 0), f.digits(v), "", base)
}

// number groups the digits and pads; rest is what follows the integer digits.
func (f formatSpec) number(s *state, head, digits, rest string, base int) string {
	if f.group != 0 {
		size := 3
		if base != 10 {
			size = 4
		}
		if f.fill == "0" && f.align == '=' {
			// Zeros of the filling are grouped as well; the width counts all, and may be passed by one.
			want := f.width - len(head) - len(rest)
			for len(digits)+(len(digits)-1)/size < want {
				digits = "0" + digits
				s.grow(len(digits))
			}
		}
		for i := len(digits) - size; i > 0; i -= size {
			digits = digits[:i] + string(f.group) + digits[i:]
		}
	}
	return f.pad(s, head, digits+rest, '>')
}

func (f formatSpec) float(s *state, x float64) string {
	verb, percent := f.verb, ""
	switch verb {
	case '%':
		verb, percent = 'f', "%"
		x *= 100
	case 'd', 'b', 'o', 'x', 'X', 's':
		raise(valueError, "Unknown format code '%c' for object of type 'float'", verb)
	}
	text := floatText(s, math.Abs(x), verb, f.precision) + percent
	negative := math.Signbit(x) && !math.IsNaN(x)
	whole := len(text) - len(strings.TrimLeft(text, "0123456789"))
	if whole == 0 { // inf and nan
		return f.pad(s, f.signOf(negative), text, '>')
	}
	return f.number(s, f.signOf(negative), text[:whole], text[whole:], 10)
}

// maxPrecision bounds float precision far above what any prompt needs.
const maxPrecision = 100_000

// floatText writes a non-negative float as Python's format codes do. verb 0 is the one of an empty type.
func floatText(s *state, x float64, verb byte, precision int) string {
	if precision > maxPrecision {
		raise(valueError, "precision too big")
	}
	s.grow(max(precision, 0))
	var text string
	switch lower := verb | 0x20; {
	case math.IsInf(x, 0):
		text = "inf"
	case math.IsNaN(x):
		text = "nan"
	case verb == 0 && precision < 0:
		text = string(appendFloat(nil, x))
	case lower == 'e' || lower == 'f':
		if precision < 0 {
			precision = 6
		}
		text = strconv.FormatFloat(x, lower, precision, 64)
	default:
		text = generalText(x, verb == 0, precision)
	}
	if verb != 0 && verb < 'a' {
		text = strings.ToUpper(text)
	}
	return text
}

// generalText is the g format: precision significant digits, trailing zeros dropped. bare is the empty type: at least
// one digit after the point, exponent form one digit earlier.
func generalText(x float64, bare bool, precision int) string {
	if precision < 0 {
		precision = 6
	}
	precision = max(precision, 1)
	top := precision
	if bare {
		top--
	}
	mant, expText, _ := strings.Cut(strconv.FormatFloat(x, 'e', precision-1, 64), "e")
	exp, _ := strconv.Atoi(expText)
	if exp < -4 || exp >= top {
		return trimZeros(mant) + "e" + expText
	}
	text := trimZeros(strconv.FormatFloat(x, 'f', max(precision-1-exp, 0), 64))
	if bare && !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

func trimZeros(text string) string {
	if !strings.Contains(text, ".") {
		return text
	}
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}
