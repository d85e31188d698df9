package template

import (
	"math"
	"strings"
)

// The global functions of transformers' environment, and the objects that they create.

// maxRange is the sandbox's bound on the length of a range.
const maxRange = 100_000

var globals = map[string]Value{
	"range": function(def("range", "/ start stop? step?", makeRange)),
	"dict":  object(templateDict{}),
	"namespace": function(raw("namespace", func(s *state, _ Value, a *callArgs) Value {
		n := &namespace{}
		n.attrs.entries = n.few[:0]
		fillDict(s, &n.attrs, a)
		for _, e := range n.attrs.entries {
			checkNamespaceName(e.Key.Text())
		}
		return object(n)
	})),
	"raise_exception": function(def("raise_exception", "message", raiseException)),
	"strftime_now":    function(def("strftime_now", "format", strftimeNow)),
}

// environmentGlobals are the names that jinja2 itself defines; they never count as undeclared variables.
var environmentGlobals = []string{"range", "dict", "lipsum", "cycler", "joiner", "namespace"}

func raiseException(s *state, _ Value, a []Value) Value {
	panic(&RaisedError{Message: toStr(s, a[0])})
}

func makeRange(s *state, _ Value, a []Value) Value {
	if !a[1].valid() {
		a[0], a[1] = Int(0), a[0]
	}
	var parts [3]int64
	for i := range parts {
		v := a[i].or(Int(1))
		integer(v)
		parts[i] = v.int()
	}
	at, stop, step := parts[0], parts[1], parts[2]
	if step == 0 {
		raise("range() arg 3 must not be zero")
	}
	n := maxRange
	if size := (float64(stop) - float64(at)) / float64(step); size < maxRange {
		n = max(0, int(math.Ceil(size)))
	}
	s.list(n)
	out := make([]Value, 0, n)
	for step > 0 && at < stop || step < 0 && at > stop {
		out = append(out, Int(at))
		if len(out) > maxRange {
			raise("Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", maxRange)
		}
		next := at + step
		if (next > at) != (step > 0) {
			break // beyond 64 bits
		}
		at = next
	}
	return Value{kind: KindRange, ref: &List{items: out}}
}

// fillDict is d = dict(*args, **kwargs).
func fillDict(s *state, d *Dict, a *callArgs) {
	if len(a.pos) > 1 {
		raise("dict expected at most 1 argument, got %d", len(a.pos))
	}
	if d.entries == nil {
		d.entries = make([]Entry, 0, len(a.kw))
	}
	if len(a.pos) == 1 {
		from := a.pos[0].Dict()
		if from == nil {
			unsupported("a dict of a %s", a.pos[0].typeName())
		}
		s.step(from.Len())
		s.grow(from.Len() * pairBytes)
		d.update(from)
	}
	for _, k := range a.kw {
		d.Set(k.name, k.val)
	}
}

// templateDict is transformers' substitute for the dict type: it is callable and has only fromkeys.
type templateDict struct{}

func (templateDict) typeName() string { return "TemplateDict" }

func (templateDict) call(s *state, a *callArgs) Value {
	d := new(Dict)
	fillDict(s, d, a)
	return d.Value()
}

func (templateDict) attr(_ *state, name string) (Value, bool) {
	return function(dictMethods["fromkeys"]), name == "fromkeys"
}

// namespace is the only object that a template can change: {% set ns.x = 1 %}.
type namespace struct {
	attrs Dict
	few   [1]Entry // initial storage of attrs: most namespaces have one attribute
}

func (*namespace) typeName() string { return "TemplateNamespace" }

func checkNamespaceName(name string) {
	if strings.HasPrefix(name, "_") {
		raise("Chat templates cannot store underscore-prefixed attributes on a namespace, but got %s.", quotePython(name))
	}
}

func (n *namespace) attr(_ *state, name string) (Value, bool) { return n.attrs.Get(name) }

func (n *namespace) set(name string, v Value) {
	checkNamespaceName(name)
	n.attrs.Set(name, v)
}
