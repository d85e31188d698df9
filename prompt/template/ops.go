package template

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// Python's operators over Values: arithmetic (64-bit ints, floats, str and list repetition), equality, ordering and membership. A
// result beyond 64 bits ends the rendering, although Python would continue.

type binaryOp func(s *state, a, b Value) Value

// operators are those that evaluate both operands.
var operators = map[string]binaryOp{
	"+": add, "-": sub, "*": mul, "/": trueDiv, "//": floorDiv, "%": mod, "~": concat,
	"==":     func(s *state, a, b Value) Value { return Bool(equal(s, a, b)) },
	"!=":     func(s *state, a, b Value) Value { return Bool(!equal(s, a, b)) },
	"<":      func(s *state, a, b Value) Value { return Bool(ordered(s, "<", a, b) < 0) },
	"<=":     func(s *state, a, b Value) Value { return Bool(ordered(s, "<=", a, b) <= 0) },
	">":      func(s *state, a, b Value) Value { return Bool(ordered(s, ">", a, b) == 1) },
	">=":     func(s *state, a, b Value) Value { c := ordered(s, ">=", a, b); return Bool(c == 0 || c == 1) },
	"in":     func(s *state, a, b Value) Value { return Bool(contains(s, b, a)) },
	"not in": func(s *state, a, b Value) Value { return Bool(!contains(s, b, a)) },
}

// concat is a ~ b: the texts of both, never Markup.
func concat(s *state, a, b Value) Value {
	left, right := toStr(s, a), toStr(s, b)
	s.grow(len(left) + len(right))
	return String(left + right)
}

func badOperands(op string, a, b Value) Value {
	mustExist(a)
	mustExist(b)
	return raise("unsupported operand type(s) for %s: '%s' and '%s'", op, a.typeName(), b.typeName())
}

// arithmetic builds an operator from its effect on two ints (ok is false if the result exceeds 64 bits) and on floats if one of
// them is a float; nil: not supported.
func arithmetic(op string, ints func(x, y int64) (n int64, ok bool), floats func(x, y float64) float64) binaryOp {
	return func(_ *state, a, b Value) Value {
		switch {
		case !a.isNumber() || !b.isNumber():
			badOperands(op, a, b)
		case a.kind == KindBig || b.kind == KindBig:
			beyond()
		case a.kind != KindFloat && b.kind != KindFloat:
			n, ok := ints(a.int(), b.int())
			if !ok {
				beyond()
			}
			return Int(n)
		case floats == nil:
			unsupported("%s of a float", op)
		}
		return Float(floats(toFloat(a), toFloat(b)))
	}
}

var (
	sum = arithmetic("+", func(x, y int64) (int64, bool) { return x + y, (x+y > x) == (y > 0) },
		func(x, y float64) float64 { return x + y })
	sub = arithmetic("-", func(x, y int64) (int64, bool) { return x - y, (x-y < x) == (y > 0) },
		func(x, y float64) float64 { return x - y })
	product = arithmetic("*", func(x, y int64) (int64, bool) {
		return x * y, x == 0 || x*y/x == y && !(x == -1 && y == math.MinInt64)
	}, func(x, y float64) float64 { return x * y })
	floorDiv = arithmetic("//", func(x, y int64) (int64, bool) {
		q, _, ok := divmod(x, y)
		return q, ok
	}, nil)
	remainder = arithmetic("%", func(x, y int64) (int64, bool) {
		_, r, ok := divmod(x, y)
		return r, ok
	}, nil)
)

// divmod divides towards minus infinity: the remainder has the divisor's sign.
func divmod(x, y int64) (q, r int64, ok bool) {
	switch {
	case y == 0:
		raise("integer division or modulo by zero")
	case x == math.MinInt64 && y == -1:
		return 0, 0, false
	}
	q, r = x/y, x%y
	if r != 0 && (r < 0) != (y < 0) {
		q, r = q-1, r+y
	}
	return q, r, true
}

// beyond ends a rendering that computes with more than 64 bits.
func beyond() Value { return unsupported("an integer of more than 64 bits") }

func toFloat(v Value) float64 {
	switch v.kind {
	case KindFloat:
		return v.float()
	case KindBig:
		beyond()
	}
	return float64(v.int())
}

func add(s *state, a, b Value) Value {
	switch {
	case a.kind == KindString && b.kind == KindString:
		if a.str == "" {
			return b
		}
		if b.str == "" {
			return a
		}
		s.grow(len(a.str) + len(b.str))
		return String(a.str + b.str)
	case a.IsString() && b.IsString(): // one is Markup: the other is escaped
		left, right := escapeValue(s, a).str, escapeValue(s, b).str
		s.grow(len(left) + len(right))
		return markup(left + right)
	case a.isSeq() && a.kind == b.kind:
		x, y := a.Items(), b.Items()
		s.list(len(x) + len(y))
		return Value{kind: a.kind, ref: &List{items: slices.Concat(x, y)}}
	}
	return sum(s, a, b)
}

func mul(s *state, a, b Value) Value {
	if a.isInteger() && !b.isNumber() {
		a, b = b, a
	}
	switch {
	case a.IsString() && b.isInteger():
		n := repeats(b, len(a.str))
		s.grow(n * len(a.str))
		return Value{kind: a.kind, str: strings.Repeat(a.str, n)}
	case a.isSeq() && b.isInteger():
		x := a.Items()
		n := repeats(b, len(x))
		s.list(n * len(x))
		return Value{kind: a.kind, ref: &List{items: slices.Repeat(x, n)}}
	}
	return product(s, a, b)
}

// repeats returns the count for repeating size elements, bounded so that the product does not overflow.
func repeats(v Value, size int) int {
	n := int64(integer(v))
	if n <= 0 || size == 0 {
		return 0
	}
	if n > int64(math.MaxInt32/size) {
		limit("a repetition of %d times %d", n, size)
	}
	return int(n)
}

func trueDiv(_ *state, a, b Value) Value {
	if !a.isNumber() || !b.isNumber() {
		badOperands("/", a, b)
	}
	const exact = 1 << 53 // integers up to this are exact as floats
	for _, v := range []Value{a, b} {
		if v.kind != KindFloat && math.Abs(toFloat(v)) > exact {
			beyond()
		}
	}
	if toFloat(b) == 0 {
		raise("division by zero")
	}
	return Float(toFloat(a) / toFloat(b))
}

func mod(s *state, a, b Value) Value {
	if a.IsString() {
		return percentFormat(s, a, b)
	}
	return remainder(s, a, b)
}

// sign is +v or -v.
func sign(v Value, neg bool) Value {
	switch {
	case v.kind == KindFloat && neg:
		return Float(-v.float())
	case v.isInteger() && neg:
		return sub(nil, Int(0), v)
	case v.isNumber():
		return asInt(v)
	}
	return wrongType(v, "bad operand type for unary sign: '%s'")
}

// asInt returns an int for a bool.
func asInt(v Value) Value {
	if v.kind == KindBool {
		return Int(v.int())
	}
	return v
}

// floatToInt is int(f).
func floatToInt(f float64) Value {
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0):
		raise("cannot convert float %v to integer", f)
	case math.Abs(f) >= 1<<63:
		beyond()
	}
	return Int(int64(f))
}

// unordered is the result of comparing with NaN.
const unordered = 2

// equal is a == b.
func equal(s *state, a, b Value) bool {
	switch {
	case a.isNumber() && b.isNumber():
		return compareNumbers(a, b) == 0
	case a.IsString():
		if len(a.str) == len(b.str) {
			s.scan(a.str)
		}
		return b.IsString() && a.str == b.str
	case a.kind != b.kind:
		return false
	}
	switch a.kind {
	case KindNone, KindUndefined:
		return true
	case KindList, KindTuple, KindRange:
		x, y := a.Items(), b.Items()
		s.step(len(x))
		s.deeper()
		defer func() { s.depth-- }()
		return slices.EqualFunc(x, y, func(a, b Value) bool { return equal(s, a, b) })
	case KindDict:
		x, y := a.ref.(*Dict), b.ref.(*Dict)
		s.step(x.Len())
		s.deeper()
		defer func() { s.depth-- }()
		return x.Len() == y.Len() && !slices.ContainsFunc(x.entries, func(e Entry) bool {
			other, ok := y.lookup(e.Key)
			return !ok || !equal(s, e.Value, other)
		})
	case KindView:
		unsupported("a comparison of a dict's keys, values or items")
	}
	return a.ref == b.ref
}

// compareNumbers returns -1, 0, 1 or unordered.
func compareNumbers(a, b Value) int {
	switch {
	case a.kind == KindFloat || b.kind == KindFloat:
		x, y := toFloat(a), toFloat(b)
		if x != x || y != y {
			return unordered
		}
		return cmp.Compare(x, y)
	case a.kind == KindBig && b.kind == KindBig && a.str == b.str:
		return 0
	case a.kind == KindBig || b.kind == KindBig:
		beyond()
	}
	return cmp.Compare(a.int(), b.int())
}

// ordered compares for < <= > >=. Types without an order are an error.
func ordered(s *state, op string, a, b Value) int {
	switch {
	case a.isNumber() && b.isNumber():
		return compareNumbers(a, b)
	case a.IsString() && b.IsString():
		s.scan(a.str[:min(len(a.str), len(b.str))])
		return strings.Compare(a.str, b.str) // the order of UTF-8 bytes is that of code points
	case a.isSeq() && a.kind == b.kind:
		x, y := a.Items(), b.Items()
		s.deeper()
		defer func() { s.depth-- }()
		for i := 0; i < len(x) && i < len(y); i++ {
			s.step(1)
			if !equal(s, x[i], y[i]) {
				return ordered(s, op, x[i], y[i])
			}
		}
		return cmp.Compare(len(x), len(y))
	}
	badOperands(op, a, b)
	return 0
}

// contains is "item in box".
func contains(s *state, box, item Value) bool {
	switch box.kind {
	case KindString, KindMarkup:
		if !item.IsString() {
			wrongType(item, "'in <string>' requires string as left operand, not %s")
		}
		s.step(len(box.str) >> 8)
		return strings.Contains(box.str, item.str)
	case KindDict:
		s.scan(item.str)
		return box.ref.(*Dict).findKey(item) >= 0
	}
	items := elements(s, box)
	s.step(len(items))
	return slices.ContainsFunc(items, func(e Value) bool { return same(s, e, item) })
}

// same reports whether an element counts as the one that is looked for.
func same(s *state, e, item Value) bool { return identical(e, item) || equal(s, e, item) }

// identical is "a is b", as far as that can be determined: equal scalars count as one object.
func identical(a, b Value) bool { return a == b || a.kind == KindUndefined && b.kind == KindUndefined }

// runeSlice returns the part of text between two code point positions.
func runeSlice(text string, from, to int) string {
	if from >= to {
		return ""
	}
	if isASCII(text) {
		return text[from:to]
	}
	start, i := len(text), 0
	for at := range text {
		switch i {
		case from:
			start = at
		case to:
			return text[start:at]
		}
		i++
	}
	return text[start:]
}

func isASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	return true
}
