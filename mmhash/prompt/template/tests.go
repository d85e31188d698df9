package template

// The built-in tests of Jinja2 3.1.6 ("x is y"). A test is a built-in that gives a bool.

func ask(name string, is func(v Value) bool) *builtin {
	b := def(name, "", func(_ *state, v Value, _ []Value) Value { return Bool(is(v)) })
	b.is = is
	return b
}

// weigh is a test that compares with its argument.
func weigh(name, op string) *builtin {
	fn := comparisons[op]
	return def(name, "/ b", func(s *state, v Value, a []Value) Value { return Bool(fn(s, v, a[0])) })
}

// modulo gives v % n == want.
func modulo(s *state, v, n Value, want int64) Value { return Bool(equal(s, mod(s, v, n), Int(want))) }

func isMapping(v Value) bool { return v.kind == KindDict }

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
	ask("defined", func(v Value) bool { return v.kind != KindUndefined }),
	ask("undefined", Value.IsUndefined),
	known("filter", func(s *state) map[string]*builtin { return s.t.filters }),
	known("test", func(s *state) map[string]*builtin { return s.t.tests }),
	ask("none", Value.IsNone),
	ask("boolean", func(v Value) bool { return v.kind == KindBool }),
	ask("false", func(v Value) bool { return v.kind == KindBool && !v.bool() }),
	ask("true", func(v Value) bool { return v.kind == KindBool && v.bool() }),
	ask("integer", func(v Value) bool { return v.kind == KindInt || v.kind == KindBig }),
	ask("float", func(v Value) bool { return v.kind == KindFloat }),
	def("lower", "", func(s *state, v Value, _ []Value) Value { return Bool(caseOf(toStr(s, v), isLowerRune)) }),
	def("upper", "", func(s *state, v Value, _ []Value) Value { return Bool(caseOf(toStr(s, v), isUpperRune)) }),
	ask("string", Value.IsString),
	ask("mapping", isMapping),
	ask("number", Value.isNumber),
	ask("sequence", isSequence),
	ask("iterable", iterable),
	ask("callable", isCallable),
	def("sameas", "other", func(_ *state, v Value, a []Value) Value { return Bool(identical(v, a[0])) }),
	ask("escaped", func(v Value) bool { return v.kind == KindMarkup }),
	def("in", "seq", func(s *state, v Value, a []Value) Value { return Bool(contains(s, a[0], v)) }),
	weigh("==", "=="), weigh("eq", "=="), weigh("equalto", "=="), weigh("!=", "!="), weigh("ne", "!="),
	weigh(">", ">"), weigh("gt", ">"), weigh("greaterthan", ">"), weigh(">=", ">="), weigh("ge", ">="),
	weigh("<", "<"), weigh("lt", "<"), weigh("lessthan", "<"), weigh("<=", "<="), weigh("le", "<="),
)
