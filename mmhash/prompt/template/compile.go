package template

// The compiler turns the tree into closures. Each scope rule follows jinja2/compiler.py: what gets a scope of its own,
// which function a variable lives in, when a loop is "extended" (has a loop object), what is checked at compile time.
// Statements are here, loops and macros in compile_call.go, expressions in compile_expr.go.

type compiler struct {
	t       *Template
	fn      *funcScope
	globals map[string]int
}

// scope is what the statements of one scope share at compile time.
type scope struct {
	sym    *symbols
	soft   bool // inside an if: unknown filters fail only when they run
	inLoop bool // break and continue are allowed
}

// compile fills in what t needs to render its tree.
func compile(t *Template) {
	c := &compiler{t: t, globals: map[string]int{}, fn: newFunc(nil)}
	t.root = c.fn
	sc := scope{sym: newSymbols(nil, c.fn)}
	sc.sym.visitAll(t.tree)
	t.loads = c.loads(sc.sym)
	t.body = c.stmts(t.tree, sc)
}

func (c *compiler) fail(n node, format string, args ...any) {
	panic(syntaxErrorf(n.at(), format, args...))
}

// global gives the slot of a name among the variables of a rendering.
func (c *compiler) global(name string) int {
	g, ok := c.globals[name]
	if !ok {
		g = len(c.t.globals)
		c.globals[name] = g
		c.t.globals = append(c.t.globals, name)
	}
	return g
}

// loads gives what must be filled on entry to a scope. Names that are only read stay in the rendering's variables.
func (c *compiler) loads(sym *symbols) []slotLoad {
	var out []slotLoad
	for _, id := range sym.order {
		l := sym.loads[id]
		sl := slotLoad{slot: id.slot, action: l.action}
		switch l.action {
		case loadParam:
			continue
		case loadResolve:
			sl.global = c.global(id.name)
			if !sym.stores[id.name] {
				continue
			}
		case loadAlias:
			if outer, owner := sym.parent.findLoad(l.from); outer.action == loadResolve && !owner.stores[id.name] {
				sl.action, sl.global = loadResolve, c.global(id.name) // the outer slot stays empty, see above
			} else {
				sl.from = c.ref(l.from)
			}
		}
		out = append(out, sl)
	}
	return out
}

// slotsOf lists the slots that a scope defines; they are emptied when a loop ends.
func slotsOf(sym *symbols) []int {
	var out []int
	for _, id := range sym.order {
		out = append(out, id.slot)
	}
	return out
}

func (c *compiler) ref(id *ident) varRef {
	hops := 0
	for fn := c.fn; fn != id.fn; fn = fn.outer {
		hops++
	}
	return varRef{hops, id.slot}
}

// inner is a scope inside sc, in the same function.
func (c *compiler) inner(sc scope) scope {
	return scope{sym: newSymbols(sc.sym, c.fn), inLoop: sc.inLoop}
}

func (c *compiler) stmts(ns []node, sc scope) []stmt {
	out := make([]stmt, 0, len(ns))
	for _, n := range ns {
		out = append(out, stmt{n.at(), c.stmt(n, sc)})
	}
	return out
}

func (c *compiler) stmt(n node, sc scope) func(*state) ctl {
	switch n := n.(type) {
	case *outputNode:
		return c.output(n, sc)
	case *ifNode:
		return c.ifStmt(n, sc)
	case *forNode:
		return c.forStmt(n, sc)
	case *setNode:
		return c.set(n, sc)
	case *setBlockNode:
		return c.setBlock(n, sc)
	case *macroNode:
		return c.macroStmt(n, sc)
	case *callBlockNode:
		return c.callBlock(n, sc)
	case *filterBlockNode:
		return c.filterBlock(n, sc)
	case *withNode:
		in := c.inner(sc)
		in.sym.visitAll(n.targets)
		in.sym.visitAll(n.body)
		loads := c.loads(in.sym)
		var assigns []func(*state)
		for i := range n.targets {
			set, val := c.target(n.targets[i], in), c.expr(n.values[i], sc)
			assigns = append(assigns, func(s *state) { set(s, val(s)) })
		}
		body := c.stmts(n.body, in)
		return func(s *state) ctl {
			s.load(loads)
			for _, f := range assigns {
				f(s)
			}
			return s.block(body)
		}
	case *loopControlNode:
		if !sc.inLoop {
			c.fail(n, "break and continue need a loop around them")
		}
		how := ctlContinue
		if n.brk {
			how = ctlBreak
		}
		return func(s *state) ctl { return how }
	}
	c.fail(n, "statement of unknown kind %T", n)
	return nil
}

// output compiles a run of text and prints.
func (c *compiler) output(n *outputNode, sc scope) func(*state) ctl {
	var emits []func(*state)
	for i := 0; i < len(n.items); i++ {
		d, ok := n.items[i].(*dataNode)
		if !ok {
			emit, at := c.emit(n.items[i], sc), n.items[i].at()
			emits = append(emits, func(s *state) {
				s.line = at
				emit(s)
			})
			continue
		}
		text := d.text
		for i+1 < len(n.items) {
			next, ok := n.items[i+1].(*dataNode)
			if !ok {
				break
			}
			text += next.text
			i++
		}
		emits = append(emits, func(s *state) { s.write(text) })
	}
	return func(s *state) ctl {
		for _, e := range emits {
			e(s)
		}
		return ctlNext
	}
}

// emit compiles the printing of an expression. Sums of strings go straight to the output.
func (c *compiler) emit(n node, sc scope) func(*state) {
	if b, ok := n.(*binaryNode); ok && b.op == "+" {
		return c.emitSum(b, sc)
	}
	at := c.place(n, sc)
	return func(s *state) { s.print(at(s)) }
}

func (c *compiler) emitSum(n *binaryNode, sc scope) func(*state) {
	var terms []node
	var flatten func(n node)
	flatten = func(n node) {
		if b, ok := n.(*binaryNode); ok && b.op == "+" {
			flatten(b.left)
			terms = append(terms, b.right)
			return
		}
		terms = append(terms, n)
	}
	flatten(n)
	places := make([]place, len(terms))
	for i, t := range terms {
		places[i] = c.place(t, sc)
	}
	return func(s *state) {
		from := len(s.out)
		for i, at := range places {
			v := at(s)
			if v.kind == KindString {
				s.write(v.str)
				continue
			}
			sum := *v
			if i > 0 {
				text := String(string(s.out[from:]))
				s.out = s.out[:from]
				sum = add(s, text, sum)
			}
			for _, at := range places[i+1:] {
				sum = add(s, sum, *at(s))
			}
			s.print(&sum)
			return
		}
	}
}

func (c *compiler) ifStmt(n *ifNode, sc scope) func(*state) ctl {
	soft := sc
	soft.sym = sc.sym.copy()
	soft.soft = true
	test := c.cond(n.test, soft)
	body := c.stmts(n.body, soft)
	type branch struct {
		line int
		test func(*state) bool
		body []stmt
	}
	branches := []branch{{n.at(), test, body}}
	for _, e := range n.elifs {
		branches = append(branches, branch{e.at(), c.cond(e.test, soft), c.stmts(e.body, soft)})
	}
	orElse := c.stmts(n.orElse, soft)
	return func(s *state) ctl {
		for i := range branches {
			b := &branches[i]
			s.line = b.line
			if b.test(s) {
				return s.block(b.body)
			}
		}
		return s.block(orElse)
	}
}

// target compiles an assignment target.
func (c *compiler) target(n node, sc scope) func(*state, Value) {
	switch n := n.(type) {
	case *nameNode:
		slot := sc.sym.findRef(n.name).slot
		return func(s *state, v Value) { s.fr.slots[slot] = v }
	case *nsRefNode:
		ns := c.name(n, n.name, sc)
		attr := n.attr
		return func(s *state, v Value) {
			o, ok := ns(s).ref.(*namespace)
			if !ok {
				raise(runtimeError, "cannot assign attribute on non-namespace object")
			}
			o.set(attr, v)
		}
	case *tupleNode:
		var sets []func(*state, Value)
		for _, item := range n.items {
			sets = append(sets, c.target(item, sc))
		}
		return func(s *state, v Value) {
			items := unpack(s, v, len(sets))
			for i, set := range sets {
				set(s, items[i])
			}
		}
	}
	c.fail(n, "can't assign to this expression")
	return nil
}

// unpack gives the n elements of an iterable, or raises as Python's unpacking does.
func unpack(s *state, v Value, n int) []Value {
	items := v.Items()
	if !v.isSeq() {
		for it := iterate(s, v); len(items) <= n; {
			e, ok := it.next(s)
			if !ok {
				break
			}
			items = append(items, e)
		}
	}
	if len(items) != n {
		raise(valueError, "%d values expected to unpack, not %d", n, len(items))
	}
	return items
}

// nsCheck makes sure that every name.attr target of an assignment is a namespace, before the value is computed.
func (c *compiler) nsCheck(target node, sc scope) func(*state) {
	var refs []expr
	walk(func(n node) bool {
		if ns, ok := n.(*nsRefNode); ok {
			refs = append(refs, c.name(n, ns.name, sc))
		}
		return true
	}, target)
	return func(s *state) {
		for _, r := range refs {
			if _, ok := r(s).ref.(*namespace); !ok {
				raise(runtimeError, "cannot assign attribute on non-namespace object")
			}
		}
	}
}

func (c *compiler) set(n *setNode, sc scope) func(*state) ctl {
	set, val := c.target(n.target, sc), c.expr(n.expr, sc)
	if _, ok := n.target.(*nameNode); ok {
		return func(s *state) ctl {
			set(s, val(s))
			return ctlNext
		}
	}
	check := c.nsCheck(n.target, sc)
	return func(s *state) ctl {
		check(s)
		set(s, val(s))
		return ctlNext
	}
}

// captured compiles a body whose text goes through a filter chain, which may be missing.
func (c *compiler) captured(body []node, filter *filterNode, in scope) func(*state) (Value, ctl) {
	loads, stmts := c.loads(in.sym), c.stmts(body, in)
	finish := func(_ *state, v Value) Value { return v }
	if filter != nil {
		finish = c.filterChain(filter, in)
	}
	return func(s *state) (Value, ctl) {
		s.load(loads)
		text, end := s.capture(func() ctl { return s.block(stmts) })
		if end != ctlNext {
			return Value{}, end
		}
		return finish(s, String(text)), end
	}
}

func (c *compiler) setBlock(n *setBlockNode, sc scope) func(*state) ctl {
	in := c.inner(sc)
	in.sym.visitAll(n.body)
	filter, _ := n.filter.(*filterNode)
	body, set := c.captured(n.body, filter, in), c.target(n.target, sc)
	return func(s *state) ctl {
		v, end := body(s)
		if end == ctlNext {
			set(s, v)
		}
		return end
	}
}

func (c *compiler) filterBlock(n *filterBlockNode, sc scope) func(*state) ctl {
	in := c.inner(sc)
	in.sym.visitAll(n.body)
	in.sym.visit(n.filter)
	body := c.captured(n.body, n.filter, in)
	return func(s *state) ctl {
		v, end := body(s)
		if end == ctlNext {
			s.writeRaw(v)
		}
		return end
	}
}

// writeRaw writes what a call or filter block gave. Jinja2 does not turn it into a str, so it must be one.
func (s *state) writeRaw(v Value) {
	if !v.IsString() {
		raise(typeError, "sequence item: expected str instance, %s found", v.typeName())
	}
	s.write(v.str)
}
