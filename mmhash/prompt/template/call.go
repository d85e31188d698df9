package template

// Calling: argument binding for built-ins, and what can be called.

// callArgs are evaluated arguments. They are valid during the call only: who keeps them copies them.
type callArgs struct {
	pos []Value
	kw  []kwArg
}

type kwArg struct {
	name string
	val  Value
}

// clear empties a for its next use.
func (a *callArgs) clear() {
	clear(a.kw[:cap(a.kw)])
	a.pos, a.kw = nil, a.kw[:0]
}

// spread adds the pairs of a ** argument.
func (a *callArgs) spread(v Value) {
	d := v.Dict()
	if d == nil {
		raise(typeError, "argument after ** must be a mapping, not %s", v.typeName())
	}
	for _, e := range d.entries {
		if !e.Key.IsString() {
			raise(typeError, "keywords must be strings")
		}
		for _, k := range a.kw {
			if k.name == e.Key.str {
				raise(typeError, "got multiple values for keyword argument %s", quotePython(k.name))
			}
		}
		a.kw = append(a.kw, kwArg{e.Key.str, e.Value})
	}
}

// only makes sure that there are between low and high positional arguments and no others.
func (a *callArgs) only(name string, low, high int) {
	if len(a.kw) > 0 {
		raise(typeError, "%s() takes no keyword arguments", name)
	}
	if len(a.pos) < low || len(a.pos) > high {
		raise(typeError, "%s() takes from %d to %d arguments (%d given)", name, low, high, len(a.pos))
	}
}

// signatureOf is the parameter list of a built-in filter, test or method: the names (of which the first required
// ones must be given and the first posOnly ones take no keyword).
type signatureOf struct {
	params   []string
	required int
	posOnly  int
}

// takes makes a signature from names; "?" after a name makes it and the rest optional, "/" stands after the
// positional-only ones.
func takes(names ...string) signatureOf {
	sig := signatureOf{required: -1}
	for _, n := range names {
		if n == "/" {
			sig.posOnly = len(sig.params)
			continue
		}
		if n[len(n)-1] == '?' {
			if sig.required < 0 {
				sig.required = len(sig.params)
			}
			n = n[:len(n)-1]
		}
		sig.params = append(sig.params, n)
	}
	if sig.required < 0 {
		sig.required = len(sig.params)
	}
	return sig
}

// bindArgs lays arguments out by parameter, on s.args; parameters without one get the zero Value.
func bindArgs(s *state, a *callArgs, sig *signatureOf, name string) []Value {
	if len(a.pos) > len(sig.params) {
		raise(typeError, "%s() takes at most %d arguments (%d given)", name, len(sig.params), len(a.pos))
	}
	base := len(s.args)
	s.args = append(s.args, a.pos...)
	for range len(sig.params) - len(a.pos) {
		s.args = append(s.args, Value{})
	}
	out := s.args[base : base+len(sig.params)]
	for _, k := range a.kw {
		i := indexOf(sig.params, k.name)
		switch {
		case i < sig.posOnly:
			raise(typeError, "%s() got an unexpected keyword argument %s", name, quotePython(k.name))
		case out[i].valid():
			raise(typeError, "%s() got multiple values for argument %s", name, quotePython(k.name))
		}
		out[i] = k.val
	}
	for i := 0; i < sig.required; i++ {
		if !out[i].valid() {
			raise(typeError, "%s() missing required argument: '%s'", name, sig.params[i])
		}
	}
	return out
}

// callable is an object that a template can call.
type callable interface {
	call(*state, *callArgs) Value
}

// call calls fn.
func call(s *state, fn Value, a *callArgs) Value {
	if fn.kind == KindUndefined {
		failUndefined(fn)
	}
	f, ok := fn.ref.(callable)
	if fn.kind != KindObject || !ok {
		raise(typeError, "'%s' object is not callable", fn.typeName())
	}
	return f.call(s, a)
}

// method is a built-in method of a Python type.
type method struct {
	name string
	signatureOf
	fn       func(s *state, recv Value, a []Value) Value
	variadic func(s *state, recv Value, a *callArgs) Value
	attr     func(recv Value) Value // not a method but a plain attribute (int.real)
	mutates  bool                   // the immutable sandbox hides it
}

func (m *method) invoke(s *state, recv Value, a *callArgs) Value {
	if m.variadic != nil {
		return m.variadic(s, recv, a)
	}
	base := len(s.args)
	v := m.fn(s, recv, bindArgs(s, a, &m.signatureOf, m.name))
	s.args = s.args[:base]
	return v
}

// boundMethod is a method taken from its value without a call ("x.strip").
type boundMethod struct {
	m    *method
	recv Value
}

func (b *boundMethod) typeName() string                 { return "builtin_function_or_method" }
func (b *boundMethod) call(s *state, a *callArgs) Value { return b.m.invoke(s, b.recv, a) }

// function is a global function.
type function struct {
	name string
	fn   func(s *state, a *callArgs) Value
}

func (f *function) typeName() string                 { return "function" }
func (f *function) call(s *state, a *callArgs) Value { return f.fn(s, a) }
