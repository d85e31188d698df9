package template

// The built-in tests of Jinja2 3.1.6 ("x is y").

type test struct {
	signatureOf
	fn func(s *state, v Value, a []Value) bool
}

func ask(fn func(v Value) bool) *test {
	return &test{signatureOf: takes(), fn: func(_ *state, v Value, _ []Value) bool { return fn(v) }}
}

// compareTest is a test that compares with its argument.
func compareTest(op string) *test {
	fn := comparisons[op]
	return &test{signatureOf: takes("b", "/"), fn: func(s *state, v Value, a []Value) bool { return fn(s, v, a[0]) }}
}

// modulo gives v % n == want.
func modulo(s *state, v, n Value, want int64) bool { return equal(s, mod(s, v, n), Int(want)) }

var tests = map[string]*test{
	"odd":  {fn: func(s *state, v Value, _ []Value) bool { return modulo(s, v, Int(2), 1) }},
	"even": {fn: func(s *state, v Value, _ []Value) bool { return modulo(s, v, Int(2), 0) }},
	"divisibleby": {signatureOf: takes("num"), fn: func(s *state, v Value, a []Value) bool {
		return modulo(s, v, a[0], 0)
	}},
	"defined":   ask(func(v Value) bool { return v.kind != KindUndefined }),
	"undefined": ask(func(v Value) bool { return v.kind == KindUndefined }),
	"filter": {fn: func(s *state, v Value, _ []Value) bool {
		keyOf(v)
		return v.IsString() && s.t.filters[v.str] != nil
	}},
	"test": {fn: func(s *state, v Value, _ []Value) bool {
		keyOf(v)
		return v.IsString() && s.t.tests[v.str] != nil
	}},
	"none":    ask(Value.IsNone),
	"boolean": ask(func(v Value) bool { return v.kind == KindBool }),
	"false":   ask(func(v Value) bool { return v.kind == KindBool && !v.bool() }),
	"true":    ask(func(v Value) bool { return v.kind == KindBool && v.bool() }),
	"integer": ask(func(v Value) bool { return v.kind == KindInt || v.kind == KindBig }),
	"float":   ask(func(v Value) bool { return v.kind == KindFloat }),
	"lower":   {fn: func(s *state, v Value, _ []Value) bool { return caseOf(toStr(s, v), isLowerRune) }},
	"upper":   {fn: func(s *state, v Value, _ []Value) bool { return caseOf(toStr(s, v), isUpperRune) }},
	"string":  ask(Value.IsString),
	"mapping": ask(func(v Value) bool { return v.kind == KindDict }),
	"number":  ask(Value.isNumber),
	"sequence": ask(func(v Value) bool {
		switch v.kind {
		case KindUndefined, KindString, KindMarkup, KindBytes, KindList, KindTuple, KindDict, KindRange:
			return true
		}
		return false
	}),
	"iterable": ask(iterable),
	"callable": ask(func(v Value) bool {
		_, ok := v.ref.(callable)
		return v.kind == KindUndefined || v.kind == KindObject && ok
	}),
	"sameas":  {signatureOf: takes("other"), fn: func(_ *state, v Value, a []Value) bool { return identical(v, a[0]) }},
	"escaped": ask(func(v Value) bool { return v.kind == KindMarkup }),
	"in": {signatureOf: takes("seq"), fn: func(s *state, v Value, a []Value) bool {
		return contains(s, a[0], v)
	}},
	"==": compareTest("=="), "eq": compareTest("=="), "equalto": compareTest("=="),
	"!=": compareTest("!="), "ne": compareTest("!="),
	">": compareTest(">"), "gt": compareTest(">"), "greaterthan": compareTest(">"),
	">=": compareTest(">="), "ge": compareTest(">="),
	"<": compareTest("<"), "lt": compareTest("<"), "lessthan": compareTest("<"),
	"<=": compareTest("<="), "le": compareTest("<="),
}
