package template

import "strings"

// The % operator on str: printf-style formatting, %[(name)][flags][width][.precision]type.

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
				raise(typeError, "format requires a mapping and a key in parentheses")
			}
			var ok bool
			if v, ok = subscript(s, arg, String(key)); !ok {
				raise(keyError, "%s", quotePython(key))
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
				raise(typeError, "not enough arguments for format string")
			}
			v = args[next]
			next++
		}
		part := f.percent(s, v, format.kind == KindMarkup)
		s.grow(len(part))
		out.WriteString(part)
	}
	if next < len(args) && !hasKeys {
		raise(typeError, "not all arguments converted during string formatting")
	}
	return made(s, format, out.String())
}

// parsePercent reads what follows the % sign and the key, and gives the rest of the format.
func parsePercent(format string) (f formatSpec, rest string) {
	f = formatSpec{fill: " ", align: '>'}
	r := specReader(format)
	for {
		c := r.any("-+ 0")
		if c == 0 {
			break
		}
		switch {
		case c == '-':
			f.align = '<'
		case c == '0':
			f.zero = true
		case f.sign != '+':
			f.sign = c
		}
	}
	f.width, f.precision = r.number(), -1
	if r.any(".") != 0 {
		f.precision = max(r.number(), 0)
	}
	if f.verb = r.any("sdiuoxXeEfFgGr%"); f.verb == 0 {
		raise(valueError, "unsupported format character in %s", quotePython("%"+format))
	}
	return f, string(r)
}

// percent formats one value.
func (f formatSpec) percent(s *state, v Value, escape bool) string {
	switch f.verb {
	case 's':
		text := toStr(s, v)
		if escape {
			text = escapeValue(s, v).str
		}
		return f.pad(s, "", f.cut(text), '>')
	case 'r':
		text := string(s.appendRepr(nil, v))
		if escape {
			text = escapeHTML(text)
		}
		return f.pad(s, "", f.cut(text), '>')
	}
	mustExist(v)
	if !v.isNumber() {
		raise(typeError, "%%%c format: a number is required, not %s", f.verb, v.typeName())
	}
	if f.zero && f.align == '>' {
		f.fill, f.align = "0", '='
	}
	switch f.verb {
	case 'd', 'i', 'u':
		if f.verb = 'd'; v.kind == KindFloat {
			v = floatToInt(v.float())
		}
	case 'o', 'x', 'X':
	default:
		return f.float(s, toFloat(v))
	}
	if !v.isInteger() {
		raise(typeError, "%%%c format: an integer is required, not %s", f.verb, v.typeName())
	}
	digits := f.digits(v)
	if missing := f.precision - len(digits); missing > 0 {
		s.grow(missing)
		digits = strings.Repeat("0", missing) + digits
	}
	return f.pad(s, f.signOf(v.bigInt().Sign() < 0), digits, '>')
}
