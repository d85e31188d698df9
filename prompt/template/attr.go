package template

import (
	"math"
	"slices"
	"strings"
)

// Attributes and items as the immutable sandbox gives them. "a.b" first asks the object for an attribute (a method), then for the
// item "b"; "a['b']" the other way round. Undefined is the result for what neither has, for Python's own names ("__class__") and
// for methods that change their object.

func isDunder(name string) bool {
	return len(name) > 4 && strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__")
}

// attribute is Python's getattr under the sandbox; ok is false for AttributeError.
func attribute(s *state, v Value, name string) (Value, bool) {
	if isDunder(name) {
		return undefinedOf(v, name), true
	}
	mustExist(v)
	if o, ok := v.ref.(interface {
		attr(*state, string) (Value, bool)
	}); ok {
		return o.attr(s, name)
	}
	m := findMethod(v, name)
	switch {
	case m != nil && m.mutates:
		return undefinedMessage("access to attribute " + quotePython(name) + " of '" + v.typeName() + "' object is unsafe."), true
	case m != nil:
		return object(&bound{m, v}), true
	case slices.Contains(strings.Fields(absentAttributes[v.kind]), name):
		unsupported("%s.%s", v.typeName(), name)
	}
	return Value{}, false
}

// subscript is v[key]; ok is false for TypeError and LookupError.
func subscript(s *state, v, key Value) (Value, bool) {
	mustExist(v)
	if d := v.Dict(); d != nil && (key.kind < KindList || key.kind == KindTuple) {
		s.scan(key.str)
		return d.lookup(key)
	}
	if key.kind != KindInt && key.kind != KindBool || v.kind == KindDict || v.kind == KindView {
		return Value{}, false
	}
	n, _ := length(v)
	i := key.int()
	if i < 0 {
		i += int64(n)
	}
	if i < 0 || i >= int64(n) {
		return Value{}, false
	}
	if v.IsString() {
		s.step(len(v.str) / 64)
		return like(v, runeSlice(v.str, int(i), int(i)+1)), true
	}
	return v.Items()[i], true
}

// getattr is the template's "v.name".
func getattr(s *state, v Value, name string) Value {
	if a, ok := attribute(s, v, name); ok {
		return a
	}
	if a, ok := subscript(s, v, String(name)); ok {
		return a
	}
	return undefinedOf(v, name)
}

// getitem is the template's "v[key]".
func getitem(s *state, v, key Value) Value {
	if a, ok := subscript(s, v, key); ok {
		return a
	}
	if key.IsString() {
		if a, ok := attribute(s, v, key.str); ok {
			return a
		}
		return undefinedOf(v, key.str)
	}
	return undefinedMessage(v.typeName() + " object has no element " + toStr(s, key))
}

// slice is v[start:stop:step].
func slice(s *state, v, start, stop, step Value) Value {
	if !v.isSeq() && !v.IsString() && v.kind != KindRange {
		wrongType(v, "'%s' object is not subscriptable")
	}
	n, _ := length(v)
	stride := sliceIndex(step, 1)
	if stride == 0 {
		raise("slice step cannot be zero")
	}
	var from, to int
	if stride > 0 {
		from, to = clampIndex(start, 0, n, 0, n), clampIndex(stop, n, n, 0, n)
	} else {
		from, to = clampIndex(start, n-1, n, -1, n-1), clampIndex(stop, -1, n, -1, n-1)
	}
	count := 0
	switch {
	case stride > 0 && from < to:
		count = (to-from-1)/stride + 1
	case stride < 0 && from > to:
		count = (from-to-1)/-stride + 1
	}
	if v.IsString() {
		return like(v, sliceText(s, v.str, from, stride, count))
	}
	items := v.Items()
	if stride == 1 {
		s.step(1)
		return Value{kind: v.kind, ref: &List{items: items[from : from+count : from+count]}}
	}
	s.list(count)
	return Value{kind: v.kind, ref: &List{items: every(items, from, stride, count)}}
}

func sliceText(s *state, text string, from, stride, count int) string {
	s.step(len(text) / 64)
	if stride == 1 || count == 0 {
		return runeSlice(text, from, from+count)
	}
	if isASCII(text) {
		s.grow(len(text) + 2*count)
		return string(every([]byte(text), from, stride, count))
	}
	s.grow(9 * len(text)) // four bytes a character, twice, and the result
	return string(every([]rune(text), from, stride, count))
}

// every returns count elements, beginning at from, stride apart.
func every[T any](all []T, from, stride, count int) []T {
	out := make([]T, count)
	for i := range out {
		out[i] = all[from+i*stride]
	}
	return out
}

// sliceIndex returns the integer of a slice part, or def for None.
func sliceIndex(v Value, def int) int {
	switch {
	case v.IsNone():
		return def
	case !v.isInteger():
		raise("slice indices must be integers or None or have an __index__ method")
	case v.kind == KindBig:
		beyond()
	}
	return int(max(-math.MaxInt32, min(math.MaxInt32, v.int())))
}

func clampIndex(v Value, def, n, low, high int) int {
	if v.IsNone() {
		return def
	}
	i := sliceIndex(v, def)
	if i < 0 {
		i += n
	}
	return max(low, min(high, i))
}

// integer returns an argument as a machine integer (clamped).
func integer(v Value) int {
	if !v.isInteger() {
		wrongType(v, "'%s' object cannot be interpreted as an integer")
	}
	return sliceIndex(v, 0)
}
