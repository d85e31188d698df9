package template

import (
	"cmp"
	"math"
	"math/big"
	"slices"
	"strings"
	"unicode/utf8"
)

// Python's operators over Values: arithmetic (ints without bound, floats, str and list repetition),
// equality, ordering and membership.

// maxIntBits bounds integers; Python would go on, and print none longer than maxIntDigits.
const (
	maxIntBits   = 1 << 17
	maxIntDigits = 4300 // sys.get_int_max_str_digits()
)

type binaryOp func(s *state, a, b Value) Value

// arithmetic are the operators other than + and the lazy ones.
var arithmetic = map[string]binaryOp{"-": sub, "*": mul, "/": trueDiv, "//": floorDiv, "%": mod, "**": pow}

func badOperands(op string, a, b Value) Value {
	mustExist(a)
	mustExist(b)
	return raise(typeError, "unsupported operand type(s) for %s: '%s' and '%s'", op, a.typeName(), b.typeName())
}

func checkBig(n *big.Int) Value {
	if n.BitLen() > maxIntBits {
		limit("an integer of more than %d bits", maxIntBits)
	}
	return bigValue(n)
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
		s.grow(len(a.str) + len(b.str))
		return markup(escapeValue(s, a).str + escapeValue(s, b).str)
	case a.isSmallInt() && b.isSmallInt() && (a.int()+b.int() > a.int()) == (b.int() > 0):
		return Int(a.int() + b.int())
	case a.isInteger() && b.isInteger():
		return checkBig(new(big.Int).Add(a.bigInt(), b.bigInt()))
	case a.isNumber() && b.isNumber():
		return Float(toFloat(a) + toFloat(b))
	case a.isSeq() && a.kind == b.kind:
		x, y := a.Items(), b.Items()
		s.step(len(x) + len(y))
		items := make([]Value, 0, len(x)+len(y))
		items = append(append(items, x...), y...)
		return Value{kind: a.kind, ref: &List{items: items}}
	}
	if a.kind == KindString && b.kind != KindUndefined {
		raise(typeError, `can only concatenate str (not "%s") to str`, b.typeName())
	}
	return badOperands("+", a, b)
}

func sub(s *state, a, b Value) Value {
	switch {
	case a.isInteger() && b.isInteger():
		return checkBig(new(big.Int).Sub(a.bigInt(), b.bigInt()))
	case a.isNumber() && b.isNumber():
		return Float(toFloat(a) - toFloat(b))
	}
	return badOperands("-", a, b)
}

func mul(s *state, a, b Value) Value {
	if a.isNumber() && b.isNumber() {
		if a.kind == KindFloat || b.kind == KindFloat {
			return Float(toFloat(a) * toFloat(b))
		}
		if x, y := a.int(), b.int(); a.isSmallInt() && b.isSmallInt() && x == int64(int32(x)) && y == int64(int32(y)) {
			return Int(x * y)
		}
		return checkBig(new(big.Int).Mul(a.bigInt(), b.bigInt()))
	}
	if a.isInteger() {
		a, b = b, a
	}
	if !b.isInteger() {
		return badOperands("*", a, b)
	}
	switch a.kind {
	case KindString, KindMarkup:
		n := repeats(b, len(a.str))
		s.grow(n * len(a.str))
		return Value{kind: a.kind, str: strings.Repeat(a.str, n)}
	case KindList, KindTuple:
		x := a.Items()
		n := repeats(b, len(x))
		s.step(n * len(x))
		items := make([]Value, 0, n*len(x))
		for range n {
			items = append(items, x...)
		}
		return Value{kind: a.kind, ref: &List{items: items}}
	}
	return badOperands("*", a, b)
}

// repeats gives the count of a repetition of size elements, bounded so that the product fits.
func repeats(v Value, size int) int {
	n := v.bigInt()
	switch {
	case !n.IsInt64():
		raise(overflowError, "cannot fit 'int' into an index-sized integer")
	case n.Sign() <= 0 || size == 0:
		return 0
	case n.Int64() > int64(math.MaxInt32/size):
		limit("a repetition of %s times %d", n, size)
	}
	return int(n.Int64())
}

// toFloat is float(v) for a number; an int beyond float raises OverflowError.
func toFloat(v Value) float64 {
	switch v.kind {
	case KindFloat:
		return v.float()
	case KindBig:
		f, _ := new(big.Float).SetInt(v.bigInt()).Float64()
		if math.IsInf(f, 0) {
			raise(overflowError, "int too large to convert to float")
		}
		return f
	}
	return float64(v.int())
}

func trueDiv(s *state, a, b Value) Value {
	if !a.isNumber() || !b.isNumber() {
		return badOperands("/", a, b)
	}
	if !truth(b) {
		if a.kind == KindFloat || b.kind == KindFloat {
			raise(zeroDivision, "float division by zero")
		}
		raise(zeroDivision, "division by zero")
	}
	if a.kind == KindFloat || b.kind == KindFloat {
		return Float(toFloat(a) / toFloat(b))
	}
	const exact = 1 << 53
	if x, y := a.int(), b.int(); a.isSmallInt() && b.isSmallInt() && x < exact && x > -exact && y < exact && y > -exact {
		return Float(float64(x) / float64(y))
	}
	f, _ := new(big.Rat).SetFrac(a.bigInt(), b.bigInt()).Float64()
	if math.IsInf(f, 0) {
		raise(overflowError, "integer division result too large for a float")
	}
	if f == 0 {
		f = 0 // no negative zero from integers
	}
	return Float(f)
}

func floorDiv(_ *state, a, b Value) Value {
	q, _ := divmod("//", a, b)
	return q
}

func mod(s *state, a, b Value) Value {
	if a.IsString() {
		return percentFormat(s, a, b)
	}
	_, r := divmod("%", a, b)
	return r
}

func divmod(op string, a, b Value) (q, r Value) {
	switch {
	case !a.isNumber() || !b.isNumber():
		badOperands(op, a, b)
	case !truth(b):
		raise(zeroDivision, "integer division or modulo by zero")
	case a.kind == KindFloat || b.kind == KindFloat:
		x, y := floatDivmod(toFloat(a), toFloat(b))
		return Float(x), Float(y)
	}
	return bigDivmod(a, b)
}

func floatDivmod(x, y float64) (q, r float64) {
	r = math.Mod(x, y)
	div := (x - r) / y
	if r != 0 {
		if (y < 0) != (r < 0) {
			r += y
			div--
		}
	} else {
		r = math.Copysign(0, y)
	}
	if div != 0 {
		q = math.Floor(div)
		if div-q > 0.5 {
			q++
		}
	} else {
		q = math.Copysign(0, x/y)
	}
	return q, r
}

// bigDivmod is divmod of integers: the remainder has the divisor's sign.
func bigDivmod(a, b Value) (q, r Value) {
	if a.isSmallInt() && b.isSmallInt() && a.int() != math.MinInt64 {
		x, y := a.int(), b.int()
		d, m := x/y, x%y
		if m != 0 && (m < 0) != (y < 0) {
			m += y
			d--
		}
		return Int(d), Int(m)
	}
	x, y := a.bigInt(), b.bigInt()
	d, m := new(big.Int).QuoRem(x, y, new(big.Int))
	if m.Sign() != 0 && (m.Sign() < 0) != (y.Sign() < 0) {
		m.Add(m, y)
		d.Sub(d, big.NewInt(1))
	}
	return bigValue(d), bigValue(m)
}

func pow(s *state, a, b Value) Value {
	if !a.isNumber() || !b.isNumber() {
		return badOperands("** or pow()", a, b)
	}
	if a.isInteger() && b.isInteger() && b.bigInt().Sign() >= 0 {
		x, y := a.bigInt(), b.bigInt()
		if x.BitLen() > 1 && (!y.IsInt64() || y.Int64() > maxIntBits/int64(x.BitLen()-1)) {
			limit("an integer of more than %d bits", maxIntBits)
		}
		if x.BitLen() <= 1 { // 0, 1 and -1: the power matters by its parity and by being 0
			y = big.NewInt(int64(min(y.BitLen(), 1)*2) + int64(y.Bit(0)))
		}
		return checkBig(new(big.Int).Exp(x, y, nil))
	}
	x, y := toFloat(a), toFloat(b)
	if x == 0 && y < 0 {
		raise(zeroDivision, "0.0 cannot be raised to a negative power")
	}
	if x < 0 && !math.IsInf(x, 0) && !math.IsInf(y, 0) && y != math.Trunc(y) {
		raise(typeError, "complex numbers are not supported")
	}
	f := floatPow(x, y)
	if math.IsInf(f, 0) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
		raise(overflowError, "(34, 'Numerical result out of range')")
	}
	return Float(f)
}

// floatPow is C's pow, which rounds correctly where math.Pow may be one bit off.
func floatPow(x, y float64) float64 {
	f := math.Pow(x, y)
	switch {
	case y == 0.5 && x > 0:
		return math.Sqrt(x)
	case y != math.Trunc(y) || math.Abs(y) > 1024 || f == 0 || math.IsInf(f, 0) || math.IsNaN(f):
		return f
	}
	base, out := new(big.Float).SetPrec(512).SetFloat64(x), new(big.Float).SetPrec(512).SetInt64(1)
	for n := int(math.Abs(y)); n > 0; n >>= 1 {
		if n&1 != 0 {
			out.Mul(out, base)
		}
		base.Mul(base, base)
	}
	if y < 0 {
		out.Quo(big.NewFloat(1).SetPrec(512), out)
	}
	f, _ = out.Float64()
	return f
}

// sign is +v or -v.
func sign(v Value, neg bool) Value {
	switch {
	case v.kind == KindFloat && neg:
		return Float(-v.float())
	case v.isInteger() && neg:
		return bigValue(new(big.Int).Neg(v.bigInt()))
	case v.isNumber():
		return asInt(v)
	}
	return wrongType(v, "bad operand type for unary sign: '%s'")
}

// floatToInt is int(f).
func floatToInt(f float64) Value {
	if math.IsNaN(f) {
		raise(valueError, "cannot convert float NaN to integer")
	}
	if math.IsInf(f, 0) {
		raise(overflowError, "cannot convert float infinity to integer")
	}
	if math.Abs(f) < 1<<62 {
		return Int(int64(f))
	}
	n, _ := new(big.Float).SetFloat64(math.Trunc(f)).Int(nil)
	return bigValue(n)
}

// concat is the ~ operator: the str of each operand, joined.
func concat(s *state, items []expr) Value {
	from := s.beginCapture()
	vals := make([]Value, len(items))
	for i, e := range items {
		vals[i] = e(s)
	}
	for i := range vals {
		s.print(&vals[i])
	}
	return String(s.endCapture(from))
}

var comparisons = map[string]func(s *state, a, b Value) bool{
	"==":    equal,
	"!=":    func(s *state, a, b Value) bool { return !equal(s, a, b) },
	"<":     func(s *state, a, b Value) bool { return ordered(s, "<", a, b) < 0 },
	"<=":    func(s *state, a, b Value) bool { return ordered(s, "<=", a, b) <= 0 },
	">":     func(s *state, a, b Value) bool { c := ordered(s, ">", a, b); return c > 0 && c != unordered },
	">=":    func(s *state, a, b Value) bool { c := ordered(s, ">=", a, b); return c >= 0 && c != unordered },
	"in":    func(s *state, a, b Value) bool { return contains(s, b, a) },
	"notin": func(s *state, a, b Value) bool { return !contains(s, b, a) },
}

// unordered is the result of comparing with NaN.
const unordered = 2

// equal is a == b.
func equal(s *state, a, b Value) bool {
	switch {
	case a.isNumber() && b.isNumber():
		return compareNumbers(a, b) == 0
	case a.IsString():
		return b.IsString() && a.str == b.str
	case a.kind != b.kind:
		return false
	}
	switch a.kind {
	case KindNone, KindUndefined:
		return true
	case KindList, KindTuple:
		x, y := a.Items(), b.Items()
		s.step(len(x))
		s.deeper()
		defer func() { s.depth-- }()
		return slices.EqualFunc(x, y, func(a, b Value) bool { return equal(s, a, b) })
	case KindDict:
		x, y := a.ref.(*Dict), b.ref.(*Dict)
		if x.Len() != y.Len() {
			return false
		}
		s.step(x.Len())
		s.deeper()
		defer func() { s.depth-- }()
		for _, e := range x.entries {
			if other, ok := y.lookup(e.Key); !ok || !equal(s, e.Value, other) {
				return false
			}
		}
		return true
	case KindRange:
		x, y := a.ref.(*pyRange), b.ref.(*pyRange)
		n := x.len()
		return n == y.len() && (n == 0 || x.start == y.start && (n == 1 || x.step == y.step))
	}
	return a.ref == b.ref
}

// compareNumbers gives -1, 0, 1 or unordered.
func compareNumbers(a, b Value) int {
	switch {
	case a.isSmallInt() && b.isSmallInt():
		return cmp.Compare(a.int(), b.int())
	case a.isInteger() && b.isInteger():
		return a.bigInt().Cmp(b.bigInt())
	case a.kind == KindFloat && b.kind == KindFloat:
		x, y := a.float(), b.float()
		if x != x || y != y {
			return unordered
		}
		return cmp.Compare(x, y)
	case a.kind == KindFloat:
		c := compareNumbers(b, a)
		if c == unordered {
			return c
		}
		return -c
	}
	f := b.float()
	switch {
	case f != f:
		return unordered
	case math.IsInf(f, 0):
		return cmp.Compare(0, f)
	}
	return new(big.Float).SetInt(a.bigInt()).Cmp(big.NewFloat(f))
}

// ordered compares for < <= > >=; types without an order raise TypeError.
func ordered(s *state, op string, a, b Value) int {
	switch {
	case a.isNumber() && b.isNumber():
		return compareNumbers(a, b)
	case a.IsString() && b.IsString():
		return strings.Compare(a.str, b.str) // UTF-8 keeps the order of code points
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
	mustExist(a)
	mustExist(b)
	raise(typeError, "'%s' not supported between instances of '%s' and '%s'", op, a.typeName(), b.typeName())
	return 0
}

// contains is "item in box".
func contains(s *state, box, item Value) bool {
	switch box.kind {
	case KindString, KindMarkup:
		if !item.IsString() {
			raise(typeError, "'in <string>' requires string as left operand, not %s", item.typeName())
		}
		s.step(len(box.str) >> 8)
		return strings.Contains(box.str, item.str)
	case KindDict:
		return box.ref.(*Dict).findKey(item) >= 0
	case KindObject:
		if v, ok := box.ref.(*dictView); ok && v.kind == 'k' {
			return v.d.findKey(item) >= 0
		}
	}
	if !iterable(box) {
		raise(typeError, "argument of type '%s' is not iterable", box.typeName())
	}
	for it := iterate(s, box); ; {
		e, ok := it.next(s)
		if !ok {
			return false
		}
		s.step(1)
		if identical(e, item) || equal(s, e, item) {
			return true
		}
	}
}

// identical is "a is b", as far as it can be told: equal scalars count as one object.
func identical(a, b Value) bool {
	if a.kind != b.kind {
		return false
	}
	switch a.kind {
	case KindNone, KindUndefined:
		return true
	case KindBool, KindInt, KindFloat:
		return a.num == b.num
	case KindString, KindMarkup:
		return a.str == b.str
	}
	return a.ref == b.ref
}

// runeSlice gives the part of text between two code point positions.
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
