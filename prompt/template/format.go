package template

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The % operator and str.format, with what chat templates use of them: fields by position and name and their members;
// after %, the flags 0 - + and blank, a width, a precision and the types s, r, d, i, f and x; after a colon, a width, a
// precision and the types d and f.

// formatText is str.format.
func formatText(s *state, v Value, a *callArgs) Value {
	var out strings.Builder
	next, manual := 0, false
	for text := v.str; text != ""; {
		i := strings.IndexAny(text, "{}")
		if i < 0 {
			out.WriteString(text)
			break
		}
		out.WriteString(text[:i])
		c := text[i]
		if text = text[i+1:]; text != "" && text[0] == c {
			out.WriteByte(c)
			text = text[1:]
			continue
		}
		end := strings.IndexAny(text, "{}")
		if c == '}' || end < 0 {
			raise("Single '%c' encountered in format string", c)
		}
		name, spec, _ := strings.Cut(text[:end], ":")
		if text[end] == '{' || strings.ContainsAny(name, "![") {
			unsupported("the field {%s of str.format", text[:end])
		}
		numbered := all(name, isDigitRune)
		if manual = manual || numbered; manual && name == "" || numbered && next > 0 {
			raise("cannot switch between automatic field numbering and manual field specification")
		}
		if name == "" {
			name = strconv.Itoa(next)
			next++
		}
		path := strings.Split(name, ".")
		part := formatArgument(a, path[0])
		for _, member := range path[1:] {
			if member == "" {
				raise("Empty attribute in format string")
			}
			part = getattr(s, part, member)
		}
		if v.kind == KindMarkup {
			part = escapeValue(s, part)
		}
		shown := formatSpec(s, part, spec)
		s.grow(len(shown))
		out.WriteString(shown)
		text = text[end+1:]
	}
	return made(s, v, out.String())
}

var specPattern = regexp.MustCompile(`^(0?)([1-9]\d{0,5})?(\.\d{1,3})?([df]?)$`)

// formatSpec is format(v, spec) of a number; other values take none.
func formatSpec(s *state, v Value, spec string) string {
	if spec == "" {
		return toStr(s, v)
	}
	m := specPattern.FindStringSubmatch(spec)
	if m == nil || m[4] == "" || !v.isNumber() || m[4] == "d" && (v.kind == KindFloat || m[3] != "") {
		unsupported("the format specification %s of a %s", quotePython(spec), v.typeName())
	}
	f, _ := parsePercent(spec)
	return f.format(s, v, false)
}

// formatArgument gives an argument of format by number or name.
func formatArgument(a *callArgs, name string) Value {
	if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(a.pos) {
		return a.pos[i]
	}
	for _, k := range a.kw {
		if k.name == name {
			return k.val
		}
	}
	return raise("no argument %s for a format string", quotePython(name))
}

func formatFilter(s *state, v Value, a *callArgs) Value {
	if len(a.kw) == 0 {
		return percentFormat(s, softStr(s, v), newTuple(a.pos...))
	}
	if len(a.pos) > 0 {
		raise("can't handle positional and keyword arguments at the same time")
	}
	d := new(Dict)
	fillDict(s, d, a)
	return percentFormat(s, softStr(s, v), d.Value())
}

// percentFormat is format % arg: %[(name)][flags][width][.precision]type.
func percentFormat(s *state, format, arg Value) Value {
	args, next, hasKeys := []Value{arg}, 0, false
	switch arg.kind {
	case KindTuple:
		args = arg.Items()
	case KindDict, KindList, KindRange, KindUndefined: // what C's PyMapping_Check takes
		hasKeys = true
	}
	var out strings.Builder
	for rest := format.str; ; {
		plain, after, found := strings.Cut(rest, "%")
		out.WriteString(plain)
		if !found {
			break
		}
		var v Value
		if strings.HasPrefix(after, "(") {
			key, tail, closed := strings.Cut(after[1:], ")")
			if !hasKeys || !closed || strings.Contains(key, "(") {
				raise("format requires a mapping and a key in parentheses")
			}
			var ok bool
			if v, ok = subscript(s, arg, String(key)); !ok {
				raise("no %s for a format string", quotePython(key))
			}
			after, args, next = tail, []Value{v}, 1
		}
		f, tail := parsePercent(after)
		if rest = tail; f.verb == '%' {
			out.WriteByte('%')
			continue
		}
		if !v.valid() {
			if next >= len(args) {
				raise("not enough arguments for format string")
			}
			v = args[next]
			next++
		}
		out.WriteString(f.format(s, v, format.kind == KindMarkup))
	}
	if next < len(args) && !hasKeys {
		raise("not all arguments converted during string formatting")
	}
	return made(s, format, out.String())
}

// percentSpec is what stands between % and the value.
type percentSpec struct {
	left, zero bool
	sign       string // "", "+" or " "
	width      int
	precision  int // -1 for none
	verb       byte
}

// parsePercent reads what follows the % sign and the key, and gives the rest of the format.
func parsePercent(format string) (f percentSpec, rest string) {
	i := 0
	for ; i < len(format) && strings.IndexByte("-+ 0", format[i]) >= 0; i++ {
		switch c := format[i]; {
		case c == '-':
			f.left = true
		case c == '0':
			f.zero = true
		case f.sign != "+":
			f.sign = string(c)
		}
	}
	number := func() int {
		from := i
		for i < len(format) && isDecDigit(format[i]) {
			i++
		}
		n, err := strconv.ParseInt(format[from:i], 10, 32)
		if err != nil && i > from {
			raise("too many decimal digits in a format string")
		}
		return int(n)
	}
	f.width, f.precision = number(), -1
	if i < len(format) && format[i] == '.' {
		i++
		f.precision = number()
	}
	if i == len(format) {
		raise("incomplete format")
	}
	switch f.verb = format[i]; f.verb {
	case 's', 'r', 'd', 'i', 'f', 'x', '%':
	case 'u', 'o', 'X', 'e', 'E', 'F', 'g', 'G', 'a', 'c', '#', '*', 'l', 'h', 'L':
		unsupported("the format %%%c", f.verb)
	default:
		raise("unsupported format character in %s", quotePython("%"+format))
	}
	return f, format[i+1:]
}

// format writes one value.
func (f percentSpec) format(s *state, v Value, escape bool) string {
	if f.verb == 's' || f.verb == 'r' {
		text := toStr(s, v)
		switch {
		case f.verb == 'r':
			text = string(s.appendRepr(nil, v))
		}
		if escape && (f.verb == 'r' || v.kind != KindMarkup) {
			text = escapeHTML(text)
		}
		if f.precision >= 0 {
			text = runeSlice(text, 0, min(f.precision, utf8.RuneCountInString(text)))
		}
		f.zero = false
		return f.pad(s, "", text)
	}
	mustExist(v)
	if !v.isNumber() {
		raise("%%%c format: a number is required, not %s", f.verb, v.typeName())
	}
	var digits string
	negative := compareNumbers(v, Int(0)) < 0
	switch {
	case f.verb == 'f':
		x := toFloat(v)
		negative = math.Signbit(x) && !math.IsNaN(x)
		if f.precision < 0 {
			f.precision = 6
		}
		s.grow(f.precision)
		if digits = strconv.FormatFloat(math.Abs(x), 'f', min(f.precision, 1<<16), 64); math.IsInf(x, 0) || math.IsNaN(x) {
			digits = strings.ToLower(strings.TrimPrefix(digits, "+"))
		}
	case v.kind == KindFloat && f.verb == 'x':
		raise("%%x format: an integer is required, not float")
	default:
		if v.kind == KindFloat {
			v = floatToInt(v.float())
			negative = v.int() < 0
		}
		base := 10
		if f.verb == 'x' {
			base = 16
		}
		if v.kind == KindBig {
			if digits = strings.TrimPrefix(v.str, "-"); base != 10 {
				beyond()
			}
		} else {
			digits = strings.TrimPrefix(strconv.FormatInt(v.int(), base), "-")
		}
		if missing := f.precision - len(digits); missing > 0 {
			s.grow(missing)
			digits = strings.Repeat("0", missing) + digits
		}
	}
	if negative {
		f.sign = "-"
	}
	return f.pad(s, f.sign, digits)
}

// pad fills text up to the width: behind it, with zeros between sign and digits, or in front.
func (f percentSpec) pad(s *state, sign, text string) string {
	missing := f.width - len(sign) - utf8.RuneCountInString(text)
	if missing <= 0 {
		return sign + text
	}
	s.grow(missing)
	switch {
	case f.left:
		return sign + text + strings.Repeat(" ", missing)
	case f.zero:
		return sign + strings.Repeat("0", missing) + text
	}
	return strings.Repeat(" ", missing) + sign + text
}
