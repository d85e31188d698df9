package template

// The compiler turns the tree into closures. Each scope rule follows jinja2/compiler.py: what gets a scope of its own,
// which function a variable lives in, when a loop is "extended" (has a loop object), what is checked at compile time.
// Statements are here, loops and macros in compile_call.go, expressions in compile_expr.go.

type compiler struct {
	t          *Template
	fn         *funcScope
	globals    map[string]int
	generation bool // the template has {% generation %}: text must not reach the output early
}

// scope is what the statements of one scope share at compile time.
type scope struct {
	sym      *symbols
	topLevel bool // names set here are visible to blocks
	soft     bool // inside an if: unknown filters fail only when they run
	inLoop   bool // break and continue are allowed
	escape   escaping
}

type escaping uint8

const (
	escapeOff     escaping = iota
	escapeOn               // {% autoescape true %}
	escapeDynamic          // {% autoescape expr %}
)

// blockCode is a {% block %}.
type blockCode struct {
	fn    *funcScope
	loads []slotLoad
	body  []stmt
	self  int // slot of self, or -1
	super int // slot of super, or -1
}

func newCompiler(t *Template) *compiler {
	t.blocks = map[string]*blockCode{}
	t.resolved = map[string]bool{}
	return &compiler{t: t, globals: map[string]int{}}
}

func (c *compiler) fail(n node, format string, args ...any) {
	panic(syntaxErrorf(n.at(), format, args...))
}

func (c *compiler) template() {
	var blocks []*blockNode
	walk(c.t.tree, func(n node) bool {
		switch n := n.(type) {
		case *blockNode:
			if c.t.blocks[n.name] != nil {
				c.fail(n, "block '%s' defined twice", n.name)
			}
			c.t.blocks[n.name] = &blockCode{self: -1, super: -1}
			blocks = append(blocks, n)
		case *callBlockNode:
			c.generation = c.generation || n.call == nil
		}
		return true
	})
	c.fn = newFunc(nil)
	c.t.root = c.fn
	sc := scope{sym: newSymbols(nil, c.fn), topLevel: true}
	self := -1
	if undeclared(c.t.tree, "self")["self"] {
		self = sc.sym.param("self").slot
	}
	sc.sym.visitAll(c.t.tree)
	c.t.loads = c.loads(sc.sym)
	c.t.body = c.stmts(c.t.tree, sc)
	if self >= 0 {
		c.t.body = append([]stmt{func(s *state) ctl {
			s.fr.slots[self] = object(&templateReference{s})
			return ctlNext
		}}, c.t.body...)
	}
	for _, b := range blocks {
		c.block(b)
	}
}

func (c *compiler) block(n *blockNode) {
	code := c.t.blocks[n.name]
	code.fn = newFunc(nil)
	c.fn = code.fn
	sc := scope{sym: newSymbols(nil, c.fn)}
	free := undeclared(n.body, "self", "super")
	if free["self"] {
		code.self = sc.sym.param("self").slot
	}
	if free["super"] {
		code.super = sc.sym.param("super").slot
	}
	sc.sym.visitAll(n.body)
	code.loads = c.loads(sc.sym)
	code.body = c.stmts(n.body, sc)
}

// global gives the slot of a name among the variables of a rendering.
func (c *compiler) global(name string) int {
	g, ok := c.globals[name]
	if !ok {
		g = len(c.t.globals)
		c.globals[name] = g
		c.t.globals = append(c.t.globals, name)
		c.t.resolved[name] = true
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
	return scope{sym: newSymbols(sc.sym, c.fn), inLoop: sc.inLoop, escape: sc.escape}
}

func (c *compiler) stmts(ns []node, sc scope) []stmt {
	out := make([]stmt, 0, len(ns))
	for _, n := range ns {
		out = append(out, c.stmt(n, sc))
	}
	return out
}

func (c *compiler) stmt(n node, sc scope) stmt {
	line := n.at()
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
			s.begin(line)
			s.load(loads)
			for _, f := range assigns {
				f(s)
			}
			return s.block(body)
		}
	case *autoescapeNode:
		return c.autoescape(n, sc)
	case *blockNode:
		return c.blockStmt(n, sc)
	case *loaderNode:
		if n.tag == "extends" && !sc.topLevel {
			c.fail(n, "cannot use extend from a non top-level scope")
		}
		name := c.expr(n.template, sc)
		return func(s *state) ctl {
			s.begin(line)
			name(s)
			raise(typeError, "no loader for this environment specified: {%% %s %%} cannot work in a chat template", n.tag)
			return ctlNext
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

// begin notes the line of a statement and spends a step.
func (s *state) begin(line int) {
	s.line = line
	s.step(1)
}

// output compiles a run of text and prints.
func (c *compiler) output(n *outputNode, sc scope) stmt {
	line := n.at()
	var emits []func(*state)
	for i := 0; i < len(n.items); i++ {
		d, ok := n.items[i].(*dataNode)
		if !ok {
			emit, at := c.emit(n.items[i], sc), n.items[i].at()
			if at != line {
				inner := emit
				emit = func(s *state) {
					s.line = at
					inner(s)
				}
			}
			emits = append(emits, emit)
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
	if len(emits) == 1 {
		only := emits[0]
		return func(s *state) ctl {
			s.begin(line)
			only(s)
			return ctlNext
		}
	}
	return func(s *state) ctl {
		s.begin(line)
		for _, e := range emits {
			e(s)
		}
		return ctlNext
	}
}

// emit compiles the printing of an expression. Sums and concatenations of strings go straight to the output.
func (c *compiler) emit(n node, sc scope) func(*state) {
	if sc.escape == escapeOff && !c.generation {
		switch n := n.(type) {
		case *binaryNode:
			if n.op == "+" {
				return c.emitSum(n, sc)
			}
		case *concatNode:
			items := c.exprs(n.items, sc)
			return func(s *state) {
				for _, e := range items {
					s.print(e(s), false)
				}
			}
		}
	}
	e := c.expr(n, sc)
	switch sc.escape {
	case escapeOn:
		return func(s *state) { s.print(e(s), true) }
	case escapeDynamic:
		return func(s *state) { s.print(e(s), s.autoescape) }
	}
	return func(s *state) { s.print(e(s), false) }
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
	es := c.exprs(terms, sc)
	return func(s *state) {
		from := len(s.out)
		v := es[0](s)
		i := 1
		if v.kind == KindString {
			s.write(v.str)
			for ; i < len(es); i++ {
				if v = es[i](s); v.kind != KindString {
					break
				}
				s.write(v.str)
			}
			if i == len(es) {
				return
			}
			sum := String(string(s.out[from:]))
			s.out = s.out[:from]
			v = add(s, sum, v)
			i++
		}
		for ; i < len(es); i++ {
			v = add(s, v, es[i](s))
		}
		s.print(v, false)
	}
}

func (c *compiler) ifStmt(n *ifNode, sc scope) stmt {
	line := n.at()
	soft := sc
	soft.sym = sc.sym.copy()
	soft.soft = true
	test := c.cond(n.test, soft)
	body := c.stmts(n.body, soft)
	if len(n.elifs) == 0 {
		orElse := c.stmts(n.orElse, soft)
		return func(s *state) ctl {
			s.begin(line)
			if test(s) {
				return s.block(body)
			}
			return s.block(orElse)
		}
	}
	type branch struct {
		line int
		test func(*state) bool
		body []stmt
	}
	branches := []branch{{line, test, body}}
	for _, e := range n.elifs {
		branches = append(branches, branch{e.at(), c.cond(e.test, soft), c.stmts(e.body, soft)})
	}
	orElse := c.stmts(n.orElse, soft)
	return func(s *state) ctl {
		s.step(1)
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
		items = nil
		it := iterate(s, v)
		for {
			e, ok := it.next(s)
			if !ok {
				break
			}
			if items = append(items, e); len(items) > n {
				raise(valueError, "too many values to unpack (expected %d)", n)
			}
		}
	}
	if len(items) > n {
		raise(valueError, "too many values to unpack (expected %d)", n)
	}
	if len(items) < n {
		raise(valueError, "not enough values to unpack (expected %d, got %d)", n, len(items))
	}
	return items
}

// targetNames lists the names that a target assigns.
func targetNames(n node) []*nameNode {
	switch n := n.(type) {
	case *nameNode:
		return []*nameNode{n}
	case *tupleNode:
		var out []*nameNode
		for _, item := range n.items {
			out = append(out, targetNames(item)...)
		}
		return out
	}
	return nil
}

// publish makes names assigned at the top level visible to blocks.
func (c *compiler) publish(names []string, sc scope) func(*state) {
	if !sc.topLevel || len(c.t.blocks) == 0 || len(names) == 0 {
		return func(*state) {}
	}
	var slots []int
	for _, name := range names {
		slots = append(slots, sc.sym.findRef(name).slot)
	}
	return func(s *state) {
		for i, name := range names {
			s.blockVar.Set(name, s.fr.slots[slots[i]])
		}
	}
}

// nsCheck makes sure that every name.attr target of an assignment is a namespace, before the value is computed.
func (c *compiler) nsCheck(target node, sc scope) func(*state) {
	var refs []expr
	walkNode(target, func(n node) bool {
		if ns, ok := n.(*nsRefNode); ok {
			refs = append(refs, c.name(n, ns.name, sc))
		}
		return true
	})
	return func(s *state) {
		for _, r := range refs {
			if _, ok := r(s).ref.(*namespace); !ok {
				raise(runtimeError, "cannot assign attribute on non-namespace object")
			}
		}
	}
}

func (c *compiler) set(n *setNode, sc scope) stmt {
	line := n.at()
	check, set, val := c.nsCheck(n.target, sc), c.target(n.target, sc), c.expr(n.expr, sc)
	if name, ok := n.target.(*nameNode); ok && (!sc.topLevel || len(c.t.blocks) == 0) {
		slot := sc.sym.findRef(name.name).slot
		return func(s *state) ctl {
			s.begin(line)
			s.fr.slots[slot] = val(s)
			return ctlNext
		}
	}
	publish := c.publishTarget(n.target, sc)
	return func(s *state) ctl {
		s.begin(line)
		check(s)
		set(s, val(s))
		publish(s)
		return ctlNext
	}
}

func (c *compiler) publishTarget(target node, sc scope) func(*state) {
	var names []string
	for _, n := range targetNames(target) {
		names = append(names, n.name)
	}
	return c.publish(names, sc)
}

func (c *compiler) setBlock(n *setBlockNode, sc scope) stmt {
	line := n.at()
	in := c.inner(sc)
	in.sym.visitAll(n.body)
	loads := c.loads(in.sym)
	body := c.stmts(n.body, in)
	set, publish := c.target(n.target, sc), c.publishTarget(n.target, sc)
	var filter func(*state, string) Value
	if n.filter != nil {
		filter = c.filterText(n.filter, in)
	}
	return func(s *state) ctl {
		s.begin(line)
		s.load(loads)
		text, ctl := s.capture(func() ctl { return s.block(body) })
		if ctl != ctlNext {
			return ctl
		}
		v := String(text)
		if filter != nil {
			v = filter(s, text)
		}
		if s.autoescape {
			v = toMarkup(s, v)
		}
		set(s, v)
		publish(s)
		return ctlNext
	}
}

func (c *compiler) filterBlock(n *filterBlockNode, sc scope) stmt {
	line := n.at()
	in := c.inner(sc)
	in.sym.visitAll(n.body)
	in.sym.visit(n.filter)
	loads := c.loads(in.sym)
	body := c.stmts(n.body, in)
	filter := c.filterText(n.filter, in)
	return func(s *state) ctl {
		s.begin(line)
		s.load(loads)
		text, ctl := s.capture(func() ctl { return s.block(body) })
		if ctl != ctlNext {
			return ctl
		}
		s.writeRaw(filter(s, text))
		return ctlNext
	}
}

// writeRaw writes what a call or filter block gave. Jinja2 does not turn it into a str, so it must be one.
func (s *state) writeRaw(v Value) {
	if !v.IsString() {
		raise(typeError, "sequence item: expected str instance, %s found", v.typeName())
	}
	s.write(v.str)
}

func (c *compiler) autoescape(n *autoescapeNode, sc scope) stmt {
	line := n.at()
	in := c.inner(sc)
	in.sym.visit(n.on)
	in.sym.visitAll(n.body)
	loads := c.loads(in.sym)
	on := c.expr(n.on, in)
	if k, ok := n.on.(*constNode); ok {
		in.escape = escapeOff
		if truth(k.val) {
			in.escape = escapeOn
		}
	} else {
		in.escape = escapeDynamic
	}
	body := c.stmts(n.body, in)
	return func(s *state) ctl {
		s.begin(line)
		s.load(loads)
		old := s.autoescape
		s.autoescape = truth(on(s))
		ctl := s.block(body)
		s.autoescape = old
		return ctl
	}
}

func (c *compiler) blockStmt(n *blockNode, sc scope) stmt {
	line := n.at()
	code := c.t.blocks[n.name]
	type local struct {
		name string
		ref  varRef
	}
	var locals []local
	if n.scoped {
		seen := map[string]bool{}
		for sym := sc.sym; sym != nil; sym = sym.parent {
			for _, id := range sym.order {
				if sym.stores[id.name] && !seen[id.name] {
					seen[id.name] = true
					locals = append(locals, local{id.name, c.ref(sc.sym.findRef(id.name))})
				}
			}
		}
	}
	return func(s *state) ctl {
		s.begin(line)
		if n.required {
			raise(runtimeError, "Required block '%s' not found", n.name)
		}
		old := s.blockVar
		if n.scoped {
			s.blockVar = NewDict(old.Len() + len(locals))
			for _, e := range old.entries {
				s.blockVar.set(e.Key, e.Value)
			}
			for _, l := range locals {
				if v := *s.at(l.ref); !v.isMissing() && v.valid() {
					s.blockVar.Set(l.name, v)
				}
			}
		}
		s.runBlock(n.name, code)
		s.blockVar = old
		return ctlNext
	}
}

func (s *state) runBlock(name string, code *blockCode) {
	s.deeper()
	caller := s.fr
	s.fr = s.enter(code.fn, nil)
	if code.self >= 0 {
		s.fr.slots[code.self] = object(&templateReference{s})
	}
	if code.super >= 0 {
		s.fr.slots[code.super] = undefinedMessage("there is no parent block called " + quotePython(name) + ".")
	}
	s.load(code.loads)
	s.block(code.body)
	s.leave(code.fn, s.fr)
	s.fr = caller
	s.depth--
}
