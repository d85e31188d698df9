package template

import (
	"math"
	"math/big"
	"strconv"
)

// Filters over numbers.

func absFilter(_ *state, v Value, _ []Value) Value {
	switch {
	case v.kind == KindFloat:
		return Float(math.Abs(v.float()))
	case v.isInteger():
		if v.bigInt().Sign() < 0 {
			return sign(v, true)
		}
		return asInt(v)
	}
	return raise(typeError, "bad operand type for abs(): '%s'", v.typeName())
}

// intFilter is the int filter: what cannot be read as an int goes through float, and then to the default.
func intFilter(s *state, v Value, a []Value) Value {
	def := a[0].or(Int(0))
	switch {
	case v.isInteger():
		return asInt(v)
	case v.kind == KindFloat:
		if math.IsNaN(v.float()) {
			return def
		}
		return floatToInt(v.float())
	case v.IsString():
		if base := a[1]; !base.valid() || base.isInteger() {
			if n, ok := parseInt(v.str, optInt(base, 10)); ok {
				return n
			}
		}
		f, ok := parseFloat(v.str)
		if !ok || math.IsNaN(f) || math.IsInf(f, 0) {
			return def
		}
		return floatToInt(f)
	}
	mustExist(v)
	return def
}

func floatFilter(_ *state, v Value, a []Value) Value {
	switch {
	case v.isNumber():
		return Float(toFloat(v))
	case v.IsString():
		if f, ok := parseFloat(v.str); ok {
			return Float(f)
		}
	}
	mustExist(v)
	return a[0].or(Float(0))
}

// roundFilter rounds half to even on the exact binary value ("common"), or up or down.
func roundFilter(s *state, v Value, a []Value) Value {
	precision := a[0].or(Int(0))
	switch method := a[1].or(String("common")).Text(); method {
	case "common":
		return round(v, precision)
	case "ceil", "floor":
		scale := pow(s, Int(10), precision)
		scaled := mul(s, v, scale)
		switch {
		case scaled.kind == KindFloat && method == "ceil":
			scaled = floatToInt(math.Ceil(scaled.float()))
		case scaled.kind == KindFloat:
			scaled = floatToInt(math.Floor(scaled.float()))
		case !scaled.isInteger():
			raise(typeError, "must be real number, not %s", scaled.typeName())
		}
		return trueDiv(s, scaled, scale)
	}
	return raise(filterArgError, "method must be common, ceil or floor")
}

// round is Python's round(v, n).
func round(v, n Value) Value {
	if !v.isNumber() {
		wrongType(v, "type %s doesn't define __round__ method")
	}
	if n.IsNone() {
		if v.kind == KindFloat {
			return floatToInt(math.RoundToEven(v.float()))
		}
		return asInt(v)
	}
	digits := integer(n)
	if v.isInteger() {
		if digits >= 0 {
			return asInt(v)
		}
		if -digits > maxIntDigits {
			return Int(0)
		}
		unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-digits)), nil)
		return bigValue(roundBig(v.bigInt(), unit))
	}
	f := v.float()
	switch {
	case f == 0 || math.IsNaN(f) || math.IsInf(f, 0) || digits > 323:
		return v
	case digits < -308:
		return Float(math.Copysign(0, f))
	case digits >= 0:
		out, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', digits, 64), 64)
		return Float(out)
	}
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-digits)), nil)
	r := new(big.Rat).SetFloat64(f)
	q := new(big.Rat).Quo(r, new(big.Rat).SetInt(unit))
	whole := roundBig(q.Num(), q.Denom())
	whole.Quo(whole, q.Denom()).Mul(whole, unit)
	out, _ := new(big.Float).SetInt(whole).Float64()
	if math.IsInf(out, 0) {
		raise(overflowError, "rounded value too large to represent")
	}
	if out == 0 {
		out = math.Copysign(0, f)
	}
	return Float(out)
}

// roundBig gives the multiple of unit next to n, the even one of two.
func roundBig(n, unit *big.Int) *big.Int {
	q, r := new(big.Int).DivMod(n, unit, new(big.Int))
	switch c := new(big.Int).Lsh(r, 1).Cmp(unit); {
	case c > 0, c == 0 && q.Bit(0) == 1:
		q.Add(q, big.NewInt(1))
	}
	return q.Mul(q, unit)
}

// asInt gives an int for a bool.
func asInt(v Value) Value {
	if v.kind == KindBool {
		return Int(v.int())
	}
	return v
}
