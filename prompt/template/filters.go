package template

import (
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The filters of Jinja2 3.1.6 that chat templates use, and their neighbours, with transformers' tojson (dumps.go). Those
// that are lazy in Jinja2 give generators, whose elements are computed at once.

// absentFilters are those that Jinja2 has and this package has not.
const absentFilters = "abs attr batch center e escape filesizeformat forceescape groupby max min pprint random round slice striptags sum truncate unique urlencode urlize wordcount wordwrap xmlattr"

// filters is filled when the package starts: map and select look filters and tests up by name.
var filters map[string]*builtin

func init() {
	filters = table("",
		softMethod("capitalize"), softMethod("lower"), softMethod("upper"),
		def("count", "", lengthFilter), def("length", "", lengthFilter),
		def("d", "default_value? boolean?", defaultFilter), def("default", "default_value? boolean?", defaultFilter),
		def("dictsort", "case_sensitive? by? reverse?", dictSortFilter),
		def("first", "", firstFilter),
		def("last", "", lastFilter),
		def("float", "default?", floatFilter),
		raw("format", formatFilter),
		def("indent", "width? first? blank?", indentFilter),
		def("int", "default? base?", intFilter),
		def("items", "", func(s *state, v Value, _ []Value) Value {
			if v.kind == KindUndefined {
				return generate(nil)
			}
			return generate(elements(s, object(&dictView{mustDict(v), 'i'})))
		}),
		def("join", "d? attribute?", joinFilter),
		def("list", "", func(s *state, v Value, _ []Value) Value { return NewList(collect(s, v)...) }),
		raw("map", mapFilter),
		raw("reject", selectFilter(false, false)), raw("rejectattr", selectFilter(false, true)),
		raw("select", selectFilter(true, false)), raw("selectattr", selectFilter(true, true)),
		def("replace", "old new count?", func(s *state, v Value, a []Value) Value {
			n := -1
			if given(a[2]) {
				n = integer(a[2])
			}
			return replaceText(s, String(toStr(s, v)), toStr(s, a[0]), toStr(s, a[1]), n)
		}),
		def("reverse", "", reverseFilter),
		def("safe", "", func(s *state, v Value, _ []Value) Value { return markup(toStr(s, v)) }),
		def("sort", "reverse? case_sensitive? attribute?", sortFilter),
		def("string", "", func(s *state, v Value, _ []Value) Value { return softStr(s, v) }),
		def("title", "", titleFilter),
		def("tojson", "ensure_ascii? indent? separators? sort_keys?", toJSON),
		def("trim", "chars?", func(s *state, v Value, a []Value) Value { return stripText(s, softStr(s, v), a[0], true, true) }),
	)
}

// softMethod is a filter that calls a str method without arguments on soft_str(value).
func softMethod(name string) *builtin {
	return def(name, "", func(s *state, v Value, _ []Value) Value { return strMethods[name].fn(s, softStr(s, v), nil) })
}

// getter is an attribute argument taken apart: "a.b.0" asks for items a, b and 0 in turn.
type getter struct {
	parts      []Value
	ignoreCase bool
	def        Value // replaces Undefined on the way, if given
}

func newGetter(attribute Value, ignoreCase bool) getter {
	g := getter{ignoreCase: ignoreCase}
	switch {
	case attribute.IsString():
		for _, p := range strings.Split(attribute.str, ".") {
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
		v = Value{kind: v.kind, str: lowerText(v.str)}
	}
	return v
}

// sortValues sorts in place and stably by a key; reverse keeps equal elements in their order, as Python does.
func sortValues(s *state, items []Value, key func(Value) Value, reverse bool) {
	type keyed struct{ key, v Value }
	ks := make([]keyed, len(items))
	for i, v := range items {
		ks[i] = keyed{key(v), v}
	}
	s.step(2 * len(items))
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
	paths := []Value{a[2]}
	if a[2].IsString() {
		paths = nil
		for _, path := range strings.Split(a[2].str, ",") {
			paths = append(paths, String(path))
		}
	}
	getters := make([]getter, len(paths))
	for i, path := range paths {
		getters[i] = newGetter(path, !flag(a[1], false))
	}
	items := collect(s, v)
	sortValues(s, items, func(v Value) Value {
		keys := make([]Value, len(getters))
		for i, g := range getters {
			keys[i] = g.get(s, v)
		}
		return newTuple(keys...)
	}, flag(a[0], false))
	return NewList(items...)
}

func dictSortFilter(s *state, v Value, a []Value) Value {
	at := slices.Index([]string{"key", "value"}, a[1].or(String("key")).Text())
	if at < 0 {
		raise(`You can only sort by either "key" or "value"`)
	}
	items := elements(s, object(&dictView{mustDict(v), 'i'}))
	g := getter{ignoreCase: !flag(a[0], false)}
	sortValues(s, items, func(v Value) Value { return g.get(s, v.Items()[at]) }, flag(a[2], false))
	return NewList(items...)
}

// mustDict gives the storage of a dict; anything else has no attribute items.
func mustDict(v Value) *Dict {
	if v.kind != KindDict {
		wrongType(v, "'%s' object has no attribute 'items'")
	}
	return v.ref.(*Dict)
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
	if items := elements(s, v); len(items) > 0 {
		return items[0]
	}
	return undefinedMessage("No first item, sequence was empty.")
}

func lastFilter(s *state, v Value, _ []Value) Value {
	if _, ok := v.ref.(*generator); ok {
		raise("'generator' object is not reversible")
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

func mapFilter(s *state, v Value, a *callArgs) Value {
	if !truth(v) {
		return generate(nil)
	}
	f := mapFunc(a)
	items := collect(s, v)
	for i := range items {
		items[i] = f(s, items[i])
	}
	return generate(items)
}

// mapFunc gives what map does to each element: get an attribute, or call a filter.
func mapFunc(a *callArgs) func(s *state, v Value) Value {
	if len(a.pos) > 0 {
		return byName("filter", filters, absentFilters, a.pos[0], callArgs{a.pos[1:], a.kw})
	}
	var attribute, def Value
	for _, k := range a.kw {
		switch k.name {
		case "attribute":
			attribute = k.val
		case "default":
			def = k.val
		default:
			raise("Unexpected keyword argument %s", quotePython(k.name))
		}
	}
	if !attribute.valid() {
		raise("map requires a filter argument")
	}
	g := newGetter(attribute, false)
	g.def = def
	return g.get
}

// byName gives a filter or test that a template names by a value, as map and select do.
func byName(what string, table map[string]*builtin, absent string, name Value, rest callArgs) func(*state, Value) Value {
	b := table[name.Text()]
	return func(s *state, v Value) Value {
		if b == nil {
			mustExist(name)
			if slices.Contains(strings.Fields(absent), name.Text()) {
				unsupported("the %s %s", what, name.str)
			}
			raise("No %s named %s.", what, quotePython(toStr(s, name)))
		}
		return b.invoke(s, v, &rest)
	}
}

// selectFilter makes select, reject and their attr forms: by an element's truth or a test, of itself or an attribute.
func selectFilter(want, byAttr bool) func(*state, Value, *callArgs) Value {
	return func(s *state, v Value, a *callArgs) Value {
		if !truth(v) {
			return generate(nil)
		}
		args := a.pos
		var g getter
		if byAttr {
			if len(args) == 0 {
				raise("Missing parameter for attribute name")
			}
			g, args = newGetter(args[0], false), args[1:]
		}
		test := func(_ *state, v Value) Value { return v }
		if len(args) > 0 {
			test = byName("test", tests, absentTests, args[0], callArgs{args[1:], a.kw})
		}
		var out []Value
		for _, e := range elements(s, v) {
			s.step(1)
			if truth(test(s, g.get(s, e))) == want {
				out = append(out, e)
			}
		}
		return generate(out)
	}
}

func defaultFilter(_ *state, v Value, a []Value) Value {
	if v.kind != KindUndefined && (truth(v) || !flag(a[1], false)) {
		return v
	}
	return a[0].or(String(""))
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
	s.grow(b.Len())
	return String(b.String()) // "".join: Markup is lost
}

func indentFilter(s *state, v Value, a []Value) Value {
	width := a[0].or(Int(4))
	indent := width.str
	if !width.IsString() {
		indent = strings.Repeat(" ", repeats(width, 1))
	}
	first, blank := flag(a[1], false), flag(a[2], false)
	var b strings.Builder
	for i, line := range splitLines(text(v) + "\n") {
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

// intFilter is the int filter: what cannot be read as an int goes through float, and then to the default.
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
		if given(a[1]) && optInt(a[1], 10) != 10 {
			unsupported("another base than 10")
		}
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

// plainNumber takes white space off a number's text. Underscores, which Python allows between digits, are none here.
func plainNumber(text string) string {
	if text = strings.TrimFunc(text, isPySpace); strings.ContainsAny(text, "_") || !isASCII(text) {
		for _, r := range text {
			if unicodeDigit(r) {
				unsupported("a number with underscores or other digits than ASCII's")
			}
		}
	}
	return text
}

// parseFloat is float(text); ok is false for ValueError.
func parseFloat(text string) (float64, bool) {
	if strings.ContainsAny(text, "xXpP_") {
		return 0, false
	}
	f, err := strconv.ParseFloat(text, 64)
	return f, err == nil || math.IsInf(f, 0)
}
