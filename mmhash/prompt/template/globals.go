package template

import "strings"

// The global functions of transformers' environment, and the objects that they make.

// maxRange is the sandbox's bound on the length of a range.
const maxRange = 100_000

var globals = map[string]Value{
	"range":           object(&function{"range", makeRange}),
	"dict":            object(templateDict{}),
	"namespace":       object(&function{"namespace", makeNamespace}),
	"cycler":          object(&function{"cycler", makeCycler}),
	"joiner":          object(&function{"joiner", makeJoiner}),
	"raise_exception": object(&function{"raise_exception", raiseException}),
	"strftime_now":    object(&function{"strftime_now", strftimeNow}),
	"lipsum": object(&function{"lipsum", func(*state, *callArgs) Value {
		raise(runtimeError, "lipsum() makes random text, which cannot be predicted")
		return Value{}
	}}),
}

// environmentGlobals are the names that jinja2 itself defines: they never count as undeclared variables.
var environmentGlobals = map[string]bool{"range": true, "dict": true, "lipsum": true, "cycler": true, "joiner": true, "namespace": true}

func raiseException(s *state, a *callArgs) Value {
	panic(&RaisedError{Message: toStr(s, bind1(s, a, "message", "raise_exception"))})
}

func makeRange(_ *state, a *callArgs) Value {
	a.only("range", 1, 3)
	part := [3]int64{0, 0, 1}
	for i, v := range a.pos {
		if v.kind == KindBig {
			raise(overflowError, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", maxRange)
		}
		integer(v)
		if len(a.pos) == 1 {
			i = 1
		}
		part[i] = v.int()
	}
	if part[2] == 0 {
		raise(valueError, "range() arg 3 must not be zero")
	}
	r := &pyRange{part[0], part[1], part[2]}
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
	d.entries = make([]Entry, 0, len(a.kw))
	if len(a.pos) == 1 {
		switch v := a.pos[0]; {
		case v.kind == KindUndefined:
			failUndefined(v)
		case v.kind == KindDict:
			for _, e := range v.ref.(*Dict).entries {
				s.step(1)
				d.set(e.Key, e.Value)
			}
		default:
			for it := iterate(s, v); ; {
				pair, ok := it.next(s)
				if !ok {
					break
				}
				s.step(1)
				if !iterable(pair) {
					raise(typeError, "cannot convert dictionary update sequence element to a sequence")
				}
				kv := unpack(s, pair, 2)
				d.set(kv[0], kv[1])
			}
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

func (templateDict) typeName() string { return "TemplateDict" }

func (templateDict) call(s *state, a *callArgs) Value { return dictFrom(s, a) }

func (templateDict) attr(name string) (Value, bool) {
	if name == "fromkeys" {
		return object(&function{"fromkeys", func(s *state, a *callArgs) Value {
			a.only("fromkeys", 1, 2)
			return fromKeys(s, a.pos)
		}}), true
	}
	return Value{}, false
}

func fromKeys(s *state, args []Value) Value {
	v := None
	if len(args) > 1 && args[1].valid() {
		v = args[1]
	}
	d := NewDict(0)
	for _, k := range collect(s, args[0]) {
		d.set(k, v)
	}
	return d.Value()
}

// namespace is the one thing that a template can change: {% set ns.x = 1 %}.
type namespace struct{ attrs Dict }

func (*namespace) typeName() string { return "TemplateNamespace" }

func makeNamespace(s *state, a *callArgs) Value {
	n := &namespace{}
	fillDict(s, &n.attrs, a)
	for i := range n.attrs.entries {
		if k := &n.attrs.entries[i].Key; k.IsString() {
			checkNamespaceName(k.str)
		}
	}
	return object(n)
}

func checkNamespaceName(name string) {
	if strings.HasPrefix(name, "_") {
		raise(securityError, "Chat templates cannot store underscore-prefixed attributes on a namespace, but got %s. Please rename the attribute.", quotePython(name))
	}
}

func (n *namespace) get(name string) (Value, bool) {
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

func makeCycler(_ *state, a *callArgs) Value {
	if len(a.kw) > 0 {
		raise(typeError, "cycler() got an unexpected keyword argument")
	}
	if len(a.pos) == 0 {
		raise("RuntimeError", "at least one item has to be provided")
	}
	return object(&cycler{items: append([]Value(nil), a.pos...)})
}

func (c *cycler) attr(name string) (Value, bool) {
	switch name {
	case "current":
		return c.items[c.at], true
	case "items":
		return newTuple(c.items...), true
	case "pos":
		return Int(int64(c.at)), true
	case "next", "reset":
		return object(&function{name, func(_ *state, a *callArgs) Value {
			a.only(name, 0, 0)
			if name == "reset" {
				c.at = 0
				return None
			}
			v := c.items[c.at]
			c.at = (c.at + 1) % len(c.items)
			return v
		}}), true
	}
	return Value{}, false
}

// joiner gives nothing at its first call and the separator from then on.
type joiner struct {
	sep  Value
	used bool
}

func (*joiner) typeName() string { return "Joiner" }

func makeJoiner(s *state, a *callArgs) Value {
	sig := takes("sep?")
	base := len(s.args)
	sep := bindArgs(s, a, &sig, "joiner")[0]
	s.args = s.args[:base]
	if !sep.valid() {
		sep = String(", ")
	}
	return object(&joiner{sep: sep})
}

func (j *joiner) call(_ *state, a *callArgs) Value {
	a.only("joiner", 0, 0)
	if !j.used {
		j.used = true
		return String("")
	}
	return j.sep
}

func (j *joiner) attr(name string) (Value, bool) {
	switch name {
	case "sep":
		return j.sep, true
	case "used":
		return Bool(j.used), true
	}
	return Value{}, false
}

// templateReference is self: its items and attributes are the template's blocks.
type templateReference struct{ s *state }

func (*templateReference) typeName() string { return "TemplateReference" }

func (t *templateReference) block(key Value) (Value, bool) {
	code := t.s.t.blocks[key.Text()]
	if code == nil {
		return Value{}, false
	}
	name := key.str
	return object(&function{name, func(s *state, a *callArgs) Value {
		a.only(name, 0, 0)
		text, _ := s.capture(func() ctl {
			s.runBlock(name, code)
			return ctlNext
		})
		if s.autoescape {
			return markup(text)
		}
		return String(text)
	}}), true
}

// attr gives the attributes of a macro.
func (m *macro) attr(name string) (Value, bool) {
	switch name {
	case "name":
		if m.code.name == "" {
			return None, true
		}
		return String(m.code.name), true
	case "arguments":
		var names []Value
		for _, p := range m.code.params {
			names = append(names, String(p))
		}
		return newTuple(names...), true
	case "catch_kwargs":
		return Bool(m.code.kwargs >= 0), true
	case "catch_varargs":
		return Bool(m.code.extra >= 0), true
	case "caller":
		return Bool(m.code.usesCaller), true
	case "explicit_caller":
		return Bool(m.code.explicitCaller), true
	}
	return Value{}, false
}
