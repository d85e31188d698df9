package template

import (
	"math"
	"math/big"
	"math/bits"
	"strconv"
	"unicode/utf8"
)

// The methods of dict, list, tuple, range, int, float and bytes. Those that would change their object are only named:
// the immutable sandbox hides them.

func hidden(names ...string) []*method {
	var ms []*method
	for _, n := range names {
		ms = append(ms, &method{name: n, mutates: true})
	}
	return ms
}

func attribOf(name string, f func(Value) Value) *method { return &method{name: name, attr: f} }

func viewMethod(name string, kind byte) *method {
	return strMethod(name, takes(), func(_ *state, v Value, _ []Value) Value {
		return object(&dictView{v.ref.(*Dict), kind})
	})
}

var dictMethods = table(append(hidden("clear", "pop", "popitem", "setdefault", "update"),
	viewMethod("keys", 'k'),
	viewMethod("values", 'v'),
	viewMethod("items", 'i'),
	strMethod("get", takes("key", "default?", "/"), func(_ *state, v Value, a []Value) Value {
		if found, ok := v.ref.(*Dict).lookup(a[0]); ok {
			return found
		}
		if a[1].valid() {
			return a[1]
		}
		return None
	}),
	strMethod("copy", takes(), func(_ *state, v Value, _ []Value) Value { return v }),
	strMethod("fromkeys", takes("iterable", "value?", "/"), func(s *state, _ Value, a []Value) Value { return fromKeys(s, a) }),
)...)

var listMethods = table(append(hidden("append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"),
	countMethod, indexMethod,
	strMethod("copy", takes(), func(s *state, v Value, _ []Value) Value { return s.list(append([]Value(nil), v.Items()...)) }),
)...)

var tupleMethods = table(countMethod, indexMethod)

var rangeMethods = table(countMethod, indexMethod,
	attribOf("start", func(v Value) Value { return Int(v.ref.(*pyRange).start) }),
	attribOf("stop", func(v Value) Value { return Int(v.ref.(*pyRange).stop) }),
	attribOf("step", func(v Value) Value { return Int(v.ref.(*pyRange).step) }),
)

var countMethod = strMethod("count", takes("value", "/"), func(s *state, v Value, a []Value) Value {
	n := 0
	for _, item := range collect(s, v) {
		if identical(item, a[0]) || equal(s, item, a[0]) {
			n++
		}
	}
	return Int(int64(n))
})

var indexMethod = strMethod("index", takes("value", "start?", "stop?", "/"), func(s *state, v Value, a []Value) Value {
	items := collect(s, v)
	from, to := optInt(a[1], 0), optInt(a[2], math.MaxInt32)
	if from < 0 {
		from = max(0, from+len(items))
	}
	if to < 0 {
		to += len(items)
	}
	for i := from; i < min(to, len(items)); i++ {
		if identical(items[i], a[0]) || equal(s, items[i], a[0]) {
			return Int(int64(i))
		}
	}
	raise(valueError, "%s is not in list", toStr(s, a[0]))
	return Value{}
})

func asInt(v Value) Value {
	if v.kind == KindBool {
		return Int(v.int())
	}
	return v
}

var intMethods = table(
	attribOf("real", asInt), attribOf("numerator", asInt),
	attribOf("imag", func(Value) Value { return Int(0) }),
	attribOf("denominator", func(Value) Value { return Int(1) }),
	strMethod("conjugate", takes(), func(_ *state, v Value, _ []Value) Value { return asInt(v) }),
	strMethod("bit_length", takes(), func(_ *state, v Value, _ []Value) Value { return Int(int64(v.bigInt().BitLen())) }),
	strMethod("bit_count", takes(), func(_ *state, v Value, _ []Value) Value {
		n := 0
		for _, w := range v.bigInt().Bits() {
			n += bits.OnesCount(uint(w))
		}
		return Int(int64(n))
	}),
	strMethod("as_integer_ratio", takes(), func(_ *state, v Value, _ []Value) Value { return newTuple(asInt(v), Int(1)) }),
	hiddenUnknown("to_bytes"), hiddenUnknown("from_bytes"),
)

var floatMethods = table(
	attribOf("real", func(v Value) Value { return v }),
	attribOf("imag", func(Value) Value { return Float(0) }),
	strMethod("conjugate", takes(), func(_ *state, v Value, _ []Value) Value { return v }),
	strMethod("is_integer", takes(), func(_ *state, v Value, _ []Value) Value {
		f := v.float()
		return Bool(f == math.Trunc(f) && !math.IsInf(f, 0))
	}),
	strMethod("as_integer_ratio", takes(), func(_ *state, v Value, _ []Value) Value {
		f := v.float()
		if math.IsInf(f, 0) || math.IsNaN(f) {
			raise(overflowError, "cannot convert %s to integer ratio", appendFloat(nil, f))
		}
		r := new(big.Rat).SetFloat64(f)
		return newTuple(bigValue(r.Num()), bigValue(r.Denom()))
	}),
	strMethod("hex", takes(), func(s *state, v Value, _ []Value) Value { return String(floatHex(v.float())) }),
	hiddenUnknown("fromhex"),
)

// hiddenUnknown is a method that exists in Python but has no place in a prompt: calling it is an error.
func hiddenUnknown(name string) *method {
	return &method{name: name, variadic: func(*state, Value, *callArgs) Value {
		raise(typeError, "%s() is not supported in chat templates", name)
		return Value{}
	}}
}

// floatHex is float.hex.
func floatHex(f float64) string {
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0):
		return string(appendFloat(nil, f))
	case f == 0:
		if math.Signbit(f) {
			return "-0x0.0p+0"
		}
		return "0x0.0p+0"
	}
	b := math.Float64bits(f)
	sign := ""
	if b>>63 != 0 {
		sign = "-"
	}
	exp, lead := int(b>>52&0x7ff)-1023, "1"
	if exp == -1023 {
		exp, lead = -1022, "0"
	}
	frac := strconv.FormatUint(b&(1<<52-1)|1<<52, 16)[1:]
	plus := ""
	if exp >= 0 {
		plus = "+"
	}
	return sign + "0x" + lead + "." + frac + "p" + plus + strconv.Itoa(exp)
}

var bytesMethods = table(
	strMethod("decode", takes("encoding?", "errors?"), func(_ *state, v Value, _ []Value) Value {
		if !utf8.ValidString(v.str) {
			raise("UnicodeDecodeError", "'utf-8' codec can't decode the bytes")
		}
		return String(v.str)
	}),
	strMethod("hex", takes(), func(s *state, v Value, _ []Value) Value {
		const digits = "0123456789abcdef"
		out := make([]byte, 0, 2*len(v.str))
		for i := 0; i < len(v.str); i++ {
			out = append(out, digits[v.str[i]>>4], digits[v.str[i]&15])
		}
		return s.str(string(out))
	}),
)
