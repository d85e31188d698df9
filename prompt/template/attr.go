package template

import (
	"math"
	"slices"
	"strings"
)

// Attributes and items as the immutable sandbox gives them. "a.b" asks the object for an attribute (a method) first and
// for the item "b" then; "a['b']" the other way round. What neither has is Undefined; private names and methods that
// change their object are Undefined too, of the kind that raises SecurityError when used.

func isDunder(name string) bool {
	return len(name) > 4 && strings.HasPrefix(name, "__") && strings.HasSuffix(name, "__")
}

// attribute is Python's getattr under the sandbox; ok is false for AttributeError.
func attribute(s *state, v Value, name string) (Value, bool) {
	switch v.kind {
	case KindUndefined:
		if isDunder(name) {
			return unsafeUndefined(v, name), true
		}
		mustExist(v)
	case KindObject:
		if o, ok := v.ref.(interface {
			attr(*state, string) (Value, bool)
		}); ok {
			if a, ok := o.attr(s, name); ok {
				return a, true
			}
		}
	default:
		if m := findMethod(v, name); m != nil {
			if m.mutates {
				return unsafeUndefined(v, name), true
			}
			return object(&bound{m, v}), true
		}
		if v.IsString() && slices.Contains(strings.Fields(absentMethods), name) {
			unsupported("%s.%s", v.typeName(), name)
		}
	}
	if isDunder(name) {
		return unsafeUndefined(v, name), true
	}
	return Value{}, false
}

// subscript is v[key]; ok is false for TypeError and LookupError.
func subscript(s *state, v, key Value) (Value, bool) {
	switch v.kind {
	case KindDict:
		if key.kind < KindList {
			return v.ref.(*Dict).lookup(key)
		}
	case KindList, KindTuple, KindString, KindMarkup, KindRange:
		if key.kind != KindInt && key.kind != KindBool {
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
		switch v.kind {
		case KindRange:
			return v.ref.(*pyRange).at(int(i)), true
		case KindString, KindMarkup:
			s.step(len(v.str) / 64)
			return Value{kind: v.kind, str: runeSlice(v.str, int(i), int(i)+1)}, true
		}
		return v.Items()[i], true
	case KindUndefined:
		mustExist(v)
	}
	return Value{}, false
}

// getattr is the template's "v.name".
func getattr(s *state, v Value, name string) Value {
	if a, ok := attribute(s, v, name); ok {
		return private(v, name, a)
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
			return private(v, key.str, a)
		}
		return undefinedOf(v, key.str)
	}
	return undefinedMessage(v.typeName() + " object has no element " + toStr(s, key))
}

// private hides attributes whose name starts with an underscore.
func private(v Value, name string, a Value) Value {
	if strings.HasPrefix(name, "_") {
		return unsafeUndefined(v, name)
	}
	return a
}

// slice is v[start:stop:step].
func slice(s *state, v, start, stop, step Value) Value {
	n, ok := length(v)
	switch v.kind {
	case KindString, KindMarkup, KindList, KindTuple, KindRange:
	case KindDict:
		raise("unhashable type: 'slice'")
	default:
		ok = false
	}
	if !ok {
		wrongType(v, "'%s' object is not subscriptable")
	}
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
	switch v.kind {
	case KindString, KindMarkup:
		return Value{kind: v.kind, str: sliceText(s, v.str, from, to, stride, count)}
	case KindRange:
		r := v.ref.(*pyRange)
		return Value{kind: KindRange, ref: &pyRange{r.start + int64(from)*r.step, r.start + int64(to)*r.step, r.step * int64(stride)}}
	}
	items := v.Items()
	if stride == 1 {
		s.step(1)
		return Value{kind: v.kind, ref: &List{items: items[from : from+count : from+count]}}
	}
	s.step(count)
	out := make([]Value, 0, count)
	for i, at := 0, from; i < count; i, at = i+1, at+stride {
		out = append(out, items[at])
	}
	return Value{kind: v.kind, ref: &List{items: out}}
}

func sliceText(s *state, text string, from, to, stride, count int) string {
	if count == 0 {
		return ""
	}
	s.step(len(text) / 64)
	if stride == 1 {
		return runeSlice(text, from, to)
	}
	s.grow(4 * len(text))
	var b strings.Builder
	runes := []rune(text)
	for i, at := 0, from; i < count; i, at = i+1, at+stride {
		b.WriteRune(runes[at])
	}
	return b.String()
}

// sliceIndex gives the integer of a slice part, or def for None.
func sliceIndex(v Value, def int) int {
	switch {
	case v.IsNone():
		return def
	case v.kind == KindBig:
		beyond()
	case v.isInteger():
		return int(max(-math.MaxInt32, min(math.MaxInt32, v.int())))
	}
	raise("slice indices must be integers or None or have an __index__ method")
	return 0
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

// integer gives an argument as a machine integer (clamped).
func integer(v Value) int {
	if !v.isInteger() {
		wrongType(v, "'%s' object cannot be interpreted as an integer")
	}
	return sliceIndex(v, 0)
}
