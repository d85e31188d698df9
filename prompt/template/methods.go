package template

import (
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
)

// The methods of str, dict and list, as in CPython 3.11, as far as chat templates use them. The methods of str, applied to Markup,
// return Markup and escape the text that they insert, as markupsafe does.

// absentAttributes are those of Python's own types, by Kind, that this package does not support.
var absentAttributes = [KindObject + 1]string{
	KindBool: ofInt, KindInt: ofInt, KindBig: ofInt, KindFloat: "as_integer_ratio conjugate fromhex hex imag is_integer real",
	KindString: ofStr, KindMarkup: ofStr + " escape striptags unescape", KindRange: "start step stop", KindView: "isdisjoint mapping",
	KindObject: "close gi_code gi_frame gi_running gi_suspended gi_yieldfrom send throw", // of generators
}

const (
	ofInt = "as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag is_integer numerator real to_bytes"
	ofStr = "encode expandtabs format_map isidentifier maketrans translate"
)

// findMethod returns the method of a value, or nil.
func findMethod(v Value, name string) *builtin {
	switch v.kind {
	case KindString, KindMarkup:
		if name == "format" { // not in the table, because that would be an initialization cycle
			return raw(name, formatText)
		}
		return strMethods[name]
	case KindDict:
		return dictMethods[name]
	case KindList:
		return listMethods[name]
	case KindTuple, KindRange:
		return tupleMethods[name]
	}
	return nil
}

// text returns a str argument.
func text(v Value) string {
	if !v.IsString() {
		wrongType(v, "expected str, got %s")
	}
	return v.str
}

// like returns a part of v, of the same class.
func like(v Value, text string) Value { return Value{kind: v.kind, str: text} }

// insert returns an argument's text for insertion into v: escaped if v is Markup.
func insert(s *state, v, arg Value) string {
	if v.kind == KindMarkup {
		return escapeValue(s, arg).str
	}
	return text(arg)
}

// mapping is a method without arguments that turns text into text, and accounts for it.
func mapping(name string, f func(*state, string) string) *builtin {
	return def(name, "", func(s *state, v Value, _ []Value) Value { return like(v, f(s, v.str)) })
}

// asking returns a method without arguments that reports whether the text is not empty and all its characters satisfy is.
func asking(name string, is func(rune) bool) *builtin {
	return def(name, "", func(s *state, v Value, _ []Value) Value {
		s.step(len(v.str) / 64)
		return Bool(allRunes(s, v.str, is))
	})
}

var strMethods = table("",
	mapping("capitalize", capitalizeText),
	mapping("lower", lowerText),
	mapping("title", titleText),
	mapping("upper", upperText),
	mapping("casefold", func(s *state, text string) string { return mapPieces(s, text, strings.ToLower, cases.Fold().String) }),
	mapping("swapcase", swapCase),
	asking("isalpha", unicode.IsLetter),
	asking("isalnum", func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }),
	asking("isdecimal", func(r rune) bool { return unicode.Is(unicode.Nd, r) }),
	asking("isdigit", isDigitRune),
	asking("isnumeric", isNumericRune),
	asking("isspace", isPySpace),
	def("isascii", "", func(_ *state, v Value, _ []Value) Value { return Bool(isASCII(v.str)) }),
	def("isprintable", "", func(s *state, v Value, _ []Value) Value {
		return Bool(v.str == "" || allRunes(s, v.str, unicode.IsPrint))
	}),
	casedMethod("islower", func(r rune, _ bool) bool { return !unicode.IsUpper(r) && !unicode.IsTitle(r) }),
	casedMethod("isupper", func(r rune, _ bool) bool { return !unicode.IsLower(r) && !unicode.IsTitle(r) }),
	casedMethod("istitle", func(r rune, inWord bool) bool { return unicode.IsLower(r) == inWord }),
	padMethod("ljust", func(int, int) int { return 0 }),
	padMethod("rjust", func(_, missing int) int { return missing }),
	padMethod("center", func(width, missing int) int { return missing/2 + missing&width&1 }),
	def("zfill", "/ width", func(s *state, v Value, a []Value) Value {
		at := 0 // behind the sign
		if strings.HasPrefix(v.str, "+") || strings.HasPrefix(v.str, "-") {
			at = 1
		}
		s.scan(v.str)
		missing := max(0, integer(a[0])-utf8.RuneCountInString(v.str))
		s.grow(len(v.str) + missing)
		return like(v, v.str[:at]+strings.Repeat("0", missing)+v.str[at:])
	}),
	stripMethod("strip", true, true),
	stripMethod("lstrip", true, false),
	stripMethod("rstrip", false, true),
	splitMethod("split", false),
	splitMethod("rsplit", true),
	def("replace", "/ old new count?", func(s *state, v Value, a []Value) Value {
		return replaceText(s, v, text(a[0]), insert(s, v, a[1]), optInt(a[2], -1))
	}),
	def("splitlines", "keepends?", splitLines),
	partMethod("partition", strings.Index, false),
	partMethod("rpartition", strings.LastIndex, true),
	affixMethod("startswith", strings.HasPrefix),
	affixMethod("endswith", strings.HasSuffix),
	def("removeprefix", "/ prefix", func(_ *state, v Value, a []Value) Value {
		return like(v, strings.TrimPrefix(v.str, text(a[0])))
	}),
	def("removesuffix", "/ suffix", func(_ *state, v Value, a []Value) Value {
		return like(v, strings.TrimSuffix(v.str, text(a[0])))
	}),
	findMethodOf("find", strings.Index), findMethodOf("rfind", strings.LastIndex),
	findMethodOf("index", strings.Index), findMethodOf("rindex", strings.LastIndex),
	def("count", "/ sub start? end?", func(s *state, v Value, a []Value) Value {
		if part, _, ok := between(s, v, a[1], a[2]); ok {
			return Int(int64(strings.Count(part, text(a[0]))))
		}
		return Int(0)
	}),
	def("join", "/ iterable", func(s *state, sep Value, a []Value) Value {
		b := builder{s: s}
		for i, item := range elements(s, a[0]) {
			if i > 0 {
				b.add(sep.str)
			}
			s.step(1)
			b.add(insert(s, sep, item))
		}
		return like(sep, b.text())
	}),
)

// stripText strips the characters in chars, or white space if it is None or not given.
func stripText(s *state, v, chars Value, left, right bool) Value {
	s.step(1)
	is := func(r rune) bool { s.work(1); return isPySpace(r) }
	if given(chars) {
		set := runeSet(s, text(chars))
		is = func(r rune) bool { s.work(1); return set[r] }
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

// runeSet returns the characters of a text.
func runeSet(s *state, text string) map[rune]bool {
	set := make(map[rune]bool, min(len(text), 128))
	for _, r := range text {
		s.work(1)
		if !set[r] {
			s.grow(32)
			set[r] = true
		}
	}
	return set
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
			sep = text(a[0])
			if sep == "" {
				raise("empty separator")
			}
		}
		return NewList(splitText(s, v, sep, n, fromRight)...)
	})
}

// splitText splits a str at most n times, at sep or, if sep is empty, at runs of white space. The parts are counted before the list is
// made: a text of separators would take fifty times its size.
func splitText(s *state, v Value, sep string, n int, fromRight bool) []Value {
	switch {
	case sep == "" && fromRight:
		return splitAtSpaceFromRight(s, v, n)
	case sep == "":
		return splitAtSpace(s, v, n)
	}
	s.scan(v.str)
	count := 1 + min(n, strings.Count(v.str, sep))
	s.list(count)
	items, rest, last := make([]Value, count), v.str, count-1
	for i := range last {
		if fromRight {
			at := strings.LastIndex(rest, sep)
			items[count-1-i], rest = like(v, rest[at+len(sep):]), rest[:at]
			continue
		}
		at := strings.Index(rest, sep)
		items[i], rest = like(v, rest[:at]), rest[at+len(sep):]
	}
	if fromRight {
		last = 0
	}
	items[last] = like(v, rest)
	return items
}

// splitAtSpace splits a str at most n times at runs of white space.
func splitAtSpace(s *state, v Value, n int) []Value {
	each := func(yield func(part string)) {
		at := 0
		for text := trimLeftSpace(v.str); text != ""; text = trimLeftSpace(text) {
			end := strings.IndexFunc(text, isPySpace)
			at++
			if end < 0 || at > n {
				end = len(text)
			}
			s.work(end)
			yield(text[:end])
			text = text[end:]
		}
	}
	count := 0
	each(func(string) { count++ })
	s.list(count)
	items := make([]Value, 0, count)
	each(func(part string) { items = append(items, like(v, part)) })
	return items
}

// splitAtSpaceFromRight splits a str at most n times at runs of white space, beginning at its end.
func splitAtSpaceFromRight(s *state, v Value, n int) (items []Value) {
	for rest := trimRightSpace(v.str); rest != ""; rest = trimRightSpace(rest) {
		at := 0
		if len(items) < n {
			at = strings.LastIndexFunc(rest, isPySpace)
			_, size := utf8.DecodeRuneInString(rest[max(at, 0):])
			at = max(0, at+size*min(1, at+1))
		}
		s.work(len(rest) - at)
		s.list(1)
		items, rest = append(items, like(v, rest[at:])), rest[:at]
	}
	slices.Reverse(items)
	return items
}

// splitLines is str.splitlines. The lines are counted before the list is made.
func splitLines(s *state, v Value, a []Value) Value {
	count := 0
	for rest := v.str; rest != ""; count++ {
		_, rest, _ = cutLine(rest)
	}
	s.work(2 * len(v.str))
	s.list(count)
	lines := make([]Value, 0, count)
	for rest := v.str; rest != ""; {
		line, after, _ := cutLine(rest)
		if flag(a[0]) {
			line = rest[:len(rest)-len(after)]
		}
		lines, rest = append(lines, like(v, line)), after
	}
	return NewList(lines...)
}

// partMethod is str.partition, or with whole str.rpartition, which leaves a text without the separator at the end.
func partMethod(name string, index func(s, sep string) int, last bool) *builtin {
	return def(name, "/ sep", func(s *state, v Value, a []Value) Value {
		sep, none := text(a[0]), like(v, "")
		if sep == "" {
			raise("empty separator")
		}
		s.scan(v.str)
		s.list(3)
		switch at := index(v.str, sep); {
		case at >= 0:
			return newTuple(like(v, v.str[:at]), like(v, sep), like(v, v.str[at+len(sep):]))
		case last:
			return newTuple(none, none, v)
		}
		return newTuple(v, none, none)
	})
}

// between returns the part of a str from start to end, which may be absent, and its place in characters. ok is false if start is behind it.
func between(s *state, v, start, end Value) (part string, from int, ok bool) {
	s.scan(v.str)
	if !given(start) && !given(end) {
		return v.str, 0, true
	}
	n := utf8.RuneCountInString(v.str)
	from, to := clampIndex(start.or(None), 0, n, 0, n+1), clampIndex(end.or(None), n, n, 0, n)
	if from > to {
		return "", 0, false
	}
	return runeSlice(v.str, from, to), from, true
}

// findMethodOf is find, index and the like, which count characters.
func findMethodOf(name string, index func(s, sub string) int) *builtin {
	return def(name, "/ sub start? end?", func(s *state, v Value, a []Value) Value {
		sub := text(a[0])
		if part, from, ok := between(s, v, a[1], a[2]); ok {
			if at := index(part, sub); at >= 0 {
				return Int(int64(from + utf8.RuneCountInString(part[:at])))
			}
		}
		if strings.HasSuffix(name, "index") {
			raise("substring not found")
		}
		return Int(-1)
	})
}

// casedMethod asks whether a text has cased letters, all of which satisfy is; inWord: the character before is cased.
func casedMethod(name string, is func(r rune, inWord bool) bool) *builtin {
	return def(name, "", func(s *state, v Value, _ []Value) Value {
		any, inWord := false, false
		ok := v.str == "" || allRunes(s, v.str, func(r rune) bool {
			was := inWord
			inWord = isCased(r)
			any = any || inWord
			return !inWord || is(r, was)
		})
		return Bool(any && ok)
	})
}

// padMethod pads a text to a width in characters; left returns how much of what is missing goes in front.
func padMethod(name string, left func(width, missing int) int) *builtin {
	return def(name, "/ width fillchar?", func(s *state, v Value, a []Value) Value {
		width, fill := integer(a[0]), a[1].or(String(" "))
		if utf8.RuneCountInString(text(fill)) != 1 {
			raise("The fill character must be exactly one character long")
		}
		s.scan(v.str)
		missing := max(0, width-utf8.RuneCountInString(v.str))
		s.grow(len(v.str) + missing*len(fill.str))
		n := left(width, missing)
		return like(v, strings.Repeat(fill.str, n)+v.str+strings.Repeat(fill.str, missing-n))
	})
}

// swapCase is str.swapcase. Letters beyond ASCII, of which some become several, are not supported.
func swapCase(s *state, text string) string {
	s.grow(len(text))
	return strings.Map(func(r rune) rune {
		s.work(1)
		switch {
		case r >= utf8.RuneSelf && isCased(r):
			unsupported("the other case of %s", quotePython(string(r)))
		case unicode.IsUpper(r):
			return unicode.ToLower(r)
		}
		return unicode.ToUpper(r)
	}, text)
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
		part, _, ok := between(s, v, a[1], a[2])
		fixes := a[:1]
		if a[0].kind == KindTuple {
			fixes = a[0].Items()
			s.step(len(fixes))
		}
		return Bool(slices.ContainsFunc(fixes, func(fix Value) bool {
			s.scan(fix.str)
			return has(part, text(fix)) && ok
		}))
	})
}

func viewMethod(name string, elements func(*state, *Dict) []Value) *builtin {
	return def(name, "", func(s *state, v Value, _ []Value) Value {
		return Value{kind: KindView, ref: &List{items: elements(s, mustDict(v))}}
	})
}

var dictMethods = table("clear pop popitem setdefault update",
	viewMethod("keys", keysOf),
	viewMethod("values", valuesOf),
	viewMethod("items", pairsOf),
	def("get", "/ key default?", func(s *state, v Value, a []Value) Value {
		s.scan(a[0].str)
		if found, ok := v.ref.(*Dict).lookup(a[0]); ok {
			return found
		}
		return a[1].or(None)
	}),
	def("copy", "", func(_ *state, v Value, _ []Value) Value { return v }),
	def("fromkeys", "/ iterable value?", func(s *state, _ Value, a []Value) Value {
		keys := elements(s, a[0])
		s.step(len(keys))
		s.grow(len(keys) * pairBytes)
		d := NewDict(0)
		for _, k := range keys {
			s.scan(k.str)
			d.set(k, a[1].or(None))
		}
		return d.Value()
	}),
)

var listMethods = table("append clear extend insert pop remove reverse sort",
	countMethod, indexMethod,
	def("copy", "", func(_ *state, v Value, _ []Value) Value { return v }),
)

var tupleMethods = table("", countMethod, indexMethod)

var countMethod = def("count", "/ value", func(s *state, v Value, a []Value) Value {
	n := 0
	for _, e := range v.Items() {
		s.step(1)
		if same(s, e, a[0]) {
			n++
		}
	}
	return Int(int64(n))
})

var indexMethod = def("index", "/ value start? stop?", func(s *state, v Value, a []Value) Value {
	items := v.Items()
	from, to := clampIndex(a[1].or(None), 0, len(items), 0, len(items)), clampIndex(a[2].or(None), len(items), len(items), 0, len(items))
	for i := from; i < to; i++ {
		s.step(1)
		if same(s, items[i], a[0]) {
			return Int(int64(i))
		}
	}
	return raise("it is not in the %s", v.typeName())
})
