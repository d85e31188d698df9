package template

import "strings"

// Expressions. cond compiles one for its truth alone, which spares the common tests of templates
// (role == 'user', content is string, 'text' in part) their way through a Value.

func (c *compiler) exprs(ns []node, sc scope) []expr {
	out := make([]expr, len(ns))
	for i, n := range ns {
		out[i] = c.expr(n, sc)
	}
	return out
}

func (c *compiler) expr(n node, sc scope) expr {
	switch n := n.(type) {
	case *constNode:
		v := n.val
		return func(*state) Value { return v }
	case *nameNode:
		return c.name(n, n.name, sc)
	case *tupleNode:
		items := c.exprs(n.items, sc)
		return func(s *state) Value { return newTuple(evalAll(s, items)...) }
	case *listNode:
		items := c.exprs(n.items, sc)
		return func(s *state) Value { return NewList(evalAll(s, items)...) }
	case *dictNode:
		keys, vals := c.exprs(n.keys, sc), c.exprs(n.values, sc)
		return func(s *state) Value {
			d := NewDict(len(keys))
			for i := range keys {
				k := keys[i](s)
				d.set(k, vals[i](s))
			}
			s.step(len(keys))
			return d.Value()
		}
	case *condNode:
		sc.soft = true
		test, then := c.cond(n.test, sc), c.expr(n.then, sc)
		otherwise := func(*state) Value {
			return undefinedMessage("the inline if-expression evaluated to false and no else section was defined.")
		}
		if n.otherwise != nil {
			otherwise = c.expr(n.otherwise, sc)
		}
		return func(s *state) Value {
			if test(s) {
				return then(s)
			}
			return otherwise(s)
		}
	case *binaryNode:
		return c.binary(n, sc)
	case *unaryNode:
		if n.op == "not" {
			cond := c.cond(n.expr, sc)
			return func(s *state) Value { return Bool(!cond(s)) }
		}
		e, neg := c.expr(n.expr, sc), n.op == "-"
		return func(s *state) Value { return sign(e(s), neg) }
	case *compareNode:
		cond := c.cond(n, sc)
		return func(s *state) Value { return Bool(cond(s)) }
	case *concatNode:
		items := c.exprs(n.items, sc)
		return func(s *state) Value { return concat(s, items) }
	case *filterNode:
		e, apply := c.expr(n.expr, sc), c.apply(n, "filter", filters[n.name], n.name, &n.args, sc)
		return func(s *state) Value { return apply(s, e(s)) }
	case *testNode:
		e, apply := c.expr(n.expr, sc), c.apply(n, "test", tests[n.name], n.name, &n.args, sc)
		return func(s *state) Value { return apply(s, e(s)) }
	case *callNode:
		return c.call(n, sc, nil)
	case *attrNode:
		return c.attr(n, sc)
	case *itemNode:
		return c.item(n, sc)
	}
	c.fail(n, "a slice among several subscripts is not supported") // x[1:2, 3]
	return nil
}

func (c *compiler) sliceParts(n *sliceNode, sc scope) (start, stop, step expr) {
	part := func(p node) expr {
		if p == nil {
			return func(*state) Value { return None }
		}
		return c.expr(p, sc)
	}
	return part(n.start), part(n.stop), part(n.step)
}

func evalAll(s *state, es []expr) []Value {
	s.step(len(es))
	if len(es) == 0 {
		return nil
	}
	out := make([]Value, len(es))
	for i, e := range es {
		out[i] = e(s)
	}
	return out
}

// name compiles the reading of a variable.
func (c *compiler) name(n node, name string, sc scope) expr {
	at := c.namePlace(n, name, sc)
	return func(s *state) Value { return *at(s) }
}

func (c *compiler) namePlace(n node, name string, sc scope) place {
	id := sc.sym.findRef(name)
	if id == nil {
		c.fail(n, "Tried to resolve a name to a reference that was unknown to the frame (%s)", quotePython(name))
	}
	empty := undefined(name)
	l, owner := sc.sym.findLoad(id)
	if l.action == loadResolve && !owner.stores[name] {
		g := c.global(name)
		return func(s *state) *Value {
			v := &s.resolved[g]
			if v.isMissing() {
				s.scrap = empty
				return &s.scrap
			}
			return v
		}
	}
	r := c.ref(id)
	return func(s *state) *Value {
		v := s.at(r)
		switch v.kind {
		case KindInvalid:
			raise(nameError, "cannot access variable %s where it is not associated with a value", quotePython(name))
		case KindUndefined:
			if v.isMissing() {
				s.scrap = empty
				return &s.scrap
			}
		}
		return v
	}
}

func (c *compiler) binary(n *binaryNode, sc scope) expr {
	l, r := c.expr(n.left, sc), c.expr(n.right, sc)
	switch n.op {
	case "and":
		return func(s *state) Value {
			if v := l(s); !truth(v) {
				return v
			}
			return r(s)
		}
	case "or":
		return func(s *state) Value {
			if v := l(s); truth(v) {
				return v
			}
			return r(s)
		}
	case "+":
		return func(s *state) Value {
			a := l(s)
			return add(s, a, r(s))
		}
	}
	op := arithmetic[n.op]
	return func(s *state) Value {
		a := l(s)
		return op(s, a, r(s))
	}
}

// constString gives the value of a string literal.
func constString(n node) (string, bool) {
	if k, ok := n.(*constNode); ok && k.val.kind == KindString {
		return k.val.str, true
	}
	return "", false
}

func (c *compiler) cond(n node, sc scope) func(*state) bool {
	switch n := n.(type) {
	case *unaryNode:
		if n.op == "not" {
			inner := c.cond(n.expr, sc)
			return func(s *state) bool { return !inner(s) }
		}
	case *binaryNode:
		switch n.op {
		case "and":
			l, r := c.cond(n.left, sc), c.cond(n.right, sc)
			return func(s *state) bool { return l(s) && r(s) }
		case "or":
			l, r := c.cond(n.left, sc), c.cond(n.right, sc)
			return func(s *state) bool { return l(s) || r(s) }
		}
	case *compareNode:
		return c.compare(n, sc)
	case *testNode:
		if b := tests[n.name]; b != nil && b.kinds != 0 && n.args.empty() {
			at, set := c.place(n.expr, sc), b.kinds
			return func(s *state) bool { return set.has(at(s).kind) }
		}
	}
	at := c.place(n, sc)
	return func(s *state) bool { return truth(*at(s)) }
}

func (c *compiler) compare(n *compareNode, sc scope) func(*state) bool {
	if len(n.ops) == 1 {
		op := n.ops[0].op
		if text, ok := constString(n.ops[0].expr); ok && (op == "==" || op == "!=") {
			at, want := c.place(n.expr, sc), op == "=="
			return func(s *state) bool {
				v := at(s)
				return (v.str == text && v.IsString()) == want
			}
		}
		if text, ok := constString(n.expr); ok && (op == "in" || op == "notin") {
			at, want := c.place(n.ops[0].expr, sc), op == "in"
			return func(s *state) bool {
				box := at(s)
				if box.kind == KindDict {
					return (box.ref.(*Dict).find(text) >= 0) == want
				}
				return contains(s, *box, String(text)) == want
			}
		}
		l, r := c.expr(n.expr, sc), c.expr(n.ops[0].expr, sc)
		f := comparisons[op]
		return func(s *state) bool {
			a := l(s)
			return f(s, a, r(s))
		}
	}
	l := c.expr(n.expr, sc)
	fs := make([]func(*state, Value, Value) bool, len(n.ops))
	rs := make([]expr, len(n.ops))
	for i, op := range n.ops {
		fs[i], rs[i] = comparisons[op.op], c.expr(op.expr, sc)
	}
	return func(s *state) bool {
		a := l(s)
		for i, f := range fs {
			b := rs[i](s)
			if !f(s, a, b) {
				return false
			}
			a = b
		}
		return true
	}
}

// apply compiles the call of a filter or test. An unknown one inside an if is an error only when it runs.
func (c *compiler) apply(n node, what string, b *builtin, name string, args *argNodes, sc scope) func(*state, Value) Value {
	if b == nil || b.absent() {
		if !sc.soft {
			c.fail(n, "No %s named '%s'.", what, name)
		}
		return func(*state, Value) Value {
			return raise(runtimeError, "No %s named '%s' found.", what, name)
		}
	}
	if b.fn != nil && len(b.params) == 0 && args.empty() {
		return func(s *state, v Value) Value {
			s.step(1 + len(v.str)>>8) // long texts cost more
			return b.fn(s, v, nil)
		}
	}
	eval := c.callArgs(args, sc, nil)
	return func(s *state, v Value) Value {
		s.step(1 + len(v.str)>>8)
		a, base := s.calls.next(), len(s.args)
		eval(s, a)
		v = b.invoke(s, v, a)
		s.endCall(a, base)
		return v
	}
}

// filterChain compiles the filters of a filter or set block, the first of which has no operand of its own.
func (c *compiler) filterChain(n *filterNode, sc scope) func(*state, Value) Value {
	apply := c.apply(n, "filter", filters[n.name], n.name, &n.args, sc)
	if n.expr == nil {
		return apply
	}
	inner := c.filterChain(n.expr.(*filterNode), sc)
	return func(s *state, v Value) Value { return apply(s, inner(s, v)) }
}

// callArgs compiles the arguments of a call of unknown target. The positional ones lie on s.args; the caller pops them.
func (c *compiler) callArgs(n *argNodes, sc scope, callerArg expr) func(*state, *callArgs) {
	pos := c.exprs(n.pos, sc)
	kw := make([]expr, len(n.kw))
	for i, k := range n.kw {
		kw[i] = c.expr(k.val, sc)
	}
	names := n.kw
	var dyn, dynKw expr
	if n.dyn != nil {
		dyn = c.expr(n.dyn, sc)
	}
	if n.dynKw != nil {
		dynKw = c.expr(n.dynKw, sc)
	}
	return func(s *state, a *callArgs) {
		base := len(s.args)
		for _, e := range pos {
			v := e(s)
			s.args = append(s.args, v)
		}
		count := len(pos)
		if dyn != nil {
			it := iterate(s, dyn(s))
			for {
				v, ok := it.next(s)
				if !ok {
					break
				}
				s.step(1)
				s.args = append(s.args, v)
				count++
			}
		}
		if len(kw) > 0 || callerArg != nil || dynKw != nil {
			for i, e := range kw {
				a.kw = append(a.kw, kwArg{names[i].name, e(s)})
			}
			if callerArg != nil {
				a.kw = append(a.kw, kwArg{"caller", callerArg(s)})
			}
			if dynKw != nil {
				a.spread(dynKw(s))
			}
		}
		a.pos = s.args[base : base+count]
	}
}

// endCall gives an argument list back and pops the arguments.
func (s *state) endCall(a *callArgs, base int) {
	s.args = s.args[:base]
	a.clear()
	s.calls.used--
}

// call compiles a call. A method call on a value goes straight to the method, without a bound method in between.
func (c *compiler) call(n *callNode, sc scope, callerArg expr) expr {
	args := c.callArgs(&n.args, sc, callerArg)
	of, name := n.expr, ""
	attr, isAttr := n.expr.(*attrNode)
	if isAttr {
		of, name = attr.expr, attr.name
	}
	value := c.expr(of, sc)
	return func(s *state) Value {
		v := value(s) // the callee, or what the method is of
		var method *builtin
		fn := v
		if isAttr {
			if method = methodOf(v, name); method == nil {
				fn = getattr(s, v, name)
			}
		}
		a, base := s.calls.next(), len(s.args)
		args(s, a)
		s.step(1 + len(v.str)>>8)
		if method != nil {
			v = method.invoke(s, v, a)
		} else {
			v = call(s, fn, a)
		}
		s.endCall(a, base)
		return v
	}
}

// place is an expression that gives where its value lies, valid until the next place is evaluated.
// Chains of members (message.content) go through places, which spares copies.
type place func(*state) *Value

func (c *compiler) place(n node, sc scope) place {
	switch n := n.(type) {
	case *constNode:
		v := n.val
		return func(*state) *Value { return &v }
	case *nameNode:
		return c.namePlace(n, n.name, sc)
	case *attrNode:
		if !dictAttr(n.name) {
			return c.member(n.expr, n.name, sc, getattr)
		}
	case *itemNode:
		if key, ok := constString(n.arg); ok && !dictAttr(key) {
			return c.member(n.expr, key, sc, func(s *state, v Value, name string) Value { return getitem(s, v, String(name)) })
		}
		if k, ok := n.arg.(*constNode); ok && k.val.kind == KindInt && k.val.int() >= 0 {
			of, key := c.place(n.expr, sc), k.val
			return func(s *state) *Value {
				v := of(s)
				if items := v.Items(); key.num < uint64(len(items)) {
					return &items[key.num]
				}
				s.scrap = getitem(s, *v, key)
				return &s.scrap
			}
		}
	}
	e := c.expr(n, sc)
	return func(s *state) *Value {
		s.scrap = e(s)
		return &s.scrap
	}
}

// member compiles owner.name and owner['name'] for a name that no dict method has; other is the way for what is no dict.
func (c *compiler) member(owner node, name string, sc scope, other func(*state, Value, string) Value) place {
	of, open := c.place(owner, sc), !strings.HasPrefix(name, "_")
	return func(s *state) *Value {
		v := of(s)
		var d *Dict
		switch v.kind {
		case KindDict:
			d = v.ref.(*Dict)
		case KindObject:
			if ns, ok := v.ref.(*namespace); ok && open {
				d = &ns.attrs
			}
		}
		if d == nil {
			s.scrap = other(s, *v, name)
		} else if i := d.find(name); i >= 0 {
			return &d.entries[i].Value
		} else {
			s.scrap = undefinedOf(*v, name)
		}
		return &s.scrap
	}
}

func (c *compiler) attr(n *attrNode, sc scope) expr {
	if dictAttr(n.name) {
		e, name := c.expr(n.expr, sc), n.name
		return func(s *state) Value { return getattr(s, e(s), name) }
	}
	at := c.place(n, sc)
	return func(s *state) Value { return *at(s) }
}

func (c *compiler) item(n *itemNode, sc scope) expr {
	e := c.expr(n.expr, sc)
	if sl, ok := n.arg.(*sliceNode); ok {
		start, stop, step := c.sliceParts(sl, sc)
		return func(s *state) Value {
			v := e(s)
			from := start(s)
			to := stop(s)
			return slice(s, v, from, to, step(s))
		}
	}
	if key, ok := constString(n.arg); ok && !dictAttr(key) {
		at := c.place(n, sc)
		return func(s *state) Value { return *at(s) }
	}
	arg := c.expr(n.arg, sc)
	return func(s *state) Value {
		v := e(s)
		return getitem(s, v, arg(s))
	}
}
