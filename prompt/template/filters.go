package template

import (
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The filters of Jinja2 3.1.6 that chat templates use, and related ones, with transformers' tojson (dumps.go). Filters that are
// lazy in Jinja2 return generators, whose elements are computed at once.

// absentFilters are Jinja2's filters that this package does not support.
const absentFilters = "abs attr batch center e escape filesizeformat forceescape groupby max min pprint random round slice " +
	"striptags sum truncate unique urlencode urlize wordcount wordwrap xmlattr"

var filters = table("",
	softMethod("capitalize"), softMethod("lower"), softMethod("upper"),
	def("count", "", lengthFilter), def("length", "", lengthFilter),
	def("d", "default_value? boolean?", defaultFilter), def("default", "default_value? boolean?", defaultFilter),
	def("dictsort", "case_sensitive? by! reverse!", dictSortFilter),
	def("first", "", firstFilter),
	def("last", "", lastFilter),
	def("float", "default?", floatFilter),
	raw("format", formatFilter),
	def("indent", "width? first? blank?", indentFilter),
	def("int", "default? base!", intFilter),
	def("items", "", func(s *state, v Value, _ []Value) Value {
		if v.kind == KindUndefined {
			return generate(nil)
		}
		return generate(pairsOf(s, mustDict(v)))
	}),
	def("join", "d? attribute?", joinFilter),
	def("list", "", func(s *state, v Value, _ []Value) Value { return NewList(collect(s, v)...) }),
	def("replace", "old new count?", func(s *state, v Value, a []Value) Value {
		return replaceText(s, String(toStr(s, v)), toStr(s, a[0]), toStr(s, a[1]), optInt(a[2], -1))
	}),
	def("reverse", "", reverseFilter),
	def("safe", "", func(s *state, v Value, _ []Value) Value { return markup(toStr(s, v)) }),
	def("sort", "reverse? case_sensitive? attribute?", sortFilter),
	def("string", "", func(s *state, v Value, _ []Value) Value { return softStr(s, v) }),
	def("title", "", titleFilter),
	def("tojson", "ensure_ascii? indent? separators? sort_keys?", toJSON),
	def("trim", "chars?", func(s *state, v Value, a []Value) Value { return stripText(s, softStr(s, v), a[0], true, true) }),
)

func init() { // those that look up other filters or tests
	for _, b := range []*builtin{raw("map", mapFilter),
		raw("reject", selectFilter(false, false)), raw("rejectattr", selectFilter(false, true)),
		raw("select", selectFilter(true, false)), raw("selectattr", selectFilter(true, true))} {
		filters[b.name] = b
	}
}

// softMethod returns a filter that calls a str method without arguments on soft_str(value).
func softMethod(name string) *builtin {
	return def(name, "", func(s *state, v Value, _ []Value) Value { return strMethods[name].fn(s, softStr(s, v), nil) })
}

// getter is a parsed attribute argument: "a.b.0" looks up the items a, b and 0 in turn.
type getter struct {
	parts      []Value
	ignoreCase bool
	def        Value // replaces an intermediate Undefined, if given
}

// maxPath bounds the dots of a getter's attribute.
const maxPath = 64

func newGetter(attribute Value, ignoreCase bool) getter {
	g := getter{ignoreCase: ignoreCase}
	switch {
	case attribute.IsString():
		if strings.Count(attribute.str, ".") > maxPath {
			unsupported("an attribute of more than %d parts", maxPath)
		}
		for p := range strings.SplitSeq(attribute.str, ".") {
			if n, err := strconv.ParseInt(p, 10, 64); err == nil && p[0] != '-' && p[0] != '+' {
				g.parts = append(g.parts, Int(n))
			} else {
				g.parts = append(g.parts, String(p))
			}
		}
	case given(attribute):
		g.parts = []Value{attribute}
	}
	return g
}

func (g getter) get(s *state, v Value) Value {
	for _, p := range g.parts {
		v = getitem(s, v, p)
		if given(g.def) && v.kind == KindUndefined {
			v = g.def
		}
	}
	if g.ignoreCase && v.IsString() {
		v = Value{kind: v.kind, str: lowerText(s, v.str)}
	}
	return v
}

// sortValues sorts in place and stably by a key. reverse keeps the order of equal elements, as Python does.
func sortValues(s *state, items []Value, key func(Value) Value, reverse bool) {
	type keyed struct{ key, v Value }
	s.step(2 * len(items))
	s.grow(len(items) * (2*valueBytes + tupleBytes)) // sort's keys are tuples
	ks := make([]keyed, len(items))
	for i, v := range items {
		ks[i] = keyed{key(v), v}
	}
	sort.SliceStable(ks, func(i, j int) bool {
		s.step(1)
		if reverse {
			i, j = j, i
		}
		return ordered(s, "<", ks[i].key, ks[j].key) == -1
	})
	for i := range ks {
		items[i] = ks[i].v
	}
}

func sortFilter(s *state, v Value, a []Value) Value {
	if strings.Contains(a[2].Text(), ",") {
		unsupported("sort by several attributes")
	}
	g := newGetter(a[2], !flag(a[1]))
	items := collect(s, v)
	sortValues(s, items, func(v Value) Value { return newTuple(g.get(s, v)) }, flag(a[0]))
	return NewList(items...)
}

func dictSortFilter(s *state, v Value, a []Value) Value {
	items := pairsOf(s, mustDict(v))
	g := getter{ignoreCase: !flag(a[0])}
	sortValues(s, items, func(v Value) Value { return g.get(s, v.Items()[0]) }, false)
	return NewList(items...)
}

// mustDict returns the storage of a dict; anything else has no attribute items.
func mustDict(v Value) *Dict {
	d := v.Dict()
	if d == nil {
		wrongType(v, "'%s' object has no attribute 'items'")
	}
	return d
}

func lengthFilter(_ *state, v Value, _ []Value) Value {
	n, ok := length(v)
	if !ok {
		raise("object of type '%s' has no len()", v.typeName())
	}
	return Int(int64(n))
}

func firstFilter(s *state, v Value, _ []Value) Value {
	if g, ok := v.ref.(*generator); ok && len(g.rest) > 0 {
		first := g.rest[0]
		g.rest = g.rest[1:]
		return first
	}
	if v.IsString() && v.str != "" {
		_, n := utf8.DecodeRuneInString(v.str)
		return String(v.str[:n])
	}
	if items := elements(s, v); len(items) > 0 {
		return items[0]
	}
	return undefinedMessage("No first item, sequence was empty.")
}

func lastFilter(s *state, v Value, _ []Value) Value {
	if _, ok := v.ref.(*generator); ok {
		raise("'generator' object is not reversible")
	}
	if v.IsString() && v.str != "" {
		_, n := utf8.DecodeLastRuneInString(v.str)
		return String(v.str[len(v.str)-n:])
	}
	if items := elements(s, v); len(items) > 0 {
		return items[len(items)-1]
	}
	return undefinedMessage("No last item, sequence was empty.")
}

func reverseFilter(s *state, v Value, _ []Value) Value {
	if v.IsString() {
		return slice(s, v, None, None, Int(-1))
	}
	_, lazy := v.ref.(*generator)
	items := collect(s, v)
	slices.Reverse(items)
	if lazy {
		return NewList(items...)
	}
	return generate(items)
}

// mapFilter gets an attribute of each element, or calls a filter on it.
func mapFilter(s *state, v Value, a *callArgs) Value {
	if !truth(v) {
		return generate(nil)
	}
	items := collect(s, v)
	if len(a.pos) > 0 {
		filter, rest := a.inner("filter", 0)
		for i := range items {
			items[i] = filter.invoke(s, items[i], &rest)
		}
		return generate(items)
	}
	return mapAttribute.invoke(s, NewList(items...), a)
}

var mapAttribute = def("map", "attribute default?", func(s *state, v Value, a []Value) Value {
	g := newGetter(a[0], false)
	g.def = a[1]
	items := v.Items()
	for i := range items {
		items[i] = g.get(s, items[i])
	}
	return generate(items)
})

// selectFilter makes select, reject and their attr forms: by the truth or a test of an element or of its attribute.
func selectFilter(want, byAttr bool) func(*state, Value, *callArgs) Value {
	return func(s *state, v Value, a *callArgs) Value {
		if !truth(v) {
			return generate(nil)
		}
		at := 0 // of the test's name
		var g getter
		if byAttr {
			if len(a.pos) == 0 {
				raise("Missing parameter for attribute name")
			}
			g, at = newGetter(a.pos[0], false), 1
		}
		var test *builtin
		var rest callArgs
		if len(a.pos) > at {
			test, rest = a.inner("test", at)
		}
		var out []Value
		for _, e := range elements(s, v) {
			s.step(1)
			part := g.get(s, e)
			if test != nil {
				part = test.invoke(s, part, &rest)
			}
			if truth(part) == want {
				s.grow(2 * valueBytes)
				out = append(out, e)
			}
		}
		return generate(out)
	}
}

func defaultFilter(_ *state, v Value, a []Value) Value {
	if v.kind != KindUndefined && (truth(v) || !flag(a[1])) {
		return v
	}
	return a[0].or(String(""))
}

// titleFilter starts every word with an upper case letter; words begin after white space and -({[<.
func titleFilter(s *state, v Value, _ []Value) Value {
	start := true
	text := titleWhere(s, softStr(s, v).str, func(r rune) bool {
		was := start
		start = isPySpace(r) || strings.ContainsRune("-({[<", r)
		return was
	})
	return String(text) // as "".join: Markup is lost
}

func indentFilter(s *state, v Value, a []Value) Value {
	width := a[0].or(Int(4))
	indent := width.str
	if !width.IsString() {
		n := repeats(width, 1)
		s.grow(n)
		indent = strings.Repeat(" ", n)
	}
	first, blank := flag(a[1]), flag(a[2])
	b := builder{s: s}
	for i, rest, more := 0, text(v), true; more; i++ {
		var line string
		line, rest, more = cutLine(rest)
		if i > 0 {
			b.add("\n")
		}
		if i == 0 && first || i > 0 && (blank || line != "") {
			b.add(indent)
		}
		b.add(line)
	}
	return like(v, b.text())
}

func joinFilter(s *state, v Value, a []Value) Value {
	sep, g := toStr(s, a[0].or(String(""))), newGetter(a[1], false)
	from := len(s.out)
	for i, e := range elements(s, v) {
		if i > 0 {
			s.write(sep)
		}
		s.step(1)
		s.print(g.get(s, e))
	}
	return String(s.captured(from))
}

// intFilter is the int filter: a text that is not an int is read as a float, and otherwise the default is used.
func intFilter(_ *state, v Value, a []Value) Value {
	def := a[0].or(Int(0))
	switch {
	case v.isInteger():
		return asInt(v)
	case v.kind == KindFloat:
		if math.IsNaN(v.float()) {
			return def
		}
		return floatToInt(v.float())
	case v.IsString():
		text := plainNumber(v.str)
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return Int(n)
		}
		if f, ok := parseFloat(text); ok && !math.IsNaN(f) && !math.IsInf(f, 0) {
			return floatToInt(f)
		}
		return def
	}
	mustExist(v)
	return def
}

func floatFilter(_ *state, v Value, a []Value) Value {
	switch {
	case v.isNumber():
		return Float(toFloat(v))
	case v.IsString():
		if f, ok := parseFloat(plainNumber(v.str)); ok {
			return Float(f)
		}
	}
	mustExist(v)
	return a[0].or(Float(0))
}

// plainNumber trims white space off a number's text. Underscores, which Python allows between digits, are not supported.
func plainNumber(text string) string {
	text = strings.TrimFunc(text, isPySpace)
	for _, r := range text {
		if r == '_' || r >= utf8.RuneSelf && unicode.Is(unicode.Nd, r) {
			unsupported("a number with underscores or other digits than ASCII's")
		}
	}
	return text
}

// parseFloat is float(text); ok is false for ValueError.
func parseFloat(text string) (float64, bool) {
	if strings.ContainsAny(text, "xXpP") {
		return 0, false
	}
	f, err := strconv.ParseFloat(text, 64)
	return f, err == nil || math.IsInf(f, 0)
}
