package template

// The built-in tests of Jinja2 3.1.6 ("x is y"). A test is a built-in that returns a bool.

// absentTests are Jinja2's tests that this package does not support.
const absentTests = "divisibleby escaped filter lower test upper"

func ask(name string, is func(v Value) bool) *builtin {
	return def(name, "", func(_ *state, v Value, _ []Value) Value { return Bool(is(v)) })
}

// kindOf returns a test for some kinds of values.
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

// weigh returns a test that compares with its argument.
func weigh(name, op string) *builtin {
	fn := operators[op]
	return def(name, "/ b", func(s *state, v Value, a []Value) Value { return fn(s, v, a[0]) })
}

// modulo returns a test for v % 2 == want.
func modulo(name string, want int64) *builtin {
	return def(name, "", func(s *state, v Value, _ []Value) Value { return Bool(equal(s, mod(s, v, Int(2)), Int(want))) })
}

func isCallable(v Value) bool {
	_, ok := v.ref.(callable)
	return v.kind == KindUndefined || v.kind == KindObject && ok
}

var tests = table("",
	modulo("odd", 1), modulo("even", 0),
	kindOf("defined", KindNone, KindBool, KindInt, KindBig, KindFloat, KindString, KindMarkup, KindList, KindTuple, KindDict,
		KindRange, KindView, KindObject),
	kindOf("undefined", KindUndefined),
	kindOf("none", KindNone),
	kindOf("boolean", KindBool),
	ask("false", func(v Value) bool { return v.kind == KindBool && !v.bool() }),
	ask("true", func(v Value) bool { return v.kind == KindBool && v.bool() }),
	kindOf("integer", KindInt, KindBig),
	kindOf("float", KindFloat),
	kindOf("string", KindString, KindMarkup),
	kindOf("mapping", KindDict),
	kindOf("number", KindBool, KindInt, KindBig, KindFloat),
	ask("sequence", func(v Value) bool { return v.kind != KindObject && v.kind != KindView && iterable(v) }),
	ask("iterable", iterable),
	ask("callable", isCallable),
	def("sameas", "other", func(_ *state, v Value, a []Value) Value { return Bool(identical(v, a[0])) }),
	def("in", "seq", func(s *state, v Value, a []Value) Value { return Bool(contains(s, a[0], v)) }),
	weigh("==", "=="), weigh("eq", "=="), weigh("equalto", "=="), weigh("!=", "!="), weigh("ne", "!="),
	weigh(">", ">"), weigh("gt", ">"), weigh("greaterthan", ">"), weigh(">=", ">="), weigh("ge", ">="),
	weigh("<", "<"), weigh("lt", "<"), weigh("lessthan", "<"), weigh("<=", "<="), weigh("le", "<="),
)
