package template

// The built-in tests of Jinja2 3.1.6 ("x is y"). A test is a built-in that gives a bool.

func ask(name string, is func(v Value) bool) *builtin {
	return def(name, "", func(_ *state, v Value, _ []Value) Value { return Bool(is(v)) })
}

// kindOf is a test for some kinds of values.
func kindOf(name string, ks ...Kind) *builtin {
	var set kinds
	for _, k := range ks {
		set |= 1 << k
	}
	b := ask(name, func(v Value) bool { return set.has(v.kind) })
	b.kinds = set
	return b
}

// kinds is a set of kinds.
type kinds uint16

func (k kinds) has(one Kind) bool { return k>>one&1 != 0 }

// weigh is a test that compares with its argument.
func weigh(name, op string) *builtin {
	fn := comparisons[op]
	return def(name, "/ b", func(s *state, v Value, a []Value) Value { return Bool(fn(s, v, a[0])) })
}

// modulo gives v % n == want.
func modulo(s *state, v, n Value, want int64) Value { return Bool(equal(s, mod(s, v, n), Int(want))) }

func isSequence(v Value) bool {
	return v.kind != KindObject && iterable(v)
}

func isCallable(v Value) bool {
	_, ok := v.ref.(callable)
	return v.kind == KindUndefined || v.kind == KindObject && ok
}

// known makes the tests "filter" and "test": is there one of this name?
func known(name string, table func(*state) map[string]*builtin) *builtin {
	return def(name, "", func(s *state, v Value, _ []Value) Value {
		keyOf(v) // raises for what cannot be a key
		return Bool(v.IsString() && table(s)[v.str] != nil)
	})
}

var tests = table("", "",
	def("odd", "", func(s *state, v Value, _ []Value) Value { return modulo(s, v, Int(2), 1) }),
	def("even", "", func(s *state, v Value, _ []Value) Value { return modulo(s, v, Int(2), 0) }),
	def("divisibleby", "num", func(s *state, v Value, a []Value) Value { return modulo(s, v, a[0], 0) }),
	kindOf("defined", KindNone, KindBool, KindInt, KindBig, KindFloat, KindString, KindMarkup, KindList, KindTuple, KindDict, KindRange, KindObject),
	kindOf("undefined", KindUndefined),
	known("filter", func(s *state) map[string]*builtin { return s.t.filters }),
	known("test", func(s *state) map[string]*builtin { return s.t.tests }),
	kindOf("none", KindNone),
	kindOf("boolean", KindBool),
	ask("false", func(v Value) bool { return v.kind == KindBool && !v.bool() }),
	ask("true", func(v Value) bool { return v.kind == KindBool && v.bool() }),
	kindOf("integer", KindInt, KindBig),
	kindOf("float", KindFloat),
	def("lower", "", func(s *state, v Value, _ []Value) Value { return Bool(caseOf(toStr(s, v), isLowerRune)) }),
	def("upper", "", func(s *state, v Value, _ []Value) Value { return Bool(caseOf(toStr(s, v), isUpperRune)) }),
	kindOf("string", KindString, KindMarkup),
	kindOf("mapping", KindDict),
	kindOf("number", KindBool, KindInt, KindBig, KindFloat),
	ask("sequence", isSequence),
	ask("iterable", iterable),
	ask("callable", isCallable),
	def("sameas", "other", func(_ *state, v Value, a []Value) Value { return Bool(identical(v, a[0])) }),
	kindOf("escaped", KindMarkup),
	def("in", "seq", func(s *state, v Value, a []Value) Value { return Bool(contains(s, a[0], v)) }),
	weigh("==", "=="), weigh("eq", "=="), weigh("equalto", "=="), weigh("!=", "!="), weigh("ne", "!="),
	weigh(">", ">"), weigh("gt", ">"), weigh("greaterthan", ">"), weigh(">=", ">="), weigh("ge", ">="),
	weigh("<", "<"), weigh("lt", "<"), weigh("lessthan", "<"), weigh("<=", "<="), weigh("le", "<="),
)
