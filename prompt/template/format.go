package template

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// The % operator and str.format, as far as chat templates use them: after %, a width, a precision and the types s, r, d, i and f;
// in str.format, fields by position and name and their members, and after a colon a width, a precision and the types d and f.
// Anything else is an error.

// formatText is str.format.
func formatText(s *state, v Value, a *callArgs) Value {
	out := builder{s: s}
	next, manual := 0, false
	for text := v.str; text != ""; {
		i := strings.IndexAny(text, "{}")
		if i < 0 {
			out.add(text)
			break
		}
		out.add(text[:i])
		c := text[i]
		text = text[i+1:]
		if text != "" && text[0] == c {
			out.add(text[:1])
			text = text[1:]
			continue
		}
		end := strings.IndexAny(text, "{}")
		if c == '}' || end < 0 {
			raise("Single '%c' encountered in format string", c)
		}
		name, spec, _ := strings.Cut(text[:end], ":")
		if text[end] == '{' || strings.ContainsAny(name, "![") || v.kind == KindMarkup {
			unsupported("the field {%s of str.format", text[:end])
		}
		if len(name)+len(spec) > longestField {
			unsupported("a field of more than %d bytes in str.format", longestField)
		}
		numbered := allRunes(s, name, isDigitRune)
		manual = manual || numbered
		if manual && name == "" || numbered && next > 0 {
			raise("cannot switch between automatic field numbering and manual field specification")
		}
		if name == "" {
			name = strconv.Itoa(next)
			next++
		}
		s.step(1)
		out.add(formatField(s, formatArgument(s, a, name), spec))
		text = text[end+1:]
	}
	return like(v, out.text())
}

// longestField bounds a field of str.format, in bytes, because its parts are listed.
const longestField = 1024

// formatArgument returns the value of a field: an argument, by number or name, or a member of one ("a.b").
func formatArgument(s *state, a *callArgs, name string) (v Value) {
	path := strings.Split(name, ".")
	for _, k := range a.kw {
		if k.name == path[0] {
			v = k.val
		}
	}
	if i, err := strconv.Atoi(path[0]); err == nil && i < len(a.pos) {
		v = a.pos[i]
	}
	if !v.valid() {
		raise("no argument %s for a format string", quotePython(path[0]))
	}
	for _, member := range path[1:] {
		if member == "" {
			raise("Empty attribute in format string")
		}
		v = getattr(s, v, member)
	}
	return v
}

var fieldSpec = regexp.MustCompile(`^(0?(?:[1-9]\d{0,3})?)(\.\d{1,2})?([df])$`)

// formatField is format(v, spec) for a number; other values accept no spec.
func formatField(s *state, v Value, spec string) string {
	if spec == "" {
		return toStr(s, v)
	}
	m := fieldSpec.FindStringSubmatch(spec)
	if m == nil || !v.isNumber() || m[3] == "d" && v.kind == KindFloat {
		unsupported("the format specification %s of a %s", quotePython(spec), v.typeName())
	}
	return formatNumber(v, m[1], m[2], m[3])
}

func formatFilter(s *state, v Value, a *callArgs) Value {
	if len(a.kw) > 0 {
		unsupported("the filter format with named values")
	}
	return percentFormat(s, softStr(s, v), newTuple(a.pos...))
}

var conversion = regexp.MustCompile(`^(0?(?:[1-9]\d{0,3})?)(\.\d{1,2})?([srdif%])`)

// percentFormat is format % arg.
func percentFormat(s *state, format, arg Value) Value {
	args, next := []Value{arg}, 0
	if arg.kind == KindTuple {
		args = arg.Items()
	}
	out := builder{s: s}
	for rest := format.str; ; {
		plain, after, found := strings.Cut(rest, "%")
		out.add(plain)
		s.step(1)
		if !found {
			break
		}
		m := conversion.FindStringSubmatch(after)
		if m == nil || format.kind == KindMarkup {
			unsupported("the format %s", quotePython("%"+after))
		}
		rest = after[len(m[0]):]
		if m[3] == "%" {
			out.add("%")
			continue
		}
		if next == len(args) {
			raise("not enough arguments for format string")
		}
		v := args[next]
		next++
		shown := ""
		switch {
		case m[3] != "s" && m[3] != "r":
			shown = formatNumber(v, m[1], m[2], m[3])
		case m[1]+m[2] != "":
			unsupported("the format %s", quotePython("%"+m[0]))
		case m[3] == "r":
			quoted := s.appendRepr(nil, v)
			s.grow(len(quoted))
			shown = string(quoted)
		default:
			shown = toStr(s, v)
		}
		out.add(shown)
	}
	// A mapping may stay unused; C's PyMapping_Check accepts these kinds.
	if next < len(args) && arg.kind != KindDict && arg.kind != KindList && arg.kind != KindRange && arg.kind != KindUndefined {
		raise("not all arguments converted during string formatting")
	}
	return like(format, out.text())
}

// formatNumber writes a number with C's conversion for this width, precision (with its dot) and type.
func formatNumber(v Value, width, precision, verb string) string {
	mustExist(v)
	if !v.isNumber() {
		raise("%%%s format: a number is required, not %s", verb, v.typeName())
	}
	if verb == "f" {
		f := toFloat(v)
		if math.IsInf(f, 0) || math.IsNaN(f) {
			unsupported("a format of %v", f)
		}
		return fmt.Sprintf("%"+width+precision+"f", f)
	}
	if precision != "" {
		unsupported("a precision for an int")
	}
	if v.kind == KindFloat {
		v = floatToInt(v.float())
	}
	toFloat(v) // of no more than 64 bits
	return fmt.Sprintf("%"+width+"d", v.int())
}
