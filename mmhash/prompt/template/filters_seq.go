package template

import (
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
	case !given(attribute):
	case attribute.IsString():
		g.parts = attributeParts(attribute.str)
	default:
		g.parts = []Value{attribute}
	}
	return g
}

func attributeParts(path string) []Value {
	var parts []Value
	for _, p := range strings.Split(path, ".") {
		if n, ok := parseInt(p, 10); ok && all(p, isDigitRune) {
			parts = append(parts, n)
		} else {
			parts = append(parts, String(p))
		}
	}
	return parts
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
	ignoreCase := !flag(a[1], false)
	getters := []getter{newGetter(a[2], ignoreCase)}
	if a[2].IsString() {
		getters = nil
		for _, path := range strings.Split(a[2].str, ",") {
			getters = append(getters, newGetter(String(path), ignoreCase))
		}
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
	at := 0
	switch {
	case !a[1].valid() || a[1].Text() == "key":
	case a[1].Text() == "value":
		at = 1
	default:
		raise(filterArgError, `You can only sort by either "key" or "value"`)
	}
	d := v.Dict()
	if d == nil {
		if v.kind == KindUndefined {
			failUndefined(v)
		}
		raise(attributeError, "'%s' object has no attribute 'items'", v.typeName())
	}
	items := collect(s, object(&dictView{d, 'i'}))
	g := getter{ignoreCase: !flag(a[0], false)}
	sortValues(s, items, func(v Value) Value { return g.get(s, v.Items()[at]) }, flag(a[2], false))
	return NewList(items...)
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

func minFilter(s *state, v Value, a []Value) Value { return extreme(s, v, a, "<", -1) }
func maxFilter(s *state, v Value, a []Value) Value { return extreme(s, v, a, ">", 1) }

// extreme gives the first element whose key compares as want against the best so far.
func extreme(s *state, v Value, a []Value, op string, want int) Value {
	it := iterate(s, v)
	best, ok := it.next(s)
	if !ok {
		return undefinedMessage("No aggregated item, sequence was empty.")
	}
	g := newGetter(a[1], !flag(a[0], false))
	bestKey := g.get(s, best)
	for {
		e, ok := it.next(s)
		if !ok {
			return best
		}
		s.step(1)
		if key := g.get(s, e); ordered(s, op, key, bestKey) == want {
			best, bestKey = e, key
		}
	}
}

func sumFilter(s *state, v Value, a []Value) Value {
	total := a[1]
	if !total.valid() {
		total = Int(0)
	}
	if total.IsString() {
		raise(typeError, "sum() can't sum strings [use ''.join(seq) instead]")
	}
	g := newGetter(a[0], false)
	for it := iterate(s, v); ; {
		e, ok := it.next(s)
		if !ok {
			return total
		}
		s.step(1)
		total = add(s, total, g.get(s, e))
	}
}

func lengthFilter(_ *state, v Value, _ []Value) Value {
	n, ok := length(v)
	if !ok {
		raise(typeError, "object of type '%s' has no len()", v.typeName())
	}
	return Int(int64(n))
}

func listFilter(s *state, v Value, _ []Value) Value { return NewList(collect(s, v)...) }

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
	var items []Value
	switch v.kind {
	case KindUndefined, KindList, KindTuple, KindString, KindMarkup, KindRange, KindDict, KindBytes:
		items = collect(s, v)
	case KindObject:
		if _, ok := v.ref.(*dictView); !ok {
			return nil
		}
		items = collect(s, v)
	default:
		return nil
	}
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
	for i, j := 0, len(items)-1; i < j; i, j = i+1, j-1 {
		items[i], items[j] = items[j], items[i]
	}
	return NewList(items...)
}

func randomFilter(s *state, v Value, _ []Value) Value {
	n, ok := length(v)
	switch {
	case !ok:
		raise(typeError, "object of type '%s' has no len()", v.typeName())
	case n == 0:
		return undefinedMessage("No random item, sequence was empty.")
	case n == 1:
		return getitem(s, v, Int(0))
	}
	raise(runtimeError, "the random filter cannot be predicted")
	return Value{}
}

func itemsFilter(_ *state, v Value, _ []Value) Value {
	var view cursor
	started := false
	return object(&generator{next: func(s *state) (Value, bool) {
		if !started {
			started = true
			switch d := v.Dict(); {
			case v.kind == KindUndefined:
				return Value{}, false
			case d == nil:
				raise(typeError, "Can only get item pairs from a mapping.")
			default:
				view = iterate(s, object(&dictView{d, 'i'}))
			}
		}
		return view.next(s)
	}})
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

func sliceFilter(s *state, v Value, a []Value) Value {
	slices, fill := a[0], a[1]
	var items []Value
	number, offset := -1, 0
	return object(&generator{next: func(s *state) (Value, bool) {
		if number < 0 {
			items = collect(s, v)
			if !truth(slices) && slices.isNumber() {
				raise(zeroDivision, "integer division or modulo by zero")
			}
			number = 0
		}
		n := integer(slices)
		if number >= n {
			return Value{}, false
		}
		each, extra := len(items)/n, len(items)%n
		from := offset + number*each
		if number < extra {
			offset++
		}
		to := offset + (number+1)*each
		part := append([]Value(nil), items[from:to]...)
		if given(fill) && number >= extra {
			part = append(part, fill)
		}
		number++
		return s.list(part), true
	}})
}

// keep copies arguments for use after the call.
func (a *callArgs) keep() *callArgs {
	return &callArgs{append([]Value(nil), a.pos...), append([]kwArg(nil), a.kw...)}
}

func mapFilter(_ *state, v Value, a *callArgs) Value {
	a = a.keep()
	var src cursor
	var apply func(s *state, v Value) Value
	return object(&generator{next: func(s *state) (Value, bool) {
		if apply == nil {
			if !truth(v) {
				return Value{}, false
			}
			apply = mapFunc(a)
			src = iterate(s, v)
		}
		e, ok := src.next(s)
		if !ok {
			return Value{}, false
		}
		return apply(s, e), true
	}})
}

func mapFunc(a *callArgs) func(s *state, v Value) Value {
	var attribute, def Value
	for _, k := range a.kw {
		switch k.name {
		case "attribute":
			attribute = k.val
		case "default":
			def = k.val
		}
	}
	if len(a.pos) == 0 && attribute.valid() {
		for _, k := range a.kw {
			if k.name != "attribute" && k.name != "default" {
				raise(filterArgError, "Unexpected keyword argument %s", quotePython(k.name))
			}
		}
		g := newGetter(attribute, false)
		g.def = def
		return g.get
	}
	if len(a.pos) == 0 {
		raise(filterArgError, "map requires a filter argument")
	}
	rest := &callArgs{a.pos[1:], a.kw}
	return func(s *state, v Value) Value { return applyFilter(s, a.pos[0], v, rest) }
}

// selectFilter makes select, reject and their attr forms.
func selectFilter(want, byAttr bool) func(*state, Value, *callArgs) Value {
	return func(_ *state, v Value, a *callArgs) Value {
		a = a.keep()
		var src cursor
		var test func(s *state, v Value) bool
		return object(&generator{next: func(s *state) (Value, bool) {
			if test == nil {
				if !truth(v) {
					return Value{}, false
				}
				test = selectFunc(a, byAttr)
				src = iterate(s, v)
			}
			for {
				e, ok := src.next(s)
				if !ok {
					return Value{}, false
				}
				s.step(1)
				if test(s, e) == want {
					return e, true
				}
			}
		}})
	}
}

func selectFunc(a *callArgs, byAttr bool) func(s *state, v Value) bool {
	args := a.pos
	var g getter
	if byAttr {
		if len(args) == 0 {
			raise(filterArgError, "Missing parameter for attribute name")
		}
		g = newGetter(args[0], false)
		args = args[1:]
	}
	if len(args) == 0 {
		return func(s *state, v Value) bool { return truth(g.get(s, v)) }
	}
	rest := &callArgs{args[1:], a.kw}
	return func(s *state, v Value) bool { return applyTest(s, args[0], g.get(s, v), rest) }
}
