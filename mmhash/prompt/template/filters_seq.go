package template

import (
	"slices"
	"sort"
	"strings"
)

// Filters over sequences. Those that are generators in Jinja2 are lazy here too: they can be passed once, have no
// length, are always true, and their errors come when they are read.

// getter is an attribute argument taken apart: "a.b.0" asks for items a, b and 0 in turn.
type getter struct {
	parts      []Value
	ignoreCase bool
	def        Value // replaces Undefined on the way, if given
}

func newGetter(attribute Value, ignoreCase bool) getter {
	g := getter{ignoreCase: ignoreCase}
	switch {
	case attribute.IsString():
		for _, p := range strings.Split(attribute.str, ".") {
			if n, ok := parseInt(p, 10); ok && all(p, isDigitRune) {
				g.parts = append(g.parts, n)
			} else {
				g.parts = append(g.parts, String(p))
			}
		}
	case given(attribute):
		g.parts = []Value{attribute}
	}
	return g
}

func (g getter) get(s *state, v Value) Value {
	for _, p := range g.parts {
		v = getitem(s, v, p)
		if given(g.def) && v.kind == KindUndefined {
			v = g.def
		}
	}
	if g.ignoreCase && v.IsString() {
		v = Value{kind: v.kind, str: lowerText(v.str)}
	}
	return v
}

// sortValues sorts in place and stably by a key; reverse keeps equal elements in their order, as Python does.
func sortValues(s *state, items []Value, key func(Value) Value, reverse bool) {
	type keyed struct{ key, v Value }
	ks := make([]keyed, len(items))
	for i, v := range items {
		ks[i] = keyed{key(v), v}
	}
	s.step(2 * len(items))
	sort.SliceStable(ks, func(i, j int) bool {
		s.step(1)
		if reverse {
			i, j = j, i
		}
		return ordered(s, "<", ks[i].key, ks[j].key) == -1
	})
	for i := range ks {
		items[i] = ks[i].v
	}
}

func sortFilter(s *state, v Value, a []Value) Value {
	paths := []Value{a[2]}
	if a[2].IsString() {
		paths = nil
		for _, path := range strings.Split(a[2].str, ",") {
			paths = append(paths, String(path))
		}
	}
	getters := make([]getter, len(paths))
	for i, path := range paths {
		getters[i] = newGetter(path, !flag(a[1], false))
	}
	items := collect(s, v)
	sortValues(s, items, func(v Value) Value {
		keys := make([]Value, len(getters))
		for i, g := range getters {
			keys[i] = g.get(s, v)
		}
		return newTuple(keys...)
	}, flag(a[0], false))
	return NewList(items...)
}

func dictSortFilter(s *state, v Value, a []Value) Value {
	at := slices.Index([]string{"key", "value"}, a[1].or(String("key")).Text())
	if at < 0 {
		raise(filterArgError, `You can only sort by either "key" or "value"`)
	}
	items := collect(s, object(&dictView{mustDict(v), 'i'}))
	g := getter{ignoreCase: !flag(a[0], false)}
	sortValues(s, items, func(v Value) Value { return g.get(s, v.Items()[at]) }, flag(a[2], false))
	return NewList(items...)
}

// mustDict gives the storage of a dict; anything else has no attribute items.
func mustDict(v Value) *Dict {
	mustExist(v)
	if v.kind != KindDict {
		raise(attributeError, "'%s' object has no attribute 'items'", v.typeName())
	}
	return v.ref.(*Dict)
}

func groupByFilter(s *state, v Value, a []Value) Value {
	ignoreCase := !flag(a[2], false)
	g := newGetter(a[0], ignoreCase)
	g.def = a[1]
	items := collect(s, v)
	sortValues(s, items, func(v Value) Value { return g.get(s, v) }, false)
	var groups []Value
	for i := 0; i < len(items); {
		key := g.get(s, items[i])
		j := i + 1
		for j < len(items) && equal(s, key, g.get(s, items[j])) {
			j++
		}
		if ignoreCase { // the group is named by its first element as it is
			plain := g
			plain.ignoreCase = false
			key = plain.get(s, items[i])
		}
		pair := []Value{key, NewList(items[i:j:j]...)}
		groups = append(groups, Value{kind: KindTuple, ref: &List{items: pair, group: true}})
		i = j
	}
	return NewList(groups...)
}

func uniqueFilter(s *state, v Value, a []Value) Value {
	g := newGetter(a[1], !flag(a[0], false))
	src := iterate(s, v)
	seen := map[dictKey]bool{}
	return object(&generator{next: func(s *state) (Value, bool) {
		for {
			e, ok := src.next(s)
			if !ok {
				return Value{}, false
			}
			s.step(1)
			if k := keyOf(g.get(s, e)); !seen[k] {
				seen[k] = true
				return e, true
			}
		}
	}})
}

// extremeFilter makes min and max: the first element whose key compares as want against the best so far.
func extremeFilter(op string, want int) func(*state, Value, []Value) Value {
	return func(s *state, v Value, a []Value) Value {
		g := newGetter(a[1], !flag(a[0], false))
		best := undefinedMessage("No aggregated item, sequence was empty.")
		var bestKey Value
		for it := iterate(s, v); ; {
			e, ok := it.next(s)
			if !ok {
				return best
			}
			if key := g.get(s, e); !bestKey.valid() || ordered(s, op, key, bestKey) == want {
				best, bestKey = e, key
			}
		}
	}
}

func sumFilter(s *state, v Value, a []Value) Value {
	total := a[1].or(Int(0))
	if total.IsString() {
		raise(typeError, "sum() can't sum strings [use ''.join(seq) instead]")
	}
	g := newGetter(a[0], false)
	for it := iterate(s, v); ; {
		e, ok := it.next(s)
		if !ok {
			return total
		}
		total = add(s, total, g.get(s, e))
	}
}

func lengthFilter(_ *state, v Value, _ []Value) Value { return Int(int64(mustLength(v))) }

func firstFilter(s *state, v Value, _ []Value) Value {
	it := iterate(s, v)
	if e, ok := it.next(s); ok {
		return e
	}
	return undefinedMessage("No first item, sequence was empty.")
}

func lastFilter(s *state, v Value, _ []Value) Value {
	it := reversed(s, v)
	if it == nil {
		raise(typeError, "'%s' object is not reversible", v.typeName())
	}
	if e, ok := it.pull(s); ok {
		return e
	}
	return undefinedMessage("No last item, sequence was empty.")
}

// reversed is Python's reversed(v), or nil for TypeError.
func reversed(s *state, v Value) *generator {
	if _, isView := v.ref.(*dictView); !iterable(v) || v.kind == KindObject && !isView {
		return nil
	}
	items := collect(s, v)
	i := len(items)
	return &generator{name: v.typeName() + "_reverseiterator", next: func(*state) (Value, bool) {
		if i--; i < 0 {
			return Value{}, false
		}
		return items[i], true
	}}
}

func reverseFilter(s *state, v Value, _ []Value) Value {
	if v.IsString() {
		return slice(s, v, None, None, Int(-1))
	}
	if g := reversed(s, v); g != nil {
		return object(g)
	}
	if !iterable(v) {
		raise(filterArgError, "argument must be iterable")
	}
	items := collect(s, v)
	slices.Reverse(items)
	return NewList(items...)
}

// lazy gives a generator that is set up when its first element is asked for, as a Python generator function is.
func lazy(start func(s *state) func(s *state) (Value, bool)) Value {
	var next func(s *state) (Value, bool)
	return object(&generator{next: func(s *state) (Value, bool) {
		if next == nil {
			next = start(s)
		}
		return next(s)
	}})
}

func nothing(*state) (Value, bool) { return Value{}, false }

func itemsFilter(_ *state, v Value, _ []Value) Value {
	return lazy(func(s *state) func(s *state) (Value, bool) {
		if v.kind == KindUndefined {
			return nothing
		}
		if v.kind != KindDict {
			raise(typeError, "Can only get item pairs from a mapping.")
		}
		view := iterate(s, object(&dictView{v.Dict(), 'i'}))
		return view.next
	})
}

func batchFilter(s *state, v Value, a []Value) Value {
	size, fill := a[0], a[1]
	src := iterate(s, v)
	var held Value // the element that did not fit into the batch before
	return object(&generator{next: func(s *state) (Value, bool) {
		var batch []Value
		if held.valid() {
			batch, held = append(batch, held), Value{}
		}
		for {
			e, ok := src.next(s)
			if !ok {
				break
			}
			if equal(s, Int(int64(len(batch))), size) {
				held = e
				return s.list(batch), true
			}
			batch = append(batch, e)
		}
		if len(batch) == 0 {
			return Value{}, false
		}
		if given(fill) {
			if missing := sub(s, size, Int(int64(len(batch)))); missing.isNumber() && ordered(s, "<", Int(0), missing) < 0 {
				batch = append(batch, mul(s, NewList(fill), missing).Items()...)
			}
		}
		return s.list(batch), true
	}})
}

func sliceFilter(_ *state, v Value, a []Value) Value {
	slices, fill := a[0], a[1]
	return lazy(func(s *state) func(s *state) (Value, bool) {
		items, n := collect(s, v), integer(slices)
		if n == 0 {
			raise(zeroDivision, "integer division or modulo by zero")
		}
		number, from := 0, 0
		return func(s *state) (Value, bool) {
			if number >= n {
				return Value{}, false
			}
			to := from + len(items)/n
			if number < len(items)%n {
				to++
			}
			part := append([]Value(nil), items[from:to]...)
			if given(fill) && number >= len(items)%n {
				part = append(part, fill)
			}
			number, from = number+1, to
			return s.list(part), true
		}
	})
}

func mapFilter(_ *state, v Value, a *callArgs) Value {
	a = a.keep()
	return lazy(func(s *state) func(s *state) (Value, bool) {
		if !truth(v) {
			return nothing
		}
		f, src := mapFunc(a), iterate(s, v)
		return func(s *state) (Value, bool) {
			e, ok := src.next(s)
			if ok {
				e = f(s, e)
			}
			return e, ok
		}
	})
}

// mapFunc gives what map does to each element: get an attribute, or call a filter.
func mapFunc(a *callArgs) func(s *state, v Value) Value {
	if len(a.pos) > 0 {
		rest := &callArgs{a.pos[1:], a.kw}
		return func(s *state, v Value) Value { return apply(s, "filter", s.t.filters, a.pos[0], v, rest) }
	}
	var attribute, def Value
	for _, k := range a.kw {
		switch k.name {
		case "attribute":
			attribute = k.val
		case "default":
			def = k.val
		default:
			raise(filterArgError, "Unexpected keyword argument %s", quotePython(k.name))
		}
	}
	if !attribute.valid() {
		raise(filterArgError, "map requires a filter argument")
	}
	g := newGetter(attribute, false)
	g.def = def
	return g.get
}

// selectFilter makes select, reject and their attr forms.
func selectFilter(want, byAttr bool) func(*state, Value, *callArgs) Value {
	return func(_ *state, v Value, a *callArgs) Value {
		a = a.keep()
		return lazy(func(s *state) func(s *state) (Value, bool) {
			if !truth(v) {
				return nothing
			}
			test, src := selectFunc(a, byAttr), iterate(s, v)
			return func(s *state) (Value, bool) {
				for {
					e, ok := src.next(s)
					if !ok || truth(test(s, e)) == want {
						return e, ok
					}
					s.step(1)
				}
			}
		})
	}
}

// selectFunc gives what select asks of each element: its truth or a test, of itself or of an attribute.
func selectFunc(a *callArgs, byAttr bool) func(s *state, v Value) Value {
	args := a.pos
	var g getter
	if byAttr {
		if len(args) == 0 {
			raise(filterArgError, "Missing parameter for attribute name")
		}
		g, args = newGetter(args[0], false), args[1:]
	}
	if len(args) == 0 {
		return g.get
	}
	rest := &callArgs{args[1:], a.kw}
	return func(s *state, v Value) Value { return apply(s, "test", s.t.tests, args[0], g.get(s, v), rest) }
}
