package template

import (
	"slices"
	"strings"
)

// Expressions.

func (s *state) eval(n node) Value {
	switch n := n.(type) {
	case *constNode:
		return n.val
	case *nameNode:
		return s.name(n.name)
	case *attrNode:
		v := s.eval(n.expr)
		if d, ok := v.ref.(*Dict); ok && n.member {
			if i := d.find(n.name); i >= 0 {
				return d.entries[i].Value
			}
			return undefinedOf(v, n.name)
		}
		return getattr(s, v, n.name)
	case *itemNode:
		v := s.eval(n.expr)
		if sl, ok := n.arg.(*sliceNode); ok {
			from, to := s.part(sl.start), s.part(sl.stop)
			return slice(s, v, from, to, s.part(sl.step))
		}
		return getitem(s, v, s.eval(n.arg))
	case *callNode:
		return s.call(n, Value{})
	case *applyNode:
		v := s.eval(n.expr)
		if n.fn.kinds != 0 && len(n.args.pos)+len(n.args.kw) == 0 && n.args.list == nil && n.args.dict == nil {
			return Bool(n.fn.kinds.has(v.kind))
		}
		return s.apply(n, v)
	case *unaryNode:
		if n.op == "not" {
			return Bool(!s.truth(n.expr))
		}
		return sign(s.eval(n.expr), n.op == "-")
	case *binaryNode:
		return s.binary(n)
	case *absentNode:
		return unsupported("%s", n.what)
	case *condNode:
		switch {
		case s.truth(n.test):
			return s.eval(n.then)
		case n.otherwise == nil:
			return undefinedMessage("the inline if-expression evaluated to false and no else section was defined.")
		}
		return s.eval(n.otherwise)
	case *listNode:
		return NewList(s.evalAll(n.items)...)
	case *tupleNode:
		return newTuple(s.evalAll(n.items)...)
	case *dictNode:
		s.grow(len(n.items) / 2 * pairBytes)
		d := NewDict(len(n.items) / 2)
		vals := s.evalAll(n.items)
		for i := 0; i < len(vals); i += 2 {
			s.scan(vals[i].str)
			d.set(vals[i], vals[i+1])
		}
		return d.Value()
	}
	return raise("an expression of unknown kind %T", n)
}

func (s *state) evalAll(ns []node) []Value {
	s.step(len(ns))
	if len(ns) == 0 {
		return nil
	}
	s.grow(len(ns) * valueBytes)
	out := make([]Value, len(ns))
	for i, n := range ns {
		out[i] = s.eval(n)
	}
	return out
}

// part evaluates a part of a slice. An absent one is None.
func (s *state) part(n node) Value {
	if n == nil {
		return None
	}
	return s.eval(n)
}

// name reads a variable: from the scopes, the rendering's variables, or the global functions.
func (s *state) name(name string) Value {
	if v := s.scope.find(name); v != nil {
		if v.isUnset() {
			return undefined(name)
		}
		return *v
	}
	if v, ok := s.vars.get(name); ok {
		return v
	}
	if v, ok := globals[name]; ok {
		return v
	}
	return undefined(name)
}

func (s *state) binary(n *binaryNode) Value {
	a := s.eval(n.left)
	if n.fn != nil {
		return n.fn(s, a, s.eval(n.right))
	}
	if truth(a) == (n.op == "or") {
		return a
	}
	return s.eval(n.right)
}

// truth evaluates an expression only for its truth.
func (s *state) truth(n node) bool {
	switch n := n.(type) {
	case *unaryNode:
		if n.op == "not" {
			return !s.truth(n.expr)
		}
	case *binaryNode:
		if n.fn == nil {
			left := s.truth(n.left)
			if left == (n.op == "or") {
				return left
			}
			return s.truth(n.right)
		}
	}
	return truth(s.eval(n))
}

// apply calls a filter or test on v. Long texts cost more steps.
func (s *state) apply(n *applyNode, v Value) Value {
	s.step(1 + len(v.str)>>8)
	var a callArgs
	base := s.arguments(&n.args, Value{}, &a)
	v = n.fn.invoke(s, v, &a)
	s.args = s.args[:base]
	return v
}

// arguments evaluates the arguments of a call. The positional ones are on s.args until the caller truncates it to base.
func (s *state) arguments(n *argNodes, caller Value, a *callArgs) (base int) {
	base = len(s.args)
	for _, e := range n.pos {
		v := s.eval(e)
		s.args = append(s.args, v)
	}
	if n.list != nil {
		more := elements(s, s.eval(n.list))
		s.step(len(more))
		s.args = append(s.args, more...)
	}
	a.pos = s.args[base:]
	for _, k := range n.kw {
		a.kw = append(a.kw, kwArg{k.name, s.eval(k.val)})
	}
	if n.dict != nil {
		s.unpack(s.eval(n.dict), a)
	}
	if caller.valid() {
		a.kw = append(a.kw, kwArg{"caller", caller})
	}
	return base
}

// unpack adds the members of a dict to the keyword arguments of a call.
func (s *state) unpack(v Value, a *callArgs) {
	d := v.Dict()
	if d == nil {
		wrongType(v, "argument after ** must be a mapping, not %s")
		return
	}
	given := len(a.kw)
	s.step(d.Len() * (1 + given))
	for _, e := range d.Entries() {
		if e.Key.kind != KindString {
			raise("keywords must be strings")
		}
		name := e.Key.Text()
		if slices.ContainsFunc(a.kw[:given], func(k kwArg) bool { return k.name == name }) {
			raise("got multiple values for keyword argument %s", quotePython(name))
		}
		a.kw = append(a.kw, kwArg{name, e.Value})
	}
}

// call calls a function, or a method without creating a bound one; caller is the body of a call block, or the zero Value.
func (s *state) call(n *callNode, caller Value) Value {
	var v, fn Value // a method's receiver; the callee
	var method *builtin
	if attr, ok := n.expr.(*attrNode); ok {
		v = s.eval(attr.expr)
		method = findMethod(v, attr.name)
		if method == nil || method.mutates || strings.HasPrefix(attr.name, "_") {
			method, fn = nil, getattr(s, v, attr.name)
		}
	} else {
		fn = s.eval(n.expr)
	}
	var a callArgs
	base := s.arguments(&n.args, caller, &a)
	s.step(1 + len(v.str)>>8)
	if method != nil {
		v = method.invoke(s, v, &a)
	} else {
		v = call(s, fn, &a)
	}
	s.args = s.args[:base]
	return v
}
