package template

import (
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The methods of str, dict, list, tuple and range, as CPython 3.11 has them, as far as a prompt may need them. On a
// Markup the methods of str give Markup and escape the text that they bring in, as markupsafe does.

// methodsOf gives the methods of a value's type.
func methodsOf(v Value) map[string]*builtin {
	switch v.kind {
	case KindString:
		return strMethods
	case KindMarkup:
		return markupMethods
	case KindDict:
		return dictMethods
	case KindList:
		return listMethods
	case KindTuple:
		return tupleMethods
	case KindRange:
		return rangeMethods
	case KindBool, KindInt, KindBig, KindFloat:
		return numberMethods
	}
	return nil
}

// findMethod gives the method of a value, or nil. format is no part of the tables, because its fields can reach them.
func findMethod(v Value, name string) *builtin {
	if m := methodsOf(v)[name]; m != nil || name != "format" || !v.IsString() {
		return m
	}
	return raw(name, formatMethod)
}

// text gives a str argument; anything else raises TypeError.
func text(v Value) string {
	if !v.IsString() {
		wrongType(v, "expected str, got %s")
	}
	return v.str
}

// like gives a part of v, of the same class.
func like(v Value, text string) Value { return Value{kind: v.kind, str: text} }

// made is like for text that was newly made.
func made(s *state, v Value, text string) Value {
	s.grow(len(text))
	return like(v, text)
}

// insert gives the text of an argument that becomes part of v: escaped if v is Markup.
func insert(s *state, v, arg Value) string {
	if v.kind == KindMarkup {
		return escapeValue(s, arg).str
	}
	return text(arg)
}

// mapping is a method without arguments that turns text into text.
func mapping(name string, f func(string) string) *builtin {
	return def(name, "", func(s *state, v Value, _ []Value) Value { return made(s, v, f(v.str)) })
}

// asking is a method without arguments that asks something of the text.
func asking(name string, f func(string) bool) *builtin {
	return def(name, "", func(s *state, v Value, _ []Value) Value {
		s.step(len(v.str) / 64)
		return Bool(f(v.str))
	})
}

var strMethods = table("", "casefold encode expandtabs format_map isidentifier maketrans swapcase translate", textMethods...)

var markupMethods = table("", "casefold encode expandtabs format_map isidentifier maketrans swapcase translate", append(textMethods,
	def("striptags", "", func(s *state, v Value, _ []Value) Value { return String(stripTags(s, v.str)) }),
	def("escape", "/ s", func(s *state, _ Value, a []Value) Value { return escapeValue(s, a[0]) }),
)...)

var textMethods = []*builtin{
	mapping("capitalize", capitalizeText),
	mapping("lower", lowerText),
	mapping("title", titleText),
	mapping("upper", upperText),
	asking("isalnum", func(s string) bool { return all(s, isAlnumRune) }),
	asking("isalpha", func(s string) bool { return all(s, unicode.IsLetter) }),
	asking("isascii", isASCII),
	asking("isdecimal", func(s string) bool { return all(s, isDecimalRune) }),
	asking("isdigit", func(s string) bool { return all(s, isDigitRune) }),
	asking("islower", func(s string) bool { return caseOf(s, isLowerRune) }),
	asking("isnumeric", func(s string) bool { return all(s, isNumericRune) }),
	asking("isprintable", func(s string) bool { return s == "" || all(s, isPyPrintable) }),
	asking("isspace", func(s string) bool { return all(s, isPySpace) }),
	asking("istitle", isTitleText),
	asking("isupper", func(s string) bool { return caseOf(s, isUpperRune) }),
	stripMethod("strip", true, true),
	stripMethod("lstrip", true, false),
	stripMethod("rstrip", false, true),
	splitMethod("split", false),
	splitMethod("rsplit", true),
	def("splitlines", "keepends?", func(s *state, v Value, a []Value) Value {
		return s.texts(v, splitLines(v.str, flag(a[0], false)))
	}),
	partitionMethod("partition", false),
	partitionMethod("rpartition", true),
	def("replace", "/ old new count?", func(s *state, v Value, a []Value) Value {
		return replaceText(s, v, text(a[0]), insert(s, v, a[1]), optInt(a[2], -1))
	}),
	affixMethod("startswith", strings.HasPrefix),
	affixMethod("endswith", strings.HasSuffix),
	def("removeprefix", "/ prefix", func(_ *state, v Value, a []Value) Value {
		return like(v, strings.TrimPrefix(v.str, text(a[0])))
	}),
	def("removesuffix", "/ suffix", func(_ *state, v Value, a []Value) Value {
		return like(v, strings.TrimSuffix(v.str, text(a[0])))
	}),
	searchMethod("find", strings.Index, false),
	searchMethod("rfind", strings.LastIndex, false),
	searchMethod("index", strings.Index, true),
	searchMethod("rindex", strings.LastIndex, true),
	def("count", "/ sub start? end?", func(s *state, v Value, a []Value) Value {
		part, _, ok := window(s, v.str, a[1], a[2])
		if n := strings.Count(part, text(a[0])); ok {
			return Int(int64(n))
		}
		return Int(0)
	}),
	def("join", "/ iterable", joinText),
	padMethod("center", func(pad, width int) int { return pad/2 + (pad & width & 1) }), // CPython's rule for the odd blank
	padMethod("ljust", func(int, int) int { return 0 }),
	padMethod("rjust", func(pad, _ int) int { return pad }),
	def("zfill", "/ width", func(s *state, v Value, a []Value) Value {
		pad := integer(a[0]) - utf8.RuneCountInString(v.str)
		if pad <= 0 {
			return v
		}
		s.grow(pad)
		sign := ""
		if v.str != "" && (v.str[0] == '+' || v.str[0] == '-') {
			sign = v.str[:1]
		}
		return made(s, v, sign+strings.Repeat("0", pad)+v.str[len(sign):])
	}),
}

// texts makes a list of parts of v.
func (s *state) texts(v Value, parts []string) Value {
	items := make([]Value, len(parts))
	for i, p := range parts {
		items[i] = like(v, p)
	}
	return s.list(items)
}

// stripText strips the characters in chars, or white space if it is None or not given.
func stripText(s *state, v, chars Value, left, right bool) Value {
	s.step(1)
	is := isPySpace
	if given(chars) {
		set := text(chars)
		is = func(r rune) bool { return strings.ContainsRune(set, r) }
	}
	out := v.str
	if left {
		out = strings.TrimLeftFunc(out, is)
	}
	if right {
		out = strings.TrimRightFunc(out, is)
	}
	return like(v, out)
}

func stripMethod(name string, left, right bool) *builtin {
	return def(name, "/ chars?", func(s *state, v Value, a []Value) Value { return stripText(s, v, a[0], left, right) })
}

func splitMethod(name string, fromRight bool) *builtin {
	return def(name, "sep? maxsplit?", func(s *state, v Value, a []Value) Value {
		n, sep := optInt(a[1], -1), ""
		if n < 0 {
			n = math.MaxInt32
		}
		if given(a[0]) {
			if sep = text(a[0]); sep == "" {
				raise(valueError, "empty separator")
			}
		}
		return s.texts(v, splitText(v.str, sep, n, fromRight))
	})
}

// splitText cuts text at most n times, at sep or, where that is empty, at runs of white space.
func splitText(text, sep string, n int, fromRight bool) []string {
	if sep != "" && !fromRight {
		return strings.SplitN(text, sep, n+1)
	}
	var parts []string
	for {
		switch {
		case sep == "" && fromRight:
			text = trimRightSpace(text)
		case sep == "":
			text = trimLeftSpace(text)
		}
		at, width := -1, len(sep)
		switch {
		case len(parts) == n:
		case sep != "":
			at = strings.LastIndex(text, sep)
		case fromRight:
			at = strings.LastIndexFunc(text, isPySpace)
		default:
			at = strings.IndexFunc(text, isPySpace)
		}
		if at < 0 {
			break
		}
		if sep == "" {
			_, width = utf8.DecodeRuneInString(text[at:])
		}
		if fromRight {
			parts, text = append(parts, text[at+width:]), text[:at]
		} else {
			parts, text = append(parts, text[:at]), text[at+width:]
		}
	}
	if sep != "" || text != "" {
		parts = append(parts, text)
	}
	if fromRight {
		slices.Reverse(parts)
	}
	return parts
}

func partitionMethod(name string, fromRight bool) *builtin {
	return def(name, "/ sep", func(_ *state, v Value, a []Value) Value {
		sep := text(a[0])
		if sep == "" {
			raise(valueError, "empty separator")
		}
		before, after, found := strings.Cut(v.str, sep)
		if i := strings.LastIndex(v.str, sep); fromRight && found {
			before, after = v.str[:i], v.str[i+len(sep):]
		}
		switch {
		case !found && fromRight:
			before, sep, after = "", "", v.str
		case !found:
			sep = ""
		}
		return newTuple(like(v, before), like(v, sep), like(v, after))
	})
}

// replaceText is str.replace; n < 0 replaces all.
func replaceText(s *state, v Value, old, new string, n int) Value {
	count := strings.Count(v.str, old)
	if n >= 0 && n < count {
		count = n
	}
	if count == 0 {
		return v
	}
	s.grow(len(v.str) + count*max(0, len(new)-len(old)))
	return like(v, strings.Replace(v.str, old, new, n))
}

func affixMethod(name string, has func(s, part string) bool) *builtin {
	return def(name, "/ affix start? end?", func(s *state, v Value, a []Value) Value {
		part, _, inside := window(s, v.str, a[1], a[2])
		fixes := a[:1]
		if a[0].kind == KindTuple {
			fixes = a[0].Items()
		}
		for _, fix := range fixes {
			if has(part, text(fix)) && inside {
				return pyTrue
			}
		}
		return pyFalse
	})
}

// window gives text[start:end], the code point position where it starts, and false if start is past the end.
func window(s *state, text string, start, end Value) (string, int, bool) {
	if !given(start) && !given(end) {
		return text, 0, true
	}
	n := utf8.RuneCountInString(text)
	s.step(len(text) / 64)
	start, end = start.or(None), end.or(None)
	from, to := clampIndex(start, 0, n, 0, n), clampIndex(end, n, n, 0, n)
	if from > to || sliceIndex(start, 0) > n {
		return "", 0, false
	}
	return runeSlice(text, from, to), from, true
}

func searchMethod(name string, index func(s, sub string) int, must bool) *builtin {
	return def(name, "/ sub start? end?", func(s *state, v Value, a []Value) Value {
		part, from, ok := window(s, v.str, a[1], a[2])
		at := index(part, text(a[0]))
		switch {
		case ok && at >= 0:
			return Int(int64(from + utf8.RuneCountInString(part[:at])))
		case must:
			raise(valueError, "substring not found")
		}
		return Int(-1)
	})
}

// joinText is sep.join(iterable).
func joinText(s *state, sep Value, a []Value) Value {
	var b strings.Builder
	for i, item := range collect(s, a[0]) {
		if i > 0 {
			b.WriteString(sep.str)
		}
		part := insert(s, sep, item)
		b.WriteString(part)
		s.grow(len(sep.str) + len(part))
	}
	return like(sep, b.String())
}

// padMethod makes center, ljust and rjust; before says how much of the missing width goes in front.
func padMethod(name string, before func(pad, width int) int) *builtin {
	return def(name, "/ width fillchar?", func(s *state, v Value, a []Value) Value {
		fill := " "
		if a[1].valid() {
			if fill = insert(s, v, a[1]); utf8.RuneCountInString(fill) != 1 {
				raise(typeError, "The fill character must be exactly one character long")
			}
		}
		width := integer(a[0])
		pad := width - utf8.RuneCountInString(v.str)
		if pad <= 0 {
			return v
		}
		s.grow(pad * len(fill))
		left := before(pad, width)
		return made(s, v, strings.Repeat(fill, left)+v.str+strings.Repeat(fill, pad-left))
	})
}

func viewMethod(name string, kind byte) *builtin {
	return def(name, "", func(_ *state, v Value, _ []Value) Value { return object(&dictView{v.ref.(*Dict), kind}) })
}

var dictMethods = table("clear pop popitem setdefault update", "",
	viewMethod("keys", 'k'),
	viewMethod("values", 'v'),
	viewMethod("items", 'i'),
	def("get", "/ key default?", func(_ *state, v Value, a []Value) Value {
		if found, ok := v.ref.(*Dict).lookup(a[0]); ok {
			return found
		}
		return a[1].or(None)
	}),
	def("copy", "", func(_ *state, v Value, _ []Value) Value { return v }),
	def("fromkeys", "/ iterable value?", fromKeys),
)

var listMethods = table("append clear extend insert pop remove reverse sort", "", countMethod, indexMethod,
	def("copy", "", func(_ *state, v Value, _ []Value) Value { return v }),
)

var tupleMethods = table("", "", countMethod, indexMethod)

var rangeMethods = table("", "start stop step", countMethod, indexMethod)

var numberMethods = table("", "real imag numerator denominator conjugate bit_length bit_count as_integer_ratio to_bytes from_bytes is_integer hex fromhex")

var countMethod = def("count", "/ value", func(s *state, v Value, a []Value) Value {
	n := 0
	for _, item := range collect(s, v) {
		if identical(item, a[0]) || equal(s, item, a[0]) {
			n++
		}
	}
	return Int(int64(n))
})

var indexMethod = def("index", "/ value start? stop?", func(s *state, v Value, a []Value) Value {
	items := collect(s, v)
	from := clampIndex(a[1].or(None), 0, len(items), 0, len(items))
	to := clampIndex(a[2].or(None), len(items), len(items), 0, len(items))
	for i := from; i < to; i++ {
		if identical(items[i], a[0]) || equal(s, items[i], a[0]) {
			return Int(int64(i))
		}
	}
	return raise(valueError, "%s is not in list", toStr(s, a[0]))
})
