package vision

import "math"

// log is the natural logarithm, correctly rounded (except within about 2^-40 of a rounding boundary).
//
// MiniCPM-V compares differences of logarithms, and for many image sizes two grids are equally good up to the last bit. C
// libraries round correctly nearly always; math.Log is one bit off in 7 % of the cases, and then the other grid would win.
func log(x float64) float64 {
	if !(x > 0) || math.IsInf(x, 1) {
		return math.Log(x)
	}
	m, exp := math.Frexp(x) // m in [0.5, 1)
	if m < math.Sqrt2/2 {
		m, exp = 2*m, exp-1
	}
	// ln m = 2 (s + s³/3 + s⁵/5 + …), s = (m-1)/(m+1), |s| < 0.172.
	s := quotient(m-1, double{m, 0}.plus(double{1, 0}))
	q := s.times(s)
	sum := double{}
	for n := 33; n >= 1; n -= 2 {
		sum = sum.times(q).plus(quotient(1, double{float64(n), 0}))
	}
	sum = sum.times(s)
	sum = double{2 * sum.hi, 2 * sum.lo}
	const ln2Hi, ln2Lo = 0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56
	k := double{float64(exp), 0}.times(double{ln2Hi, ln2Lo})
	total := k.plus(sum)
	return total.hi + total.lo
}

// double is an unevaluated sum of two numbers, about 106 bits.
type double struct{ hi, lo float64 }

func quotient(a float64, b double) double {
	q := a / b.hi
	return normal(q, (math.FMA(-q, b.hi, a)-float64(q*b.lo))/b.hi)
}

func (a double) times(b double) double {
	p := a.hi * b.hi
	e := math.FMA(a.hi, b.hi, -p)
	e += math.FMA(a.hi, b.lo, float64(a.lo*b.hi))
	return normal(p, e)
}

func (a double) plus(b double) double {
	s := a.hi + b.hi
	v := s - a.hi
	e := float64(a.hi-(s-v)) + float64(b.hi-v)
	return normal(s, e+float64(a.lo+b.lo))
}

func normal(hi, lo float64) double {
	s := hi + lo
	return double{s, lo - (s - hi)}
}
