package template

import (
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The methods of str, as CPython 3.11 has them. On a Markup they give Markup and escape the text that they bring in,
// as markupsafe does.

// text gives a str argument; anything else raises TypeError.
func text(v Value) string {
	if !v.IsString() {
		if v.kind == KindUndefined {
			failUndefined(v)
		}
		raise(typeError, "expected str, got %s", v.typeName())
	}
	return v.str
}

// like gives a str of the same class as v.
func like(s *state, v Value, text string) Value {
	if len(text) > 0 {
		s.step(1)
	}
	return Value{kind: v.kind, str: text}
}

// made is like for text that was newly made.
func made(s *state, v Value, text string) Value {
	s.grow(len(text))
	return Value{kind: v.kind, str: text}
}

// insert gives the text of an argument that becomes part of v: escaped if v is Markup.
func insert(s *state, v, arg Value) string {
	if v.kind == KindMarkup {
		return escapeValue(s, arg).str
	}
	return text(arg)
}

func strMethod(name string, sig signatureOf, fn func(s *state, v Value, a []Value) Value) *method {
	return &method{name: name, signatureOf: sig, fn: fn}
}

// mapping is a method without arguments that turns text into text.
func mapping(name string, f func(string) string) *method {
	return strMethod(name, takes(), func(s *state, v Value, _ []Value) Value { return made(s, v, f(v.str)) })
}

// asking is a method without arguments that asks something of the text.
func asking(name string, f func(string) bool) *method {
	return strMethod(name, takes(), func(s *state, v Value, _ []Value) Value {
		s.step(len(v.str) / 64)
		return Bool(f(v.str))
	})
}

func table(ms ...*method) map[string]*method {
	t := make(map[string]*method, len(ms))
	for _, m := range ms {
		t[m.name] = m
	}
	return t
}

var strMethods = table(
	mapping("capitalize", capitalizeText),
	mapping("casefold", foldCase),
	mapping("lower", lowerText),
	mapping("swapcase", swapCase),
	mapping("title", titleText),
	mapping("upper", upperText),
	asking("isalnum", func(s string) bool { return all(s, isAlnumRune) }),
	asking("isalpha", func(s string) bool { return all(s, unicode.IsLetter) }),
	asking("isascii", isASCII),
	asking("isdecimal", func(s string) bool { return all(s, isDecimalRune) }),
	asking("isdigit", func(s string) bool { return all(s, isDigitRune) }),
	asking("isidentifier", isIdentifier),
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
	strMethod("splitlines", takes("keepends?"), func(s *state, v Value, a []Value) Value {
		return s.texts(v, splitLines(v.str, a[0].valid() && truth(a[0])))
	}),
	partitionMethod("partition", false),
	partitionMethod("rpartition", true),
	strMethod("replace", takes("old", "new", "count?", "/"), func(s *state, v Value, a []Value) Value {
		return replaceText(s, v, text(a[0]), insert(s, v, a[1]), optInt(a[2], -1))
	}),
	affixMethod("startswith", strings.HasPrefix),
	affixMethod("endswith", strings.HasSuffix),
	strMethod("removeprefix", takes("prefix", "/"), func(s *state, v Value, a []Value) Value {
		return like(s, v, strings.TrimPrefix(v.str, text(a[0])))
	}),
	strMethod("removesuffix", takes("suffix", "/"), func(s *state, v Value, a []Value) Value {
		if cut := text(a[0]); cut != "" {
			return like(s, v, strings.TrimSuffix(v.str, cut))
		}
		return v
	}),
	searchMethod("find", false, false),
	searchMethod("rfind", true, false),
	searchMethod("index", false, true),
	searchMethod("rindex", true, true),
	strMethod("count", takes("sub", "start?", "end?", "/"), func(s *state, v Value, a []Value) Value {
		sub := text(a[0])
		part, _, ok := window(s, v.str, a[1], a[2])
		if !ok {
			return Int(0)
		}
		return Int(int64(strings.Count(part, sub)))
	}),
	strMethod("join", takes("iterable", "/"), func(s *state, v Value, a []Value) Value { return joinText(s, v, a[0]) }),
	padMethod("center", func(left, right, width int) (int, int) {
		// CPython's rule for the odd blank.
		pad := left + right
		left = pad/2 + (pad & width & 1)
		return left, pad - left
	}),
	padMethod("ljust", func(left, right, _ int) (int, int) { return 0, left + right }),
	padMethod("rjust", func(left, right, _ int) (int, int) { return left + right, 0 }),
	strMethod("zfill", takes("width", "/"), func(s *state, v Value, a []Value) Value {
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
	strMethod("expandtabs", takes("tabsize?"), func(s *state, v Value, a []Value) Value {
		return made(s, v, expandTabs(s, v.str, optInt(a[0], 8)))
	}),
	strMethod("encode", takes("encoding?", "errors?"), func(s *state, v Value, a []Value) Value {
		switch enc := strings.ToLower(strings.ReplaceAll(optText(a[0], "utf-8"), "_", "-")); enc {
		case "utf-8", "utf8":
		case "ascii":
			if !isASCII(v.str) {
				raise("UnicodeEncodeError", "'ascii' codec can't encode characters")
			}
		default:
			raise("LookupError", "unknown encoding: %s", enc)
		}
		return Value{kind: KindBytes, str: v.str}
	}),
	strMethod("translate", takes("table", "/"), translateText),
	&method{name: "maketrans", variadic: makeTrans},
)

var markupMethods = table(
	strMethod("striptags", takes(), func(s *state, v Value, _ []Value) Value { return String(stripTags(s, v.str)) }),
	strMethod("unescape", takes(), func(s *state, v Value, _ []Value) Value { return s.str(unescapeHTML(v.str)) }),
	strMethod("escape", takes("s", "/"), func(s *state, _ Value, a []Value) Value { return escapeValue(s, a[0]) }),
)

func optInt(v Value, def int) int {
	if !v.valid() {
		return def
	}
	return integer(v)
}

func optText(v Value, def string) string {
	if !v.valid() {
		return def
	}
	return text(v)
}

// texts makes a list of parts of v.
func (s *state) texts(v Value, parts []string) Value {
	s.step(len(parts))
	items := make([]Value, len(parts))
	for i, p := range parts {
		items[i] = Value{kind: v.kind, str: p}
	}
	return NewList(items...)
}

func stripText(s *state, v, chars Value, left, right bool) Value {
	if !chars.valid() || chars.IsNone() {
		out := v.str
		if left {
			out = trimLeftSpace(out)
		}
		if right {
			out = trimRightSpace(out)
		}
		return like(s, v, out)
	}
	if !chars.IsString() {
		raise(typeError, "strip arg must be None or str")
	}
	out := v.str
	if chars.str == "" { // strings.Trim with an empty set is the identity as well
		return v
	}
	if left {
		out = strings.TrimLeft(out, chars.str)
	}
	if right {
		out = strings.TrimRight(out, chars.str)
	}
	return like(s, v, out)
}

func stripMethod(name string, left, right bool) *method {
	return strMethod(name, takes("chars?", "/"), func(s *state, v Value, a []Value) Value {
		return stripText(s, v, a[0], left, right)
	})
}

func splitMethod(name string, fromRight bool) *method {
	return strMethod(name, takes("sep?", "maxsplit?"), func(s *state, v Value, a []Value) Value {
		n := optInt(a[1], -1)
		if n < 0 {
			n = math.MaxInt32
		}
		if !a[0].valid() || a[0].IsNone() {
			return s.texts(v, splitSpace(v.str, n, fromRight))
		}
		sep := text(a[0])
		if sep == "" {
			raise(valueError, "empty separator")
		}
		if !fromRight {
			return s.texts(v, strings.SplitN(v.str, sep, n+1))
		}
		var parts []string
		rest := v.str
		for len(parts) < n {
			i := strings.LastIndex(rest, sep)
			if i < 0 {
				break
			}
			parts = append(parts, rest[i+len(sep):])
			rest = rest[:i]
		}
		parts = append(parts, rest)
		for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
			parts[i], parts[j] = parts[j], parts[i]
		}
		return s.texts(v, parts)
	})
}

// splitSpace splits at runs of white space, at most n times.
func splitSpace(text string, n int, fromRight bool) []string {
	if fromRight {
		var parts []string
		rest := trimRightSpace(text)
		for rest != "" && len(parts) < n {
			i := strings.LastIndexFunc(rest, isPySpace)
			if i < 0 {
				break
			}
			_, size := utf8.DecodeRuneInString(rest[i:])
			parts = append(parts, rest[i+size:])
			rest = trimRightSpace(rest[:i])
		}
		if rest != "" {
			parts = append(parts, rest)
		}
		for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
			parts[i], parts[j] = parts[j], parts[i]
		}
		return parts
	}
	var parts []string
	rest := trimLeftSpace(text)
	for rest != "" && len(parts) < n {
		i := strings.IndexFunc(rest, isPySpace)
		if i < 0 {
			break
		}
		parts = append(parts, rest[:i])
		rest = trimLeftSpace(rest[i:])
	}
	if rest != "" {
		parts = append(parts, rest)
	}
	return parts
}

func partitionMethod(name string, fromRight bool) *method {
	return strMethod(name, takes("sep", "/"), func(s *state, v Value, a []Value) Value {
		sep := text(a[0])
		if sep == "" {
			raise(valueError, "empty separator")
		}
		i := strings.Index(v.str, sep)
		if fromRight {
			i = strings.LastIndex(v.str, sep)
		}
		before, after := v.str, ""
		switch {
		case i >= 0:
			before, after = v.str[:i], v.str[i+len(sep):]
		case fromRight:
			before, after, sep = "", v.str, ""
		default:
			sep = ""
		}
		return newTuple(like(s, v, before), like(s, v, sep), like(s, v, after))
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
	return Value{kind: v.kind, str: strings.Replace(v.str, old, new, n)}
}

func affixMethod(name string, has func(s, part string) bool) *method {
	return strMethod(name, takes("affix", "start?", "end?", "/"), func(s *state, v Value, a []Value) Value {
		part, _, inside := window(s, v.str, a[1], a[2])
		if a[0].kind != KindTuple {
			fix := text(a[0])
			return Bool(inside && has(part, fix))
		}
		for _, fix := range a[0].Items() {
			if !fix.IsString() {
				raise(typeError, "tuple for %s must only contain str, not %s", name, fix.typeName())
			}
			if inside && has(part, fix.str) {
				return pyTrue
			}
		}
		return pyFalse
	})
}

// window gives text[start:end], the code point position where it starts, and false if start is past the end.
func window(s *state, text string, start, end Value) (string, int, bool) {
	none := func(v Value) bool { return !v.valid() || v.IsNone() }
	if none(start) && none(end) {
		return text, 0, true
	}
	n := utf8.RuneCountInString(text)
	s.step(len(text) / 64)
	orNone := func(v Value) Value {
		if none(v) {
			return None
		}
		return v
	}
	if !none(start) && sliceIndex(start, 0) > n {
		return "", 0, false
	}
	from, to := clampIndex(orNone(start), 0, n, 0, n), clampIndex(orNone(end), n, n, 0, n)
	if from > to {
		return "", 0, false
	}
	return runeSlice(text, from, to), from, true
}

func searchMethod(name string, fromRight, must bool) *method {
	return strMethod(name, takes("sub", "start?", "end?", "/"), func(s *state, v Value, a []Value) Value {
		sub := text(a[0])
		part, from, ok := window(s, v.str, a[1], a[2])
		at := -1
		if ok {
			if fromRight {
				at = strings.LastIndex(part, sub)
			} else {
				at = strings.Index(part, sub)
			}
		}
		if at < 0 {
			if must {
				raise(valueError, "substring not found")
			}
			return Int(-1)
		}
		return Int(int64(from + utf8.RuneCountInString(part[:at])))
	})
}

// joinText is sep.join(iterable).
func joinText(s *state, sep, list Value) Value {
	var b strings.Builder
	items := collect(s, list)
	for i, item := range items {
		var part string
		switch {
		case sep.kind == KindMarkup:
			part = escapeValue(s, item).str
		case !item.IsString():
			raise(typeError, "sequence item %d: expected str instance, %s found", i, item.typeName())
		default:
			part = item.str
		}
		if i > 0 {
			b.WriteString(sep.str)
		}
		b.WriteString(part)
		s.grow(len(sep.str) + len(part))
	}
	return Value{kind: sep.kind, str: b.String()}
}

// padMethod makes center, ljust and rjust; split says how the missing width is spread.
func padMethod(name string, split func(left, right, width int) (int, int)) *method {
	return strMethod(name, takes("width", "fillchar?", "/"), func(s *state, v Value, a []Value) Value {
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
		left, right := split(pad, 0, width)
		return made(s, v, strings.Repeat(fill, left)+v.str+strings.Repeat(fill, right))
	})
}

func expandTabs(s *state, text string, size int) string {
	var b strings.Builder
	col := 0
	for _, r := range text {
		switch r {
		case '\t':
			if size > 0 {
				n := size - col%size
				s.grow(n)
				b.WriteString(strings.Repeat(" ", n))
				col += n
			}
		case '\n', '\r':
			b.WriteRune(r)
			col = 0
		default:
			b.WriteRune(r)
			col++
		}
	}
	return b.String()
}

// translateText is str.translate with a dict (or anything that can be indexed by code point).
func translateText(s *state, v Value, a []Value) Value {
	var b strings.Builder
	for _, r := range v.str {
		s.step(1)
		to, ok := subscript(s, a[0], Int(int64(r)))
		switch {
		case !ok:
			b.WriteRune(r)
		case to.IsNone():
		case to.IsString():
			b.WriteString(to.str)
		case to.kind == KindInt && to.int() >= 0 && to.int() <= utf8.MaxRune:
			b.WriteRune(rune(to.int()))
		default:
			raise(typeError, "character mapping must return integer, None or str")
		}
		s.grow(4)
	}
	return Value{kind: v.kind, str: b.String()}
}

// makeTrans is str.maketrans.
func makeTrans(s *state, _ Value, a *callArgs) Value {
	a.only("maketrans", 1, 3)
	d := NewDict(0)
	if len(a.pos) == 1 {
		from := a.pos[0].Dict()
		if from == nil {
			raise(typeError, "if you give only one argument to maketrans it must be a dict")
		}
		for _, e := range from.entries {
			k := e.Key
			if k.IsString() {
				r, n := utf8.DecodeRuneInString(k.str)
				if n == 0 || n != len(k.str) {
					raise(valueError, "string keys in translate table must be of length 1")
				}
				k = Int(int64(r))
			} else if !k.isInteger() {
				raise(typeError, "keys in translate table must be strings or integers")
			}
			d.set(k, e.Value)
		}
		return d.Value()
	}
	x, y := []rune(text(a.pos[0])), []rune(text(a.pos[1]))
	if len(x) != len(y) {
		raise(valueError, "the first two maketrans arguments must have equal length")
	}
	s.step(len(x))
	for i := range x {
		d.set(Int(int64(x[i])), Int(int64(y[i])))
	}
	if len(a.pos) == 3 {
		for _, r := range text(a.pos[2]) {
			s.step(1)
			d.set(Int(int64(r)), None)
		}
	}
	return d.Value()
}
