package template

import (
	"slices"
	"strings"
)

// Calling: how arguments reach the built-in filters, tests, methods and functions, and what a template can call.

// callArgs are evaluated arguments. They are valid only during the call.
type callArgs struct {
	pos []Value
	kw  []kwArg
}

type kwArg struct {
	name string
	val  Value
}

// builtin is a filter, test, method or global function of the library.
type builtin struct {
	name     string
	params   []string
	required int  // this many of params are required
	posOnly  bool // params cannot be passed by keyword
	fn       func(s *state, v Value, a []Value) Value
	raw      func(s *state, v Value, a *callArgs) Value // instead of fn: gets the arguments unbound
	kinds    kinds                                      // the kinds that a test of kinds checks for
	mutates  bool                                       // the immutable sandbox hides it
}

// def declares a built-in. params are its parameters without the value that it works on. "name?" is optional (its argument is then
// the zero Value), "name!" must be absent because this package does not support it, and a leading "/" makes all of them
// positional-only.
func def(name, params string, fn func(s *state, v Value, a []Value) Value) *builtin {
	b := &builtin{name: name, fn: fn}
	for _, p := range strings.Fields(params) {
		if p == "/" {
			b.posOnly = true
			continue
		}
		plain, optional := strings.CutSuffix(p, "?")
		if !optional && !strings.HasSuffix(p, "!") {
			b.required++
		}
		b.params = append(b.params, plain)
	}
	return b
}

// raw declares a built-in of any number of arguments.
func raw(name string, fn func(s *state, v Value, a *callArgs) Value) *builtin {
	return &builtin{name: name, raw: fn}
}

// table returns built-ins by name. The methods named in mutating exist but are hidden by the sandbox.
func table(mutating string, bs ...*builtin) map[string]*builtin {
	t := make(map[string]*builtin, len(bs))
	for _, b := range bs {
		t[b.name] = b
	}
	for _, name := range strings.Fields(mutating) {
		t[name] = &builtin{name: name, mutates: true}
	}
	return t
}

// lookUp returns a filter or test by its name. One that there is not fails when it is called, as Jinja2's do in branches; Jinja2 refuses
// such a template as a whole where the name is in no branch.
func lookUp(what, name string) *builtin {
	all, absent := filters, absentFilters
	if what == "test" {
		all, absent = tests, absentTests
	}
	if b := all[name]; b != nil {
		return b
	}
	return raw(name, func(*state, Value, *callArgs) Value {
		if slices.Contains(strings.Fields(absent), name) {
			unsupported("the %s %s", what, name)
		}
		return raise("No %s named %s found.", what, quotePython(name))
	})
}

// inner returns the filter or test that the argument at names, and the arguments that follow it.
func (a *callArgs) inner(what string, at int) (*builtin, callArgs) {
	rest := *a
	rest.pos = a.pos[at+1:]
	if !a.pos[at].IsString() {
		unsupported("a %s named by a %s", what, a.pos[at].typeName())
	}
	return lookUp(what, a.pos[at].str), rest
}

// invoke calls b on v.
func (b *builtin) invoke(s *state, v Value, a *callArgs) Value {
	if b.raw != nil {
		return b.raw(s, v, a)
	}
	base := len(s.args)
	v = b.fn(s, v, b.bind(s, a))
	s.args = s.args[:base]
	return v
}

// bind puts the arguments into the order of the parameters, on s.args; parameters without one get the zero Value.
func (b *builtin) bind(s *state, a *callArgs) []Value {
	if len(a.pos) > len(b.params) {
		raise("%s() takes at most %d arguments (%d given)", b.name, len(b.params), len(a.pos))
	}
	base := len(s.args)
	s.args = append(s.args, a.pos...)
	for range len(b.params) - len(a.pos) {
		s.args = append(s.args, Value{})
	}
	out := s.args[base:]
	for _, k := range a.kw {
		i := slices.IndexFunc(b.params, func(p string) bool { return strings.TrimSuffix(p, "!") == k.name })
		if i < 0 || b.posOnly || out[i].valid() {
			raise("%s() got an unexpected keyword argument %s", b.name, quotePython(k.name))
		}
		out[i] = k.val
	}
	for i, p := range b.params {
		switch plain, absent := strings.CutSuffix(p, "!"); {
		case absent && out[i].valid():
			unsupported("the argument %s of %s", plain, b.name)
		case i < b.required && !out[i].valid():
			raise("%s() missing required argument: '%s'", b.name, p)
		}
	}
	return out
}

// given reports whether an argument was passed and is not None.
func given(v Value) bool { return v.valid() && !v.IsNone() }

// or returns an argument, or def if it was not passed.
func (v Value) or(def Value) Value {
	if v.valid() {
		return v
	}
	return def
}

// flag and optInt return the truth or the integer of an argument, or false and def if it was not passed.
func flag(v Value) bool           { return truth(v.or(pyFalse)) }
func optInt(v Value, def int) int { return integer(v.or(Int(int64(def)))) }

// bound is a built-in as a value: a method that is read from its receiver but not called ("x.strip"), or a global function.
type bound struct {
	fn   *builtin
	recv Value
}

func function(b *builtin) Value { return object(&bound{b, Value{}}) }

func (b *bound) typeName() string                 { return "builtin_function_or_method" }
func (b *bound) call(s *state, a *callArgs) Value { return b.fn.invoke(s, b.recv, a) }

// callable is an object that a template can call: a macro or a built-in.
type callable interface {
	call(*state, *callArgs) Value
}

// call calls fn.
func call(s *state, fn Value, a *callArgs) Value {
	f, ok := fn.ref.(callable)
	if fn.kind != KindObject || !ok {
		wrongType(fn, "'%s' object is not callable")
	}
	return f.call(s, a)
}
