package template

import (
	"strings"
	"unicode/utf8"
)

// Filters over text.

func defaultFilter(_ *state, v Value, a []Value) Value {
	if v.kind != KindUndefined && !(flag(a[1], false) && !truth(v)) {
		return v
	}
	if a[0].valid() {
		return a[0]
	}
	return String("")
}

func attrFilter(s *state, v Value, a []Value) Value {
	if !a[0].IsString() {
		raise(typeError, "attribute name must be string, not '%s'", a[0].typeName())
	}
	name := a[0].str
	if found, ok := attribute(v, name); ok {
		return private(v, name, found)
	}
	return undefinedOf(v, name)
}

func stringFilter(s *state, v Value, _ []Value) Value { return softStr(s, v) }

func centerFilter(s *state, v Value, a []Value) Value {
	width := a[0]
	if !width.valid() {
		width = Int(80)
	}
	return strMethods["center"].fn(s, softStr(s, v), []Value{width, {}})
}

func trimFilter(s *state, v Value, a []Value) Value {
	return stripText(s, softStr(s, v), a[0], true, true)
}

func formatFilter(s *state, v Value, a *callArgs) Value {
	if len(a.pos) > 0 && len(a.kw) > 0 {
		raise(filterArgError, "can't handle positional and keyword arguments at the same time")
	}
	if len(a.kw) > 0 {
		return percentFormat(s, softStr(s, v), dictFrom(s, a))
	}
	return percentFormat(s, softStr(s, v), newTuple(a.pos...))
}

// titleFilter starts every word with an upper case letter; words begin after white space and -({[<.
func titleFilter(s *state, v Value, _ []Value) Value {
	v = softStr(s, v)
	isBreak := func(r rune) bool { return isPySpace(r) || strings.ContainsRune("-({[<", r) }
	var b strings.Builder
	for text := v.str; text != ""; {
		end := strings.IndexFunc(text, isBreak)
		if end < 0 {
			end = len(text)
		}
		if end > 0 {
			_, n := utf8.DecodeRuneInString(text)
			b.WriteString(upperText(text[:n]))
			b.WriteString(lowerText(text[n:end]))
		}
		text = text[end:]
		word := strings.IndexFunc(text, func(r rune) bool { return !isBreak(r) })
		if word < 0 {
			word = len(text)
		}
		b.WriteString(text[:word])
		text = text[word:]
	}
	s.grow(b.Len())
	return String(b.String()) // "".join: Markup is lost
}

func wordCountFilter(s *state, v Value, _ []Value) Value {
	n, inWord := 0, false
	for _, r := range softStr(s, v).str {
		word := r == '_' || isAlnumRune(r)
		if word && !inWord {
			n++
		}
		inWord = word
	}
	return Int(int64(n))
}

func indentFilter(s *state, v Value, a []Value) Value {
	if !v.IsString() {
		add(s, v, String("\n")) // raises what Python raises
		raise(attributeError, "'%s' object has no attribute 'splitlines'", v.typeName())
	}
	indent := "    "
	switch {
	case a[0].IsString():
		indent = a[0].str
	case a[0].valid():
		indent = strings.Repeat(" ", repeats(a[0], 1))
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
	limit, leeway := optInt(a[0], 255), 5
	if given(a[3]) {
		leeway = integer(a[3])
	}
	end := String("...")
	if a[2].valid() {
		end = a[2]
	}
	endLen, ok := length(end)
	if !ok {
		raise(typeError, "object of type '%s' has no len()", end.typeName())
	}
	if limit < endLen {
		raise(assertionError, "expected length >= %d, got %d", endLen, limit)
	}
	if leeway < 0 {
		raise(assertionError, "expected leeway >= 0, got %d", leeway)
	}
	n, ok := length(v)
	switch {
	case !ok:
		raise(typeError, "object of type '%s' has no len()", v.typeName())
	case n <= limit+leeway:
		return v
	}
	cut := slice(s, v, None, Int(int64(limit-endLen)), None)
	if !flag(a[1], false) {
		if !cut.IsString() {
			raise(attributeError, "'%s' object has no attribute 'rsplit'", v.typeName())
		}
		if i := strings.LastIndexByte(cut.str, ' '); i >= 0 {
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
	if !s.autoescape {
		return replaceText(s, String(toStr(s, v)), toStr(s, a[0]), toStr(s, a[1]), n)
	}
	if a[0].kind == KindMarkup || a[1].kind == KindMarkup && v.kind != KindMarkup {
		v = escapeValue(s, v)
	} else {
		v = softStr(s, v)
	}
	return replaceText(s, v, softStr(s, a[0]).str, insert(s, v, softStr(s, a[1])), n)
}

func joinFilter(s *state, v Value, a []Value) Value {
	sep := a[0]
	if !sep.valid() {
		sep = String("")
	}
	g := newGetter(a[1], false)
	var items []Value
	isMarkup := sep.kind == KindMarkup
	for it := iterate(s, v); ; {
		e, ok := it.next(s)
		if !ok {
			break
		}
		s.step(1)
		e = g.get(s, e)
		isMarkup = isMarkup || e.kind == KindMarkup
		items = append(items, e)
	}
	escape := s.autoescape && isMarkup
	kind := KindString
	between := toStr(s, sep)
	if escape {
		kind, between = KindMarkup, escapeValue(s, sep).str
	}
	from := s.beginCapture()
	for i, e := range items {
		if i > 0 {
			s.write(between)
		}
		s.print(e, escape)
	}
	return Value{kind: kind, str: s.endCapture(from)}
}
