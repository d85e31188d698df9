package template

import (
	"slices"
	"strings"
)

// The global functions of transformers' environment, and the objects that they make.

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
	"cycler":          function(raw("cycler", makeCycler)),
	"joiner":          function(def("joiner", "sep?", makeJoiner)),
	"raise_exception": function(def("raise_exception", "message", raiseException)),
	"strftime_now":    function(def("strftime_now", "format", strftimeNow)),
	"lipsum":          function(&builtin{name: "lipsum"}),
}

// environmentGlobals are the names that jinja2 itself defines: they never count as undeclared variables.
var environmentGlobals = []string{"range", "dict", "lipsum", "cycler", "joiner", "namespace"}

func raiseException(s *state, _ Value, a []Value) Value {
	panic(&RaisedError{Message: toStr(s, a[0])})
}

func makeRange(_ *state, _ Value, a []Value) Value {
	r := &pyRange{step: 1}
	if !a[1].valid() {
		a[0], a[1] = Int(0), a[0]
	}
	for i, part := range []*int64{&r.start, &r.stop, &r.step} {
		if v := a[i].or(Int(1)); v.kind != KindBig {
			integer(v)
			*part = v.int()
			continue
		}
		r.start, r.stop, r.step = 0, maxRange+1, 1
		break
	}
	if r.step == 0 {
		raise(valueError, "range() arg 3 must not be zero")
	}
	if n := r.len(); n > maxRange || n < 0 {
		raise(overflowError, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", maxRange)
	}
	return Value{kind: KindRange, ref: r}
}

// fillDict is d = dict(*args, **kwargs).
func fillDict(s *state, d *Dict, a *callArgs) {
	if len(a.pos) > 1 {
		raise(typeError, "dict expected at most 1 argument, got %d", len(a.pos))
	}
	if d.entries == nil {
		d.entries = make([]Entry, 0, len(a.kw))
	}
	if len(a.pos) == 1 {
		v := a.pos[0]
		mustExist(v)
		if from := v.Dict(); from != nil {
			v = object(&dictView{from, 'i'})
		}
		for _, pair := range collect(s, v) {
			kv := unpack(s, pair, 2)
			d.set(kv[0], kv[1])
		}
	}
	for _, k := range a.kw {
		d.Set(k.name, k.val)
	}
}

func dictFrom(s *state, a *callArgs) Value {
	d := new(Dict)
	fillDict(s, d, a)
	return d.Value()
}

// templateDict is transformers' stand-in for the dict type: it can be called and has fromkeys, nothing else.
type templateDict struct{}

func (templateDict) typeName() string                 { return "TemplateDict" }
func (templateDict) call(s *state, a *callArgs) Value { return dictFrom(s, a) }
func (templateDict) attr(name string) (v Value, ok bool) {
	if name == "fromkeys" {
		return function(def(name, "/ iterable value?", fromKeys)), true
	}
	return v, false
}

func fromKeys(s *state, _ Value, a []Value) Value {
	d := NewDict(0)
	for _, k := range collect(s, a[0]) {
		d.set(k, a[1].or(None))
	}
	return d.Value()
}

// namespace is the one thing that a template can change: {% set ns.x = 1 %}.
type namespace struct {
	attrs Dict
	few   [1]Entry // where attrs begin: most namespaces have one
}

func (*namespace) typeName() string { return "TemplateNamespace" }

func checkNamespaceName(name string) {
	if strings.HasPrefix(name, "_") {
		raise(securityError, "Chat templates cannot store underscore-prefixed attributes on a namespace, but got %s. Please rename the attribute.", quotePython(name))
	}
}

func (n *namespace) attr(name string) (Value, bool) {
	if name == "__class__" {
		return None, true // hidden by its underscore
	}
	return n.attrs.Get(name)
}

func (n *namespace) set(name string, v Value) {
	checkNamespaceName(name)
	n.attrs.Set(name, v)
}

// cycler is {% set c = cycler('odd', 'even') %}.
type cycler struct {
	items []Value
	at    int
}

func (*cycler) typeName() string { return "Cycler" }

func makeCycler(_ *state, _ Value, a *callArgs) Value {
	if len(a.pos) == 0 || len(a.kw) > 0 {
		raise(typeError, "cycler() wants at least one item and no keywords")
	}
	return object(&cycler{items: slices.Clone(a.pos)})
}

func (c *cycler) attr(name string) (Value, bool) {
	switch name {
	case "current":
		return c.items[c.at], true
	case "next":
		return function(def(name, "", func(*state, Value, []Value) Value {
			v := c.items[c.at]
			c.at = (c.at + 1) % len(c.items)
			return v
		})), true
	case "reset":
		return function(def(name, "", func(*state, Value, []Value) Value {
			c.at = 0
			return None
		})), true
	}
	return Value{}, false
}

// makeJoiner makes a function that gives nothing at its first call and the separator from then on.
func makeJoiner(_ *state, _ Value, a []Value) Value {
	now, sep := String(""), a[0].or(String(", "))
	return function(def("joiner", "", func(*state, Value, []Value) Value {
		v := now
		now = sep
		return v
	}))
}
