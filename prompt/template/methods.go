package template

import (
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The methods of str, dict and list, as in CPython 3.11, as far as chat templates use them. The methods of str, applied to Markup,
// return Markup and escape the text that they insert, as markupsafe does.

// absentMethods are str's methods that this package does not support.
const absentMethods = "casefold center encode expandtabs format_map index isalnum isascii isdecimal isidentifier islower " +
	"isnumeric isprintable istitle isupper ljust maketrans partition rfind rindex rjust rpartition splitlines swapcase " +
	"translate zfill"

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
	asking("isalpha", unicode.IsLetter),
	asking("isdigit", isDigitRune),
	asking("isspace", isPySpace),
	stripMethod("strip", true, true),
	stripMethod("lstrip", true, false),
	stripMethod("rstrip", false, true),
	splitMethod("split", false),
	splitMethod("rsplit", true),
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
	def("find", "/ sub start! end!", func(s *state, v Value, a []Value) Value {
		s.step(len(v.str) >> 8)
		at := strings.Index(v.str, text(a[0]))
		if at < 0 {
			return Int(-1)
		}
		return Int(int64(utf8.RuneCountInString(v.str[:at])))
	}),
	def("count", "/ sub start! end!", func(_ *state, v Value, a []Value) Value {
		return Int(int64(strings.Count(v.str, text(a[0]))))
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
	if sep == "" && fromRight {
		unsupported("rsplit at white space")
	}
	if sep == "" {
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
	return def(name, "/ affix start! end!", func(s *state, v Value, a []Value) Value {
		fixes := a[:1]
		if a[0].kind == KindTuple {
			fixes = a[0].Items()
			s.step(len(fixes))
		}
		return Bool(slices.ContainsFunc(fixes, func(fix Value) bool {
			s.scan(fix.str)
			return has(v.str, text(fix))
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
	absentMethod("count"), absentMethod("index"),
	def("copy", "", func(_ *state, v Value, _ []Value) Value { return v }),
)

var tupleMethods = table("", absentMethod("count"), absentMethod("index"))

func absentMethod(name string) *builtin {
	return raw(name, func(_ *state, v Value, _ *callArgs) Value { return unsupported("%s.%s", v.typeName(), name) })
}
