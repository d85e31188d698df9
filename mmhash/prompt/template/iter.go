package template

import "unicode/utf8"

// Iteration: cursors over everything that Python can iterate, generators (lazy, used up by one pass, always true),
// and the loop object.

// cursor walks over an iterable.
type cursor struct {
	kind  Kind
	i     int
	items []Value
	dict  *Dict
	view  *dictView
	rng   *pyRange
	str   string
	gen   *generator
	loop  *loopContext
}

// iterate is iter(v); it raises TypeError for what cannot be iterated.
func iterate(s *state, v Value) cursor {
	var c cursor
	c.init(s, v)
	return c
}

func (c *cursor) init(_ *state, v Value) {
	c.kind = v.kind
	switch v.kind {
	case KindUndefined:
	case KindList, KindTuple:
		c.items = v.ref.(*List).items
	case KindDict:
		c.dict = v.ref.(*Dict)
	case KindString, KindMarkup:
		c.str = v.str
	case KindRange:
		c.rng = v.ref.(*pyRange)
	default:
		switch o := v.ref.(type) {
		case *dictView:
			c.view = o
			return
		case *generator:
			c.gen = o
			return
		case *loopContext:
			c.loop = o
			return
		}
		raise(typeError, "'%s' object is not iterable", v.typeName())
	}
}

// iterable reports whether iter(v) works.
func iterable(v Value) bool {
	switch v.kind {
	case KindUndefined, KindList, KindTuple, KindDict, KindString, KindMarkup, KindRange:
		return true
	case KindObject:
		switch v.ref.(type) {
		case *dictView, *generator, *loopContext:
			return true
		}
	}
	return false
}

func (c *cursor) next(s *state) (Value, bool) {
	i := c.i
	c.i++
	switch c.kind {
	case KindList, KindTuple:
		if i < len(c.items) {
			return c.items[i], true
		}
	case KindDict:
		if i < len(c.dict.entries) {
			return c.dict.entries[i].Key, true
		}
	case KindString, KindMarkup:
		if c.str != "" {
			_, n := utf8.DecodeRuneInString(c.str)
			ch := c.str[:n]
			c.str = c.str[n:]
			return String(ch), true // also of a Markup: only indexing keeps the class
		}
	case KindRange:
		if i < c.rng.len() {
			return c.rng.at(i), true
		}
	case KindObject:
		switch {
		case c.view != nil:
			if i < len(c.view.d.entries) {
				return c.view.at(i), true
			}
		case c.gen != nil:
			return c.gen.pull(s)
		case c.loop != nil:
			if v, ok := c.loop.advance(); ok {
				return newTuple(v, object(c.loop)), true
			}
		}
	}
	c.i = i
	return Value{}, false
}

// collect is list(v): a new slice with its elements.
func collect(s *state, v Value) []Value {
	if v.isSeq() {
		items := v.Items()
		s.step(len(items))
		return append(make([]Value, 0, len(items)), items...)
	}
	var out []Value
	for it := iterate(s, v); ; {
		e, ok := it.next(s)
		if !ok {
			return out
		}
		s.step(1)
		out = append(out, e)
	}
}

// generator is a lazy sequence.
type generator struct {
	next func(*state) (Value, bool)
	name string // its type name, "generator" if empty
	done bool
}

func (g *generator) typeName() string {
	if g.name == "" {
		return "generator"
	}
	return g.name
}

func (g *generator) pull(s *state) (Value, bool) {
	if g.done {
		return Value{}, false
	}
	s.step(1)
	v, ok := g.next(s)
	g.done = !ok
	return v, ok
}

// loopContext is the loop variable of an extended loop.
type loopContext struct {
	s       *state
	code    *loopCode
	outer   *frame
	over    Value
	it      cursor
	index0  int
	depth0  int
	size    int // -1: not known yet
	current Value
	before  Value
	after   Value // looked ahead; the zero Value if not
	changed Value // last arguments of changed()
}

func (l *loopContext) typeName() string { return "LoopContext" }

func (l *loopContext) init(s *state, v Value, code *loopCode, outer *frame, depth int) {
	*l = loopContext{s: s, code: code, outer: outer, over: v, index0: -1, depth0: depth, size: -1}
	l.it.init(s, v)
}

func (l *loopContext) advance() (Value, bool) {
	v := l.after
	if v.valid() {
		l.after = Value{}
	} else {
		var ok bool
		if v, ok = l.it.next(l.s); !ok {
			return Value{}, false
		}
	}
	l.index0++
	l.before, l.current = l.current, v
	return v, true
}

// length counts the elements. A generator is read to its end for that, as Jinja2 does.
func (l *loopContext) length() int {
	if l.size >= 0 {
		return l.size
	}
	n, ok := length(l.over)
	if !ok {
		var rest []Value
		for {
			v, ok := l.it.next(l.s)
			if !ok {
				break
			}
			rest = append(rest, v)
		}
		l.it = iterate(l.s, NewList(rest...))
		n = len(rest) + l.index0 + 1
		if l.after.valid() {
			n++
		}
	}
	l.size = n
	return n
}

func (l *loopContext) peek() (Value, bool) {
	if !l.after.valid() {
		v, ok := l.it.next(l.s)
		if !ok {
			return Value{}, false
		}
		l.after = v
	}
	return l.after, true
}

func (l *loopContext) attr(name string) (Value, bool) {
	number := func(n int) (Value, bool) { return Int(int64(n)), true }
	switch name {
	case "first":
		return Bool(l.index0 == 0), true
	case "last":
		_, more := l.peek()
		return Bool(!more), true
	case "index":
		return number(l.index0 + 1)
	case "index0":
		return number(l.index0)
	case "length":
		return number(l.length())
	case "revindex":
		return number(l.length() - l.index0)
	case "revindex0":
		return number(l.length() - l.index0 - 1)
	case "depth":
		return number(l.depth0 + 1)
	case "depth0":
		return number(l.depth0)
	case "previtem":
		if l.index0 == 0 {
			return undefinedMessage("there is no previous item"), true
		}
		return l.before, true
	case "nextitem":
		if v, ok := l.peek(); ok {
			return v, true
		}
		return undefinedMessage("there is no next item"), true
	case "cycle":
		return function(raw(name, func(_ *state, _ Value, a *callArgs) Value {
			if len(a.pos) == 0 || len(a.kw) > 0 {
				raise(typeError, "no items for cycling given")
			}
			return a.pos[l.index0%len(a.pos)]
		})), true
	case "changed":
		return function(raw(name, func(s *state, _ Value, a *callArgs) Value {
			now := newTuple(a.keep().pos...)
			same := l.changed.valid() && equal(s, l.changed, now)
			l.changed = now
			return Bool(!same)
		})), true
	}
	return Value{}, false
}

// call renders a recursive loop's body over another iterable.
func (l *loopContext) call(s *state, a *callArgs) Value {
	if l.code.fn == nil {
		raise(typeError, "The loop must have the 'recursive' marker to be called recursively.")
	}
	return def("loop", "iterable", func(s *state, _ Value, a []Value) Value {
		return String(l.code.recurse(s, l.outer, a[0], l.depth0+1))
	}).invoke(s, Value{}, a)
}
