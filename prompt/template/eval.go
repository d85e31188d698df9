package template

import "slices"

// Statements. The parsed tree is evaluated directly. An if runs in the enclosing scope; a loop, a macro, a set block and a
// generation block have scopes of their own, whose variables end with them.

// flow says how a block ended.
type flow uint8

const (
	flowNext flow = iota
	flowBreak
	flowContinue
)

// block runs statements until one of them leaves the enclosing loop.
func (s *state) block(body []node) flow {
	for _, n := range body {
		s.line = n.at()
		s.step(1)
		if f := s.statement(n); f != flowNext {
			return f
		}
	}
	return flowNext
}

func (s *state) statement(n node) flow {
	switch n := n.(type) {
	case *outputNode:
		for _, item := range n.items {
			if d, ok := item.(*dataNode); ok {
				s.write(d.text)
				continue
			}
			s.line = item.at()
			s.print(s.sum(item, len(s.out)))
		}
	case *ifNode:
		if s.truth(n.test) {
			return s.block(n.body)
		}
		return s.block(n.orElse)
	case *forNode:
		return s.forStatement(n)
	case *setNode:
		if ns, ok := n.target.(*nsRefNode); ok {
			s.namespaceOf(ns) // before the value is computed
		}
		s.assign(n.target, s.eval(n.expr))
	case *setBlockNode:
		back := s.scope
		inner, from := s.open(back), len(s.out)
		inner.shadow(n.shadowed)
		f := s.block(n.body)
		v := String(s.captured(from))
		s.leave(inner, back)
		if f != flowNext {
			return f
		}
		s.assign(n.target, v)
	case *macroNode:
		s.scope.set(n.name, object(&macro{name: n.name, macroBody: &n.macroBody, outer: s.hold()}))
	case *callBlockNode:
		body := &macro{macroBody: &n.macroBody, outer: s.hold()}
		if n.call == nil { // generation: only a scope
			s.write(body.call(s, &callArgs{}).str)
			return flowNext
		}
		v := s.call(n.call.(*callNode), object(body))
		if !v.IsString() {
			raise("what a call block calls must give a str, not %s", v.typeName())
		}
		s.write(v.str)
	case *absentNode:
		unsupported("%s", n.what)
	case *loopControlNode:
		if n.brk {
			return flowBreak
		}
		return flowContinue
	}
	return flowNext
}

// sum evaluates an expression that is printed, where from is the current length of the output. Of a sum of strings all but the last
// are written to the output directly, without a copy.
func (s *state) sum(n node, from int) Value {
	b, ok := n.(*binaryNode)
	if !ok || b.op != "+" {
		return s.eval(n)
	}
	v, next := s.sum(b.left, from), s.eval(b.right)
	if v.kind == KindString && next.kind == KindString {
		s.write(v.str)
		return next
	}
	if len(s.out) > from { // the sum so far is already in the output: take it back
		v = add(s, String(s.captured(from)), v)
	}
	return add(s, v, next)
}

// assign sets a target: a name, a namespace's attribute, or a tuple of names.
func (s *state) assign(target node, v Value) {
	switch n := target.(type) {
	case *nameNode:
		s.scope.set(n.name, v)
	case *nsRefNode:
		s.namespaceOf(n).set(n.attr, v)
	case *tupleNode:
		items := unpack(s, v, len(n.items))
		for i, item := range n.items {
			s.assign(item, items[i])
		}
	}
}

func (s *state) namespaceOf(n *nsRefNode) *namespace {
	ns, ok := s.name(n.name).ref.(*namespace)
	if !ok {
		raise("cannot assign attribute on non-namespace object")
	}
	return ns
}

// unpack returns the n elements of an iterable.
func unpack(s *state, v Value, n int) []Value {
	items := v.Items()
	if !v.isSeq() {
		items = collect(s, v)
	}
	if len(items) != n {
		raise("%d values expected to unpack, not %d", n, len(items))
	}
	return items
}

// loop is a for statement in progress, and the variable loop in its body.
type loop struct {
	items   []Value // the elements from index next on are still to come
	next    int
	gone    int              // elements before items
	test    func(Value) bool // of "for … if", nil for none; evaluated only when an element is reached
	index0  int
	current Value
	before  Value
	after   Value // the element read ahead; the zero Value if none
}

func (l *loop) typeName() string { return "LoopContext" }

// pull returns the next element that passes the test, or the zero Value at the end.
func (l *loop) pull(s *state) Value {
	for l.next < len(l.items) {
		v := l.items[l.next]
		l.next++
		s.step(1)
		if l.test == nil || l.test(v) {
			return v
		}
	}
	return Value{}
}

func (l *loop) advance(s *state) bool {
	v := l.peek(s)
	l.after = (Value{})
	if v.valid() {
		l.index0++
		l.before, l.current = l.current, v
	}
	return v.valid()
}

func (l *loop) peek(s *state) Value {
	if !l.after.valid() {
		l.after = l.pull(s)
	}
	return l.after
}

// length counts the elements. In a filtered loop this evaluates the test for all remaining ones.
func (l *loop) length(s *state) int {
	if l.test != nil {
		var rest []Value
		ahead := l.peek(s)
		for v := ahead; v.valid(); v = l.pull(s) {
			s.grow(2 * valueBytes)
			rest = append(rest, v)
		}
		l.items, l.next, l.gone, l.test = rest, min(1, len(rest)), l.index0+1, nil
	}
	return l.gone + len(l.items)
}

func (l *loop) attr(s *state, name string) (Value, bool) {
	number := func(n int) (Value, bool) { return Int(int64(n)), true }
	switch name {
	case "first":
		return Bool(l.index0 == 0), true
	case "last":
		return Bool(!l.peek(s).valid()), true
	case "index":
		return number(l.index0 + 1)
	case "index0":
		return number(l.index0)
	case "length":
		return number(l.length(s))
	case "revindex":
		return number(l.length(s) - l.index0)
	case "revindex0":
		return number(l.length(s) - l.index0 - 1)
	case "previtem":
		return l.before.or(undefinedMessage("there is no previous item")), true
	case "nextitem":
		return l.peek(s).or(undefinedMessage("there is no next item")), true
	case "cycle":
		return function(raw(name, func(_ *state, _ Value, a *callArgs) Value {
			if len(a.pos) == 0 || len(a.kw) > 0 {
				raise("no items for cycling given")
			}
			return a.pos[l.index0%len(a.pos)]
		})), true
	case "changed", "depth", "depth0":
		unsupported("loop.%s", name)
	}
	return Value{}, false
}

func (s *state) forStatement(n *forNode) flow {
	back := s.scope
	l := &loop{items: elements(s, s.eval(n.iter)), index0: -1}
	if n.test != nil {
		own := &scope{outer: back}
		l.test = func(v Value) bool {
			body := s.scope
			s.scope = own
			s.assign(n.target, v)
			ok := s.truth(n.test)
			s.scope = body
			return ok
		}
	}
	inner := s.open(back)
	none, f := true, flowNext // no iteration completed: Jinja2 then takes the else branch
	for f != flowBreak && l.advance(s) {
		inner.reset()
		inner.shadow(n.shadowed)
		if n.loop {
			inner.set("loop", object(l))
		}
		s.assign(n.target, l.current)
		f = s.block(n.body)
		none = none && f != flowNext
	}
	s.leave(inner, back)
	if !none || len(n.orElse) == 0 {
		return flowNext
	}
	inner = s.open(back)
	inner.shadow(n.elseShadowed)
	f = s.block(n.orElse)
	s.leave(inner, back)
	return f
}

// macro is a macro as a value, or (without a name) the body of a call block.
type macro struct {
	*macroBody
	name  string
	outer *scope
}

func (m *macro) typeName() string { return "Macro" }

func (m *macro) attr(_ *state, name string) (Value, bool) {
	return String(m.name), name == "name" && m.name != ""
}

// call binds arguments as jinja2.runtime.Macro does and returns the text of the body.
func (m *macro) call(s *state, a *callArgs) Value {
	params := m.params
	s.step(1 + len(a.kw)*len(params)>>6) // their names are compared
	s.deeper()
	back, line := s.scope, s.line
	inner, from := s.open(m.outer), len(s.out)
	inner.shadow(m.shadowed)
	given := min(len(a.pos), len(params))
	if m.varargs {
		s.list(len(a.pos) - given)
		inner.set("varargs", newTuple(slices.Clone(a.pos[given:])...))
	} else if given < len(a.pos) {
		raise("macro %s takes not more than %d argument(s)", quotePython(m.name), len(params))
	}
	for i, v := range a.pos[:given] {
		inner.set(params[i].name, v)
	}
	var more *Dict
	if m.kwargs {
		more = new(Dict)
		inner.set("kwargs", more.Value())
	}
	for _, k := range a.kw {
		if k.name == "caller" && m.caller {
			inner.set(k.name, k.val)
			continue
		}
		i := slices.IndexFunc(params, func(p *nameNode) bool { return p.name == k.name })
		switch {
		case i < 0 && m.kwargs:
			s.grow(pairBytes)
			more.Set(k.name, k.val)
		case i < given:
			raise("macro %s got no use for the keyword argument %s", quotePython(m.name), quotePython(k.name))
		default:
			inner.set(k.name, k.val)
		}
	}
	if v := inner.own("caller"); m.caller && (v == nil || v.IsNone()) {
		inner.set("caller", undefinedMessage("No caller defined"))
	}
	without := len(params) - len(m.defaults)
	for i, p := range params {
		switch {
		case inner.own(p.name) != nil:
		case i < without:
			inner.set(p.name, undefinedMessage("parameter "+quotePython(p.name)+" was not provided"))
		default:
			inner.set(p.name, s.eval(m.defaults[i-without]))
		}
	}
	s.block(m.body)
	text := s.captured(from)
	s.leave(inner, back)
	s.line = line
	s.depth--
	return String(text)
}
