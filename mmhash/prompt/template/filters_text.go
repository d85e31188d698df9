package template

import (
	"html"
	"strings"
	"unicode/utf8"
)

// Filters over text, HTML and URLs.

func defaultFilter(_ *state, v Value, a []Value) Value {
	if v.kind != KindUndefined && (truth(v) || !flag(a[1], false)) {
		return v
	}
	return a[0].or(String(""))
}

func attrFilter(s *state, v Value, a []Value) Value {
	name := text(a[0])
	if found, ok := attribute(v, name); ok {
		return private(v, name, found)
	}
	return undefinedOf(v, name)
}

func centerFilter(s *state, v Value, a []Value) Value {
	return strMethods["center"].fn(s, softStr(s, v), []Value{a[0].or(Int(80)), {}})
}

func formatFilter(s *state, v Value, a *callArgs) Value {
	if len(a.kw) == 0 {
		return percentFormat(s, softStr(s, v), newTuple(a.pos...))
	}
	if len(a.pos) > 0 {
		raise(filterArgError, "can't handle positional and keyword arguments at the same time")
	}
	return percentFormat(s, softStr(s, v), dictFrom(s, a))
}

// titleFilter starts every word with an upper case letter; words begin after white space and -({[<.
func titleFilter(s *state, v Value, _ []Value) Value {
	text := softStr(s, v).str
	var b strings.Builder
	start := true
	from := 0
	flush := func(to int) {
		b.WriteString(lowerText(text[from:to]))
		from = to
	}
	for i, r := range text {
		switch {
		case isPySpace(r) || strings.ContainsRune("-({[<", r):
			flush(i)
			b.WriteRune(r)
			from = i + utf8.RuneLen(r)
			start = true
		case start:
			flush(i)
			b.WriteString(upperText(string(r)))
			from = i + utf8.RuneLen(r)
			start = false
		}
	}
	flush(len(text))
	return s.str(b.String()) // "".join: Markup is lost
}

func wordCountFilter(s *state, v Value, _ []Value) Value {
	word := func(r rune) bool { return r == '_' || isAlnumRune(r) }
	return Int(int64(len(strings.FieldsFunc(toStr(s, v), func(r rune) bool { return !word(r) }))))
}

func indentFilter(s *state, v Value, a []Value) Value {
	if !v.IsString() {
		add(s, v, String("\n")) // raises what Python raises
		raise(attributeError, "'%s' object has no attribute 'splitlines'", v.typeName())
	}
	width := a[0].or(Int(4))
	indent := width.str
	if !width.IsString() {
		indent = strings.Repeat(" ", repeats(width, 1))
	}
	first, blank := flag(a[1], false), flag(a[2], false)
	var b strings.Builder
	for i, line := range splitLines(v.str+"\n", false) {
		if i > 0 {
			b.WriteByte('\n')
		}
		if i == 0 && first || i > 0 && (blank || line != "") {
			b.WriteString(indent)
		}
		b.WriteString(line)
		s.grow(len(indent) + len(line))
	}
	return Value{kind: v.kind, str: b.String()}
}

func truncateFilter(s *state, v Value, a []Value) Value {
	limit, leeway, end := optInt(a[0], 255), 5, a[2].or(String("..."))
	if given(a[3]) {
		leeway = integer(a[3])
	}
	endLen, n := mustLength(end), mustLength(v)
	if limit < endLen || leeway < 0 {
		raise(assertionError, "expected length >= %d, got %d, and leeway >= 0, got %d", endLen, limit, leeway)
	}
	if n <= limit+leeway {
		return v
	}
	cut := slice(s, v, None, Int(int64(limit-endLen)), None)
	if !flag(a[1], false) {
		if i := strings.LastIndexByte(text(cut), ' '); i >= 0 {
			cut.str = cut.str[:i]
		}
	}
	return add(s, cut, end)
}

func replaceFilter(s *state, v Value, a []Value) Value {
	n := -1
	if given(a[2]) {
		n = integer(a[2])
	}
	return replaceText(s, String(toStr(s, v)), toStr(s, a[0]), toStr(s, a[1]), n)
}

func joinFilter(s *state, v Value, a []Value) Value {
	sep, g := toStr(s, a[0].or(String(""))), newGetter(a[1], false)
	from := s.beginCapture()
	for i, e := range collect(s, v) {
		if i > 0 {
			s.write(sep)
		}
		item := g.get(s, e)
		s.print(&item)
	}
	return String(s.endCapture(from))
}

func escapeFilter(s *state, v Value, _ []Value) Value { return escapeValue(s, v) }

// stripTags removes comments, then tags, joins the words by single blanks and resolves entities.
func stripTags(s *state, text string) string {
	for _, mark := range [][2]string{{"<!--", "-->"}, {"<", ">"}} {
		var b strings.Builder
		for {
			start := strings.Index(text, mark[0])
			end := strings.Index(text[max(start, 0):], mark[1])
			if start < 0 || end < 0 {
				break
			}
			b.WriteString(text[:start])
			text = text[start+end+len(mark[1]):]
		}
		b.WriteString(text)
		text = b.String()
	}
	s.grow(2 * len(text))
	return html.UnescapeString(strings.Join(strings.FieldsFunc(text, isPySpace), " "))
}

// quoteURL percent-encodes everything but letters, digits, "_.-~" and what safe holds.
func quoteURL(text, safe string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		if isAlnumASCII(rune(c)) || strings.IndexByte("_.-~"+safe, c) >= 0 {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		}
	}
	return b.String()
}

func urlEncodeFilter(s *state, v Value, _ []Value) Value {
	if v.IsString() || !iterable(v) {
		return s.str(quoteURL(toStr(s, v), "/"))
	}
	if d := v.Dict(); d != nil {
		v = object(&dictView{d, 'i'})
	}
	var parts []string
	for _, pair := range collect(s, v) {
		kv := unpack(s, pair, 2)
		quoted := quoteURL(toStr(s, kv[0]), "") + "=" + quoteURL(toStr(s, kv[1]), "")
		s.grow(len(quoted))
		parts = append(parts, strings.ReplaceAll(quoted, "%20", "+"))
	}
	return String(strings.Join(parts, "&"))
}

func xmlAttrFilter(s *state, v Value, a []Value) Value {
	var b strings.Builder
	for _, e := range mustDict(v).entries {
		if e.Value.IsNone() || e.Value.kind == KindUndefined {
			continue
		}
		if strings.ContainsAny(text(e.Key), " \t\n\r\f\v/>=") {
			raise(valueError, "Invalid character in attribute name: %s", quotePython(e.Key.str))
		}
		b.WriteString(" " + escapeValue(s, e.Key).str + `="` + escapeValue(s, e.Value).str + `"`)
	}
	out := b.String()
	if !flag(a[0], true) {
		out = strings.TrimPrefix(out, " ")
	}
	return s.str(out)
}
