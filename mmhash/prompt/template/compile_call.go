package template

import "slices"

// Loops, macros and call blocks: everything whose body is entered more than once.

func (c *compiler) forStmt(n *forNode, sc scope) func(*state) ctl {
	walk(func(x node) bool {
		if name, ok := x.(*nameNode); ok && name.ctx == ctxStore && name.name == "loop" {
			c.fail(x, "Can't assign to special loop variable in for-loop target")
		}
		return true
	}, n)
	extended := n.recursive || undeclared(n.body, "loop")["loop"]
	iter := c.expr(n.iter, sc)
	code := &loopCode{loopSlot: -1}
	if n.test != nil {
		code.filter = c.loopFilter(n, sc)
	}
	outer := c.fn
	if n.recursive {
		c.fn = newFunc(outer)
		code.fn = c.fn
	}
	in, orElse := c.inner(sc), c.inner(sc)
	in.inLoop = true
	if n.recursive {
		orElse.inLoop = false
	}
	if extended {
		code.loopSlot = in.sym.param("loop").slot
	}
	in.sym.params(n.target)
	in.sym.visitAll(n.body)
	orElse.sym.visitAll(n.orElse)
	code.set = c.target(n.target, in)
	code.loads = c.loads(in.sym)
	code.body = c.stmts(n.body, in)
	code.cleared = slotsOf(in.sym)
	code.elseLoads = c.loads(orElse.sym)
	code.orElse = c.stmts(n.orElse, orElse)
	c.fn = outer
	if n.recursive {
		return func(s *state) ctl {
			v := iter(s)
			s.write(code.recurse(s, s.fr, v, 0))
			return ctlNext
		}
	}
	return func(s *state) ctl {
		return code.run(s, iter(s), s.fr, 0)
	}
}

// loopFilter compiles the if of a for statement: a generator function of its own.
func (c *compiler) loopFilter(n *forNode, sc scope) *filterCode {
	outer := c.fn
	c.fn = newFunc(outer)
	in := scope{sym: newSymbols(sc.sym, c.fn)}
	in.sym.params(n.target)
	in.sym.visit(n.test)
	f := &filterCode{fn: c.fn}
	f.loads = c.loads(in.sym)
	f.set = c.target(n.target, in)
	if t, ok := n.target.(*tupleNode); ok {
		setCtx(t, ctxLoad)
		f.tuple = c.expr(t, in)
		setCtx(t, ctxStore)
	}
	f.test = c.cond(n.test, in)
	c.fn = outer
	return f
}

type filterCode struct {
	fn    *funcScope
	loads []slotLoad
	set   func(*state, Value)
	tuple expr // the targets as a tuple again, if there are several
	test  func(*state) bool
}

// over gives the elements of v that pass the filter, one by one as they are asked for.
func (f *filterCode) over(s *state, v Value, outer *frame) Value {
	fr := s.enter(f.fn, outer)
	caller := s.fr
	s.fr = fr
	s.load(f.loads)
	s.fr = caller
	src := iterate(s, v)
	return object(&generator{next: func(s *state) (Value, bool) {
		for {
			e, ok := src.next(s)
			if !ok {
				return Value{}, false
			}
			s.step(1)
			caller := s.fr
			s.fr = fr
			f.set(s, e)
			pass := f.test(s)
			if pass && f.tuple != nil {
				e = f.tuple(s)
			}
			s.fr = caller
			if pass {
				return e, true
			}
		}
	}})
}

// loopCode is a compiled for statement.
type loopCode struct {
	fn        *funcScope // of a recursive loop
	filter    *filterCode
	loopSlot  int                 // slot of the loop object, or -1
	set       func(*state, Value) // assigns the target
	loads     []slotLoad
	body      []stmt
	cleared   []int
	elseLoads []slotLoad
	orElse    []stmt
}

// run loops over v. outer is the frame around a recursive loop's function.
func (l *loopCode) run(s *state, v Value, outer *frame, depth int) ctl {
	if l.filter != nil {
		v = l.filter.over(s, v, outer)
	}
	var lc *loopContext
	var plain cursor
	it := &plain
	if l.loopSlot >= 0 {
		lc = s.loopArena.next() // lives until the rendering ends: a template may keep it
		lc.init(s, v, l, outer, depth)
	} else {
		plain.init(s, v)
	}
	slots := s.fr.slots
	none := true // no round reached its end: Jinja2 then takes the else branch
	for {
		var e Value
		var ok bool
		if lc != nil {
			e, ok = lc.advance()
		} else {
			e, ok = it.next(s)
		}
		if !ok {
			break
		}
		s.step(1)
		if lc != nil {
			slots[l.loopSlot] = object(lc)
		}
		l.set(s, e)
		s.load(l.loads)
		switch s.block(l.body) {
		case ctlBreak:
			goto done
		case ctlNext:
			none = false
		}
	}
done:
	for _, i := range l.cleared {
		slots[i] = missing
	}
	if none && len(l.orElse) > 0 {
		s.load(l.elseLoads)
		return s.block(l.orElse)
	}
	return ctlNext
}

// recurse runs a recursive loop over v and gives its text. outer is the frame that the loop was written in.
func (l *loopCode) recurse(s *state, outer *frame, v Value, depth int) string {
	s.deeper()
	caller := s.fr
	s.fr = s.enter(l.fn, outer)
	text, _ := s.capture(func() ctl { return l.run(s, v, outer, depth) })
	s.leave(l.fn, s.fr)
	s.fr = caller
	s.depth--
	return text
}

// macroCode is a compiled macro, or the body of a call block.
type macroCode struct {
	name                  string // "" for a call block
	fn                    *funcScope
	params                []string
	slots                 []int  // of params
	defaults              []expr // one a parameter, nil for none
	caller, kwargs, extra int    // slots of caller, kwargs and varargs, or -1
	loads                 []slotLoad
	body                  []stmt
}

func (c *compiler) macro(n node, name string, sig *signature, body []node, sc scope) *macroCode {
	outer := c.fn
	c.fn = newFunc(outer)
	defer func() { c.fn = outer }()
	in := scope{sym: newSymbols(sc.sym, c.fn)}
	m := &macroCode{name: name, fn: c.fn, caller: -1, kwargs: -1, extra: -1}
	analyze := func() {
		for _, p := range sig.params {
			in.sym.visit(p)
		}
		in.sym.visitAll(sig.defaults)
		in.sym.visitAll(body)
	}
	analyze()
	named := map[string]bool{}
	for _, p := range sig.params {
		if named[p.name] {
			c.fail(n, "duplicate argument '%s' in function definition", p.name)
		}
		named[p.name] = true
		m.params = append(m.params, p.name)
		m.slots = append(m.slots, in.sym.findRef(p.name).slot)
		if p.name == "caller" {
			c.fail(n, "a parameter named caller is not supported")
		}
	}
	free := undeclared(body, "caller", "kwargs", "varargs")
	if free["caller"] {
		m.caller = in.sym.param("caller").slot
	}
	if free["kwargs"] && !named["kwargs"] {
		m.kwargs = in.sym.param("kwargs").slot
	}
	if free["varargs"] && !named["varargs"] {
		m.extra = in.sym.param("varargs").slot
	}
	analyze()
	m.loads = c.loads(in.sym)
	without := len(sig.params) - len(sig.defaults)
	for i := range sig.params {
		var d expr
		if i >= without {
			d = c.expr(sig.defaults[i-without], in)
		}
		m.defaults = append(m.defaults, d)
	}
	m.body = c.stmts(body, in)
	return m
}

func (c *compiler) macroStmt(n *macroNode, sc scope) func(*state) ctl {
	code := c.macro(n, n.name, &n.signature, n.body, sc)
	slot := sc.sym.findRef(n.name).slot
	return func(s *state) ctl {
		s.fr.slots[slot] = object(&macro{code, s.fr})
		return ctlNext
	}
}

func (c *compiler) callBlock(n *callBlockNode, sc scope) func(*state) ctl {
	code := c.macro(n, "", &n.signature, n.body, sc)
	if n.call == nil {
		return generationStmt(code)
	}
	call := n.call.(*callNode)
	for _, k := range call.args.kw {
		if k.name == "caller" {
			c.fail(n, "keyword argument repeated: caller")
		}
	}
	invoke := c.call(call, sc, func(s *state) Value { return object(&macro{code, s.fr}) })
	return func(s *state) ctl {
		s.writeRaw(invoke(s))
		return ctlNext
	}
}

// generationStmt runs a {% generation %} body: a macro call in all but name, so what it sets does not leak.
func generationStmt(code *macroCode) func(*state) ctl {
	return func(s *state) ctl {
		m := macro{code, s.fr}
		s.write(m.call(s, &callArgs{}).str)
		return ctlNext
	}
}

// macro is a macro as a value: its code and the frame that it was defined in.
type macro struct {
	code  *macroCode
	outer *frame
}

func (m *macro) typeName() string { return "Macro" }

// call binds arguments as jinja2.runtime.Macro does and gives the text of the body.
func (m *macro) call(s *state, a *callArgs) Value {
	code := m.code
	s.step(1)
	s.deeper()
	fr := s.enter(code.fn, m.outer)
	n := min(len(a.pos), len(code.params))
	for i := range code.params {
		fr.slots[code.slots[i]] = missing
		if i < n {
			fr.slots[code.slots[i]] = a.pos[i]
		}
	}
	var kwargs *Dict
	if code.kwargs >= 0 {
		kwargs = NewDict(len(a.kw))
	}
	caller := Value{}
	for _, k := range a.kw {
		if i := slices.Index(code.params, k.name); i >= n {
			fr.slots[code.slots[i]] = k.val
			continue
		}
		switch {
		case k.name == "caller" && code.caller >= 0:
			caller = k.val
		case kwargs != nil:
			kwargs.Set(k.name, k.val)
		default:
			raise(typeError, "macro %s takes no keyword argument %s", quotePython(code.name), quotePython(k.name))
		}
	}
	if code.caller >= 0 {
		if !caller.valid() || caller.IsNone() {
			caller = undefinedMessage("No caller defined")
		}
		fr.slots[code.caller] = caller
	}
	if kwargs != nil {
		fr.slots[code.kwargs] = kwargs.Value()
	}
	if code.extra >= 0 {
		fr.slots[code.extra] = newTuple(append([]Value(nil), a.pos[n:]...)...)
	} else if len(a.pos) > len(code.params) {
		raise(typeError, "macro %s takes not more than %d argument(s)", quotePython(code.name), len(code.params))
	}
	back, line := s.fr, s.line
	s.fr = fr
	from := s.beginCapture()
	s.load(code.loads)
	for i, d := range code.defaults {
		slot := &fr.slots[code.slots[i]]
		if !slot.isMissing() {
			continue
		}
		if d == nil {
			*slot = undefinedMessage("parameter " + quotePython(code.params[i]) + " was not provided")
		} else {
			fr.slots[code.slots[i]] = d(s)
		}
	}
	s.block(code.body)
	text := s.endCapture(from)
	s.fr, s.line = back, line
	s.leave(code.fn, fr)
	s.depth--
	return String(text)
}

func (m *macro) attr(name string) (Value, bool) {
	switch name {
	case "name":
		return String(m.code.name), m.code.name != ""
	case "arguments", "catch_kwargs", "catch_varargs", "caller", "explicit_caller":
		raise(notSupported, "Macro.%s is not supported in chat templates", name)
	}
	return Value{}, false
}
