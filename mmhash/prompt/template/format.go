package template

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// str.format and the format specification mini-language ("{:>8.3f}"), with the field rules of string.Formatter,
// through which the sandbox sends every format call.

// formatMethods gives format and format_map. They are no part of strMethods, because fields can reach all methods.
func formatMethods(name string) *method {
	switch name {
	case "format":
		return &method{name: name, variadic: formatMethod}
	case "format_map":
		return &method{name: name, variadic: func(s *state, v Value, a *callArgs) Value {
			a.only(name, 1, 1)
			return formatText(s, v, nil, func(key string) (Value, bool) { return subscript(s, a.pos[0], String(key)) })
		}}
	}
	return nil
}

func formatMethod(s *state, v Value, a *callArgs) Value {
	return formatText(s, v, a.pos, func(name string) (Value, bool) {
		for _, k := range a.kw {
			if k.name == name {
				return k.val, true
			}
		}
		return Value{}, false
	})
}

// formatter is one str.format in progress.
type formatter struct {
	s      *state
	pos    []Value
	named  func(string) (Value, bool)
	escape bool // the format is Markup: values are escaped
	next   int  // next automatic field number; -1 after a manual one
}

func formatText(s *state, v Value, pos []Value, named func(string) (Value, bool)) Value {
	f := &formatter{s: s, pos: pos, named: named, escape: v.kind == KindMarkup}
	return made(s, v, f.expand(v.str, 2))
}

// expand replaces the fields of a format; depth is how deep fields may nest inside format specifications.
func (f *formatter) expand(text string, depth int) string {
	if depth == 0 {
		raise(valueError, "Max string recursion exceeded")
	}
	var out strings.Builder
	for text != "" {
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
		if c == '}' {
			raise(valueError, "Single '}' encountered in format string")
		}
		end := fieldEnd(text)
		field := text[:end]
		text = text[end+1:]
		part := f.field(field, depth)
		f.s.grow(len(part))
		out.WriteString(part)
	}
	return out.String()
}

// fieldEnd finds the "}" that closes a field; braces nest, and "[...]" before the specification hides them.
func fieldEnd(text string) int {
	depth, bracket := 1, false
	inSpec := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '[' && !inSpec && depth == 1:
			bracket = true
		case c == ']' && bracket:
			bracket = false
		case bracket:
		case c == ':' || c == '!':
			inSpec = true
		case c == '{':
			depth++
		case c == '}':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	if text == "" {
		raise(valueError, "Single '{' encountered in format string")
	}
	raise(valueError, "expected '}' before end of string")
	return 0
}

// field formats one field: name, conversion and specification.
func (f *formatter) field(field string, depth int) string {
	name, rest := field, ""
	bracket := false
	for i := 0; i < len(field); i++ {
		c := field[i]
		if c == '[' {
			bracket = true
		} else if c == ']' {
			bracket = false
		}
		if !bracket && (c == '!' || c == ':') {
			name, rest = field[:i], field[i:]
			break
		}
		if c == '{' {
			raise(valueError, "unexpected '{' in field name")
		}
	}
	conv, spec := "", ""
	if strings.HasPrefix(rest, "!") {
		r, n := utf8.DecodeRuneInString(rest[1:])
		if n == 0 {
			raise(valueError, "end of string while looking for conversion specifier")
		}
		conv = string(r)
		rest = rest[1+n:]
		if rest != "" && rest[0] != ':' {
			raise(valueError, "expected ':' after conversion specifier")
		}
	}
	if rest != "" {
		spec = rest[1:]
	}
	v := f.lookup(name)
	switch conv {
	case "":
	case "s":
		v = String(toStr(f.s, v))
	case "r":
		v = String(string(f.s.appendRepr(nil, v)))
	case "a":
		v = String(asciiRepr(f.s, v))
	default:
		raise(valueError, "Unknown conversion specifier %s", conv)
	}
	spec = f.expandSpec(spec, depth)
	if !f.escape {
		return formatValue(f.s, v, spec)
	}
	if v.kind == KindMarkup {
		if spec != "" {
			raise(valueError, "Unsupported format specification for Markup.")
		}
		return v.str
	}
	return escapeHTML(formatValue(f.s, v, spec))
}

func (f *formatter) expandSpec(spec string, depth int) string {
	if spec == "" {
		return ""
	}
	return f.expand(spec, depth-1)
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
	first := field
	if i := strings.IndexAny(field, ".["); i >= 0 {
		first = field[:i]
	}
	rest := field[len(first):]
	var v Value
	if i, ok := fieldNumber(first); ok {
		if i >= len(f.pos) {
			raise(indexError, "Replacement index %d out of range for positional args tuple", i)
		}
		v = f.pos[i]
	} else {
		if v, ok = f.named(first); !ok {
			raise(keyError, "%s", quotePython(first))
		}
	}
	for rest != "" {
		f.s.step(1)
		if rest[0] == '.' {
			rest = rest[1:]
			name := rest
			if i := strings.IndexAny(rest, ".["); i >= 0 {
				name = rest[:i]
			}
			if name == "" {
				raise(valueError, "Empty attribute in format string")
			}
			rest = rest[len(name):]
			v = getattr(f.s, v, name)
			continue
		}
		end := strings.IndexByte(rest, ']')
		if rest[0] != '[' || end < 0 {
			raise(valueError, "Only '.' or '[' may follow ']' in format field specifier")
		}
		key := rest[1:end]
		rest = rest[end+1:]
		if key == "" {
			raise(valueError, "Empty attribute in format string")
		}
		if i, ok := fieldNumber(key); ok {
			v = getitem(f.s, v, Int(int64(i)))
		} else {
			v = getitem(f.s, v, String(key))
		}
	}
	return v
}

func fieldNumber(text string) (int, bool) {
	n := 0
	for _, r := range text {
		d, ok := decimalDigit(r)
		if !ok {
			return 0, false
		}
		if n = n*10 + d; n > math.MaxInt32 {
			raise(valueError, "Too many decimal digits in format string")
		}
	}
	return n, text != ""
}

// asciiRepr is ascii(v).
func asciiRepr(s *state, v Value) string {
	text := string(s.appendRepr(nil, v))
	if isASCII(text) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if r < utf8.RuneSelf {
			b.WriteRune(r)
		} else {
			b.WriteString(pyHexEscape(r))
		}
	}
	return b.String()
}

// formatSpec is [[fill]align][sign][z][#][0][width][grouping][.precision][type].
type formatSpec struct {
	fill      string
	align     byte // '<' '>' '=' '^', 0 for none
	sign      byte
	noNegZero bool
	alt       bool
	zero      bool
	width     int
	group     byte // ',' or '_'
	precision int  // -1 for none
	verb      byte // 0 for none
}

func parseSpec(spec string) formatSpec {
	f := formatSpec{fill: " ", precision: -1}
	isAlign := func(c byte) bool { return c == '<' || c == '>' || c == '=' || c == '^' }
	_, n := utf8.DecodeRuneInString(spec)
	if len(spec) > n && n > 0 && isAlign(spec[n]) {
		f.fill, f.align, spec = spec[:n], spec[n], spec[n+1:]
	} else if spec != "" && isAlign(spec[0]) {
		f.align, spec = spec[0], spec[1:]
	}
	next := func(set string) byte {
		if spec != "" && strings.IndexByte(set, spec[0]) >= 0 {
			c := spec[0]
			spec = spec[1:]
			return c
		}
		return 0
	}
	number := func() int {
		n, some := 0, false
		for spec != "" && isDecDigit(spec[0]) {
			if n = n*10 + int(spec[0]-'0'); n > math.MaxInt32 {
				raise(valueError, "Too many decimal digits in format string")
			}
			spec, some = spec[1:], true
		}
		if !some {
			return -1
		}
		return n
	}
	f.sign = next("+- ")
	f.noNegZero = next("z") != 0
	f.alt = next("#") != 0
	if next("0") != 0 {
		f.zero = true
		if f.align == 0 {
			f.fill, f.align = "0", '='
		}
	}
	f.width = number()
	f.group = next(",_")
	if f.group != 0 && next(",_") != 0 {
		raise(valueError, "Cannot specify both ',' and '_'.")
	}
	if next(".") != 0 {
		if f.precision = number(); f.precision < 0 {
			raise(valueError, "Format specifier missing precision")
		}
	}
	if len(spec) > 1 {
		raise(valueError, "Invalid format specifier")
	}
	if spec != "" {
		f.verb = spec[0]
	}
	return f
}

// formatValue is format(v, spec).
func formatValue(s *state, v Value, spec string) string {
	if spec == "" {
		return toStr(s, v)
	}
	switch {
	case v.IsString():
		if v.kind == KindMarkup {
			v.kind = KindString
		}
		return formatString(s, v.str, parseSpec(spec))
	case v.isInteger():
		return formatInt(s, v, parseSpec(spec))
	case v.kind == KindFloat:
		return formatFloat(s, v.float(), parseSpec(spec))
	}
	raise(typeError, "unsupported format string passed to %s.__format__", v.typeName())
	return ""
}

// pad fills text up to the width. prefix (a sign, "0x") stays in front of the filling of "=" alignment.
func (f formatSpec) pad(s *state, prefix, text string, def byte) string {
	missing := f.width - utf8.RuneCountInString(prefix) - utf8.RuneCountInString(text)
	if missing <= 0 {
		return prefix + text
	}
	s.grow(missing * len(f.fill))
	align := f.align
	if align == 0 {
		align = def
	}
	fill := func(n int) string { return strings.Repeat(f.fill, n) }
	switch align {
	case '<':
		return prefix + text + fill(missing)
	case '^':
		return fill(missing/2) + prefix + text + fill(missing-missing/2)
	case '=':
		return prefix + fill(missing) + text
	}
	return fill(missing) + prefix + text
}

func formatString(s *state, text string, f formatSpec) string {
	switch {
	case f.verb != 0 && f.verb != 's':
		raise(valueError, "Unknown format code '%c' for object of type 'str'", f.verb)
	case f.sign != 0:
		raise(valueError, "Sign not allowed in string format specifier")
	case f.noNegZero:
		raise(valueError, "Negative zero coercion (z) not allowed in string format specifier")
	case f.alt:
		raise(valueError, "Alternate form (#) not allowed in string format specifier")
	case f.group != 0:
		raise(valueError, "Cannot specify '%c' with 's'.", f.group)
	case f.align == '=' && !f.zero:
		raise(valueError, "'=' alignment not allowed in string format specifier")
	case f.align == '=': // from a leading zero: fills at the end, as CPython does for str
		f.align = '<'
	}
	if f.precision >= 0 {
		text = runeSlice(text, 0, min(f.precision, utf8.RuneCountInString(text)))
	}
	return f.pad(s, "", text, '<')
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

func formatInt(s *state, v Value, f formatSpec) string {
	base, prefix := 10, ""
	switch f.verb {
	case 0, 'd', 'n':
	case 'b':
		base, prefix = 2, "0b"
	case 'o':
		base, prefix = 8, "0o"
	case 'x', 'X':
		base, prefix = 16, "0"+string(f.verb)
	case 'c':
		if f.sign != 0 {
			raise(valueError, "Sign not allowed with integer format specifier 'c'")
		}
		if f.alt {
			raise(valueError, "Alternate form (#) not allowed with integer format specifier 'c'")
		}
		if f.group != 0 {
			raise(valueError, "Cannot specify '%c' with 'c'.", f.group)
		}
		if f.precision >= 0 {
			raise(valueError, "Precision not allowed in integer format specifier")
		}
		if f.align == '=' {
			f.align = '>'
		}
		if !v.isSmallInt() || v.int() < 0 || v.int() > utf8.MaxRune {
			raise(overflowError, "%%c arg not in range(0x110000)")
		}
		return f.pad(s, "", string(rune(v.int())), '>')
	case 'e', 'E', 'f', 'F', 'g', 'G', '%':
		return formatFloat(s, toFloat(v), f)
	default:
		raise(valueError, "Unknown format code '%c' for object of type 'int'", f.verb)
	}
	if f.precision >= 0 {
		raise(valueError, "Precision not allowed in integer format specifier")
	}
	if f.noNegZero {
		raise(valueError, "Negative zero coercion (z) not allowed in format specifier with integer presentation type")
	}
	if f.group == ',' && base != 10 || f.group != 0 && f.verb == 'n' {
		raise(valueError, "Cannot specify '%c' with '%c'.", f.group, f.verb)
	}
	n := v.bigInt()
	var digits string
	if base == 10 {
		digits = bigText(new(big.Int).Abs(n))
	} else {
		digits = new(big.Int).Abs(n).Text(base)
	}
	if f.verb == 'X' {
		digits = strings.ToUpper(digits)
	}
	head := f.signOf(n.Sign() < 0)
	if f.alt {
		head += prefix
	}
	return f.number(s, head, digits, "", base)
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
		digits = groupDigits(digits, size, f.group)
	}
	return f.pad(s, head, digits+rest, '>')
}

func groupDigits(digits string, size int, sep byte) string {
	var b strings.Builder
	for i := range len(digits) {
		if i > 0 && (len(digits)-i)%size == 0 {
			b.WriteByte(sep)
		}
		b.WriteByte(digits[i])
	}
	return b.String()
}

func formatFloat(s *state, x float64, f formatSpec) string {
	verb := f.verb
	percent := ""
	switch verb {
	case 0, 'e', 'E', 'f', 'F', 'g', 'G':
	case 'n':
		verb = 'g'
	case '%':
		verb, percent = 'f', "%"
		x *= 100
	default:
		raise(valueError, "Unknown format code '%c' for object of type 'float'", verb)
	}
	if f.group != 0 && f.verb == 'n' {
		raise(valueError, "Cannot specify '%c' with 'n'.", f.group)
	}
	if f.precision > maxPrecision {
		raise(valueError, "precision too big")
	}
	text := floatText(math.Abs(x), verb, f.precision, f.alt)
	s.grow(len(text))
	negative := math.Signbit(x) && !math.IsNaN(x)
	if f.noNegZero && strings.Trim(text, "0.e+-") == "" {
		negative = false
	}
	text += percent
	digits := 0
	for digits < len(text) && isDecDigit(text[digits]) {
		digits++
	}
	if digits == 0 && f.group != 0 { // inf and nan
		return f.pad(s, f.signOf(negative), text, '>')
	}
	return f.number(s, f.signOf(negative), text[:digits], text[digits:], 10)
}

// maxPrecision bounds float precision far above what any prompt needs.
const maxPrecision = 100_000

// floatText writes a non-negative float as Python's format codes do. verb 0 is the one of an empty type.
func floatText(x float64, verb byte, precision int, alt bool) string {
	upper := verb == 'E' || verb == 'F' || verb == 'G'
	verb |= 0x20
	var text string
	switch {
	case math.IsInf(x, 0):
		text = "inf"
	case math.IsNaN(x):
		text = "nan"
	case verb == 0x20 && precision < 0:
		text = string(appendFloat(nil, x))
	case verb == 'e' || verb == 'f':
		if precision < 0 {
			precision = 6
		}
		text = strconv.FormatFloat(x, verb, precision, 64)
		if alt && precision == 0 {
			if i := strings.IndexByte(text, 'e'); i >= 0 {
				text = text[:i] + "." + text[i:]
			} else {
				text += "."
			}
		}
	default:
		text = generalText(x, verb == 0x20, precision, alt)
	}
	if upper {
		text = strings.ToUpper(text)
	}
	return text
}

// generalText is the g format: precision significant digits, trailing zeros dropped unless alt.
// bare is the empty type: at least one digit after the point, exponent form one digit earlier.
func generalText(x float64, bare bool, precision int, alt bool) string {
	switch {
	case precision < 0:
		precision = 6
	case precision == 0:
		precision = 1
	}
	e := strconv.FormatFloat(x, 'e', precision-1, 64)
	mant, expText, _ := strings.Cut(e, "e")
	exp, _ := strconv.Atoi(expText)
	top := precision
	if bare {
		top--
	}
	if exp < -4 || exp >= top {
		if !alt {
			mant = trimZeros(mant)
		} else if !strings.Contains(mant, ".") {
			mant += "."
		}
		sign := "+"
		if exp < 0 {
			sign, exp = "-", -exp
		}
		digits := strconv.Itoa(exp)
		if len(digits) < 2 {
			digits = "0" + digits
		}
		return mant + "e" + sign + digits
	}
	text := strconv.FormatFloat(x, 'f', max(precision-1-exp, 0), 64)
	if !alt {
		text = trimZeros(text)
		if bare && !strings.Contains(text, ".") {
			text += ".0"
		}
	} else if !strings.Contains(text, ".") {
		text += "."
	}
	return text
}

func trimZeros(text string) string {
	if !strings.Contains(text, ".") {
		return text
	}
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}
