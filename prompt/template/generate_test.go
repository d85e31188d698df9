package template

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// templateMaker makes random templates: expressions over everything in the library, and statements with random white space control.
// Most of them run, some fail.
type templateMaker struct{ *rand.Rand }

func newMaker(seed uint64) templateMaker { return templateMaker{rand.New(rand.NewPCG(seed, 0))} }

func (g templateMaker) pick(list ...string) string { return list[g.IntN(len(list))] }

func (g templateMaker) oneIn(n int) bool { return g.IntN(n) == 0 }

// makerVars is the JSON of the variables that generated templates know.
const makerVars = `{"s":"Hello, World","t":"  padded\ttext \n","u":"Straße ÀÉ日本 ΑΣ ǆ","h":"<b>a & 'b' \"c\"</b>","e":"",
"n":7,"m":-3,"big":123456789012345678901234567890,"f":2.675,"g":-1e-7,"z":0,"yes":true,"no":false,"nil":null,
"list":[3,1,2,10,-5],"words":["apple","Banana","cherry","apple","Date"],"mixed":[1,"a",null,2.5,true,[1,2],{"k":"v"}],
"d":{"b":1,"a":2,"C":3,"items":"shadow"},"nested":{"x":{"y":[{"z":"deep"},{"z":5}]},"name":"nest"},
"msgs":[{"role":"system","content":"sys"},{"role":"user","content":[{"type":"text","text":"hi <there>"},{"type":"image"}]},
{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{"x":1.0,"y":[true,null]}}}]},{"role":"user","content":"bye"}],
"users":[{"name":"Bob","age":30},{"name":"alice","age":25},{"name":"Carl","age":30},{"name":"dora"}]}`

func (g templateMaker) name() string {
	return g.pick("s", "t", "u", "h", "e", "n", "m", "big", "f", "g", "z", "yes", "no", "nil", "list", "words", "mixed",
		"d", "nested", "msgs", "users", "nope")
}

func (g templateMaker) text() string {
	return g.pick(`''`, `'abc'`, `"it's"`, `'Hello World'`, `'a,b,,c'`, `' x '`, `'\n'`, `'line1\nline2\r\nline3\x0bq'`, `'12'`, `'-3.7e2'`,
		`' 42 '`, `'0x1f'`, `'ß'`, `'İıſ'`, `'日本語'`, `'🙂é'`, `'<a href="x">T</a> &amp; &lt;'`, `'%s and %d'`, `'{} {0} {a}'`, `'{:>8}|{!r}'`,
		`'one two-three fOUR'`, `'aXbXc'`, `'aaa'`, `'a'`, `'\t\\'`, `'"'`, `'ŉǰΐ'`, `'ὈΔΥΣΣΕΎΣ ΣΑΣ'`, `'½²Ⅷ五'`, `'id_1'`, `'\u200b\x7f\xa0'`,
		`'http://example.com/a?b=1&c=(x)'`, `'me@example.org'`, `'user_name'`, `'content'`)
}

func (g templateMaker) number() string {
	return g.pick("0", "1", "2", "3", "5", "7", "10", "-1", "-2", "-3", "100", "255", "1000000", "0.5", "1.5", "2.5",
		"-2.5", "2.675", "1e3", "1e16", "1e-5",
		"1e22", "123456.789", "0b101", "0o17", "0xff", "1_000", "9007199254740993", "99999999999999999999", "3.0")
}

func (g templateMaker) small() string {
	return g.pick("0", "1", "2", "3", "4", "5", "8", "-1", "-2", "-4")
}

func (g templateMaker) atom(depth int) string {
	switch g.IntN(12) {
	case 0, 1, 2:
		return g.text()
	case 3, 4:
		return g.number()
	case 5, 6, 7:
		return g.name()
	case 8:
		return g.pick("true", "false", "none", "True", "None")
	case 9:
		return "[" + g.exprs(depth, g.IntN(4)) + "]"
	case 10:
		return "(" + g.exprs(depth, 1+g.IntN(3)) + ",)"
	}
	var parts []string
	for range g.IntN(4) {
		parts = append(parts, g.pick(g.text(), g.text(), "1", "1.0", "true", "none", "(1,2)")+": "+g.expr(depth-1))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func (g templateMaker) exprs(depth, n int) string {
	var parts []string
	for range n {
		parts = append(parts, g.expr(depth-1))
	}
	return strings.Join(parts, ", ")
}

func (g templateMaker) expr(depth int) string {
	if depth <= 0 {
		return g.atom(0)
	}
	sub := func() string { return g.expr(depth - 1) }
	switch g.IntN(16) {
	case 0:
		return "(" + sub() + " " + g.pick("+", "-", "*", "/", "//", "%", "+", "~") + " " + sub() + ")"
	case 1:
		return sub() + " " + g.pick("+", "-", "%", "//", "/", "~", "~", "and", "or") + " " + sub()
	case 2:
		return "(" + sub() + " " + g.pick("==", "!=", "<", "<=", ">", ">=", "in", "not in") + " " + sub() + ")"
	case 3:
		return g.pick("not ", "-", "+") + sub()
	case 4:
		return "(" + sub() + " if " + sub() + g.pick(" else "+sub(), "") + ")"
	case 5, 6, 7:
		return g.postfixed(depth) + "|" + g.filter(depth)
	case 8, 9:
		return g.postfixed(depth) + "." + g.method(depth)
	case 10:
		return g.postfixed(depth) + " is " + g.pick("", "not ") + g.test(depth)
	case 11:
		if g.oneIn(2) { // not of constants: Jinja2 folds (1)[:2] to Undefined, but x[:2] raises
			return g.name() + "[" + g.pick(g.small()+":", ":"+g.small(), g.small()+":"+g.small(), "::"+g.small(), "::-1", sub()+":") + "]"
		}
		return g.postfixed(depth) + "[" + g.pick(g.small(), g.text(), sub()) + "]"
	case 12:
		return g.postfixed(depth) + g.pick(".x", ".y", ".name", ".role", ".content", ".__class__", "._x", ".0", ".function.name")
	case 13:
		return g.pick("range("+g.small()+")", "range("+g.small()+", "+g.small()+")", "range(10, 0, -3)", "dict(a="+sub()+")",
			"namespace(a="+sub()+").a",
			"dict("+sub()+")", "cycler("+sub()+", 2).next()", "joiner('|')()", "dict.fromkeys("+sub()+", 1)")
	case 14: // no roots of negative numbers: complex numbers are not supported
		return fmt.Sprintf("(%s ** %s)", g.number(), g.pick("0", "1", "2", "3", "-1", "-2", "10"))
	}
	return g.atom(depth)
}

// postfixed returns an expression to which a postfix operator applies as a whole.
func (g templateMaker) postfixed(depth int) string {
	if g.oneIn(2) {
		return g.name()
	}
	return "(" + g.expr(depth-1) + ")"
}

func (g templateMaker) filter(depth int) string {
	e := func() string { return g.expr(depth - 1) }
	attr := func() string {
		return g.pick("'name'", "'age'", "'role'", "'content'", "'x.y'", "0", "'0'", "'function.name'", "'nope'")
	}
	test := func() string {
		return g.pick("'odd'", "'string'", "'defined'", "'none'", "'=='", "'equalto', 30", "'gt', 2", "'in', [1,2,'a']",
			"'mapping'", "'nosuch'", "'divisibleby', 3")
	}
	return g.pick(
		"abs", "attr("+g.text()+")", "batch("+g.small()+")|list", "batch(2, 'x')|list", "capitalize", "center",
		"center("+g.small()+"0)", "count", "length",
		"d", "default("+e()+")", "default("+e()+", true)", "default(boolean=true, default_value=1)", "dictsort",
		"dictsort(true)", "dictsort(by='value')", "dictsort(reverse=true)",
		"e", "escape", "first", "float", "float("+e()+")", "forceescape", "format("+e()+")", "format("+e()+", "+e()+")", "format(a="+e()+")",
		"groupby('age')", "groupby("+attr()+", default=0)", "groupby('name', case_sensitive=true)|list", "indent", "indent(2)",
		"indent("+g.small()+", true)", "indent('> ', blank=true)", "indent(first=true)",
		"int", "int("+e()+")", "int(base=16)", "int(0, 0)", "int(default=5)", "items|list", "join", "join(', ')",
		"join('-', attribute="+attr()+")", "join("+e()+")", "last", "list", "lower",
		"map('upper')|list", "map(attribute="+attr()+")|list", "map(attribute="+attr()+", default='dd')|join(',')",
		"map('int')|list", "map('default', 'q')|list", "map('nosuch')|list", "map('tojson')|list", "map('replace', 'a', 'b')|list",
		"max", "min", "max(attribute='age')", "min(case_sensitive=true)", "reject("+test()+")|list", "reject|list",
		"rejectattr("+attr()+")|list", "rejectattr("+attr()+", "+test()+")|list",
		"replace("+g.text()+", "+e()+")", "replace('a', 'b', 1)", "replace('l', "+e()+", count="+g.small()+")", "reverse",
		"reverse|list", "round", "round("+g.small()+")", "round(1, 'floor')", "round("+g.small()+", method='ceil')",
		"safe", "safe + "+e(), "safe ~ "+e(), "select("+test()+")|list", "select|list", "selectattr("+attr()+")|list",
		"selectattr("+attr()+", "+test()+")|list",
		"slice(3)|list", "slice("+g.small()+", 'f')|list", "sort", "sort(true)", "sort(attribute="+attr()+")",
		"sort(case_sensitive=true)", "sort(attribute='age,name')", "string", "striptags", "sum", "sum(attribute='age')", "sum(start="+e()+")",
		"title", "tojson", "tojson(indent=2)", "tojson(indent="+e()+")", "tojson(ensure_ascii=true)", "tojson(sort_keys=true)",
		"tojson(separators=(',', ':'))", "trim", "trim("+g.text()+")", "truncate(5)", "truncate(7, true, '..', 0)",
		"truncate(length=4, end='', leeway=1)",
		"unique|list", "unique(true)|list", "unique(attribute="+attr()+")|list", "upper", "urlencode", "wordcount",
		"xmlattr", "xmlattr(false)", "nosuchfilter", "first|upper", "list|length", "string|length", "list|last", "string|list")
}

func (g templateMaker) method(depth int) string {
	e := func() string { return g.expr(depth - 1) }
	t := g.text
	n := g.small
	return g.pick(
		"capitalize()", "center(20)", "center(9, '*')", "count('a')", "count("+t()+", "+n()+")", "endswith("+t()+")",
		"endswith(('c', 'd'))", "find("+t()+")", "find('l', "+n()+", "+n()+")", "format("+e()+", "+e()+")", "format("+e()+
			", a="+e()+")", "index("+t()+")", "index("+e()+")", "isalnum()", "isalpha()", "isascii()", "isdecimal()", "isdigit()", "islower()",
		"isnumeric()", "isprintable()", "isspace()", "istitle()", "isupper()", "join(words)", "join("+e()+")", "ljust(12, '.')",
		"lower()", "lstrip()", "lstrip("+t()+")", "partition("+t()+")", "removeprefix("+t()+")", "removesuffix('c')",
		"replace("+t()+", "+t()+")", "replace('a', "+t()+", "+n()+")", "rfind("+t()+")", "rindex('l')", "rjust(12)",
		"rpartition("+t()+")", "rsplit()", "rsplit("+t()+", "+n()+")", "rsplit(none, 1)", "rstrip()", "rstrip('dlc')",
		"split()", "split("+t()+")", "split(',', "+n()+")", "split(none, "+n()+")",
		"split(sep=' ', maxsplit=1)", "splitlines()", "splitlines(true)", "startswith("+t()+")", "startswith('H', "+n()+")",
		"strip()", "strip("+t()+")", "title()", "upper()", "zfill(10)",
		"items()|list", "keys()|list", "values()|list", "items()", "keys()", "get('a')", "get("+t()+", "+e()+")",
		"get('zz', 0)", "copy()", "append(1)", "update({})", "pop()", "clear()", "sort()", "count("+e()+")", "nosuch()", "strip(")
}

func (g templateMaker) test(depth int) string {
	return g.pick("defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string",
		"mapping", "iterable", "sequence", "callable", "odd", "even",
		"divisibleby 3", "divisibleby(2)", "lower", "upper", "escaped", "sameas none", "sameas true", "in [1, 2, 'a']",
		"in(words)", "eq 7", "equalto 'abc'", "ne 1", "lt 5", "gt "+g.number(), "ge 2", "le 3",
		"greaterthan 1", "lessthan 2", "filter", "test", "nosuch")
}

// template makes a whole template of n statements.
func (g templateMaker) template(n int) string {
	var b strings.Builder
	for range n {
		b.WriteString(g.space())
		b.WriteString(g.statement(2, false))
	}
	b.WriteString(g.space())
	return b.String()
}

func (g templateMaker) space() string {
	return g.pick("", "", " ", "\n", "  \n", "\n  ", " x ", "text\n", "\n\n", "a\n \t b", "\r\n", "é")
}

func (g templateMaker) tag(body string) string {
	return g.pick("{%", "{%", "{%-", "{%+") + g.pick(" ", "", "\n") + body + g.pick(" ", "") + g.pick("%}", "%}", "-%}", "+%}")
}

func (g templateMaker) print(e string) string {
	return g.pick("{{", "{{", "{{-") + " " + e + " " + g.pick("}}", "}}", "-}}")
}

func (g templateMaker) body(depth int, loop bool) string {
	var b strings.Builder
	for range 1 + g.IntN(3) {
		b.WriteString(g.space() + g.statement(depth-1, loop))
	}
	return b.String() + g.space()
}

func (g templateMaker) statement(depth int, loop bool) string {
	e := func() string { return g.expr(1) }
	v := g.pick("a", "b", "c", "s", "n")
	if depth <= 0 {
		if loop && g.oneIn(3) {
			return g.print("loop." + g.pick("index", "index0", "first", "last", "length", "revindex", "revindex0", "previtem",
				"nextitem", "depth", "cycle('x','y')", "changed(a)"))
		}
		return g.print(g.pick(v, v, e()))
	}
	switch g.IntN(19) {
	case 0:
		return g.tag("set "+v+" = "+e()) + g.body(depth, loop)
	case 1:
		return g.tag("set a, b = "+g.pick("1, 2", "[3, 4]", "'xy'", e())) + g.print("a ~ b")
	case 2, 3:
		s := g.tag("if "+e()) + g.body(depth, loop)
		if g.oneIn(3) {
			s += g.tag("elif "+e()) + g.body(depth, loop)
		}
		if g.oneIn(2) {
			s += g.tag("else") + g.body(depth, loop)
		}
		return s + g.tag("endif")
	case 4, 5, 6, 7:
		head := "for " + g.pick("a", "b", "c", "a, b") + " in " + g.pick("list", "words", "mixed", "d", "d.items()", "msgs",
			"range(3)", "'abc'", "nope", "[]", "[[1,2],[3,4]]", "words|select('string')", e())
		if g.oneIn(3) {
			head += " if " + g.pick("a", "not a", "a != 1", "loop", e())
		}
		s := g.tag(head) + g.body(depth, true)
		if g.oneIn(4) {
			s += g.tag("if "+g.pick("a == 1", "loop.first", "loop.index > 1", "b")) + g.tag(g.pick("break", "continue")) +
				g.tag("endif") + g.body(1, true)
		}
		if g.oneIn(4) {
			s += g.tag("else") + g.body(depth, loop)
		}
		return s + g.tag("endfor")
	case 8:
		return g.tag("macro m(a, b="+g.pick("1", "a", "s", "nope")+")") + g.body(depth, false) + g.pick("", g.print("kwargs"),
			g.print("varargs"), g.print("caller(1) if caller else 'none'")) + g.tag("endmacro") +
			g.print(g.pick("m(1)", "m(b=2)", "m(1, 2, 3)", "m()", "m(1, x=2)", "m(*[1, 2])", "m(1, **{'b': s})",
				"m(*list, **nope)", "m('<', b=m(2))"))
	case 9:
		return g.tag("macro w(x)") + "<" + g.print("caller("+g.pick("", "x", "1, 2")+")") + ">" + g.tag("endmacro") +
			g.tag("call"+g.pick("", "(p)", "(p, q=3)")+" w(5)") + g.print("p ~ q") + g.body(depth, false) + g.tag("endcall")
	case 10:
		return g.tag("filter "+g.pick("upper", "trim", "replace('a', 'b')|title", "indent(2, true)", "length", "default('x')")) +
			g.body(depth, loop) + g.tag("endfilter")
	case 11:
		return g.tag("set "+v+g.pick("", " | upper", " | trim | length")) + g.body(depth, loop) + g.tag("endset") + g.print(v)
	case 12:
		return g.tag("with "+g.pick("", "a = 1", "a = 2, b = a", "s = s ~ '!'")) + g.body(depth, loop) + g.tag("endwith")
	case 13:
		return g.tag("set ns = namespace(x=0, y=[])") + g.tag("for a in "+g.pick("list", "words")) +
			g.tag("set ns.x = ns.x + "+g.pick("1", "a|length", "loop.index")) + g.body(1, true) + g.tag("endfor") + g.print("ns.x")
	case 14:
		return g.tag("raw") + g.space() + g.pick("{{ x }}", "{% if %}", "{# c #}") + g.space() + g.tag("endraw")
	case 15:
		return g.pick("{#", "{#-", "{#+") + g.pick(" c ", "{{ x }}", "\n") + g.pick("#}", "-#}", "+#}")
	case 16:
		return g.tag("generation") + g.body(depth, false) + g.tag("endgeneration")
	case 17:
		return g.tag("for a in [[1, [2, [3]]], [4]] recursive") + g.pick("(", "") + g.print("a if a is number else loop(a)") +
			g.print("loop."+g.pick("depth", "depth0", "index")) + g.tag("endfor")
	}
	return g.tag("for a in msgs") + g.tag("if a.content is string") + g.print("a.content") + g.tag("else") +
		g.body(1, true) + g.tag("endif") + g.tag("endfor")
}

// detail makes one call of a library function with random parameters of the right kind: number formats, case
// mappings, splitting, wrapping.
func (g templateMaker) detail() string {
	num := func() string {
		switch g.IntN(4) {
		case 0:
			return fmt.Sprint(g.IntN(2000001) - 1000000)
		case 1:
			return fmt.Sprintf("%.*f", 1+g.IntN(6), (g.Float64()-0.5)*float64(int(1)<<g.IntN(40)))
		case 2:
			return fmt.Sprintf("%d.%de%d", g.IntN(10), g.IntN(1000), g.IntN(60)-30)
		}
		return g.pick("0", "0.0", "-0.0", "1", "(e ~ 'inf')|float", "-(e ~ 'inf')|float", "(e ~ 'nan')|float", "2.5", "0.5",
			"1.5", "-0.5", "123456789", "1e15", "1e16", "9.995", "0.0001", "99999.5", "true",
			"10 ** 30", "-(2 ** 63)", "2 ** 63", "0.1 + 0.2", "1 / 3", "5e-324", "1.7976931348623157e308")
	}
	quote := func(s string) string { return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(s) + "'" }
	some := func(alphabet string, n int) string {
		rs := []rune(alphabet)
		var b strings.Builder
		for range g.IntN(n) {
			b.WriteRune(rs[g.IntN(len(rs))])
		}
		return b.String()
	}
	letters := func() string { return quote(some("aAbBßİıΣσςǆǅŉéÉ日 '-.1²Ⅷ_ﬁἀᾳ\u0301", 9)) }
	switch g.IntN(14) {
	case 0:
		flags := some("-+ 0", 4)
		width := g.pick("", "", "5", "12")
		prec := g.pick("", "", ".0", ".2", ".10", ".")
		arg := g.pick(num(), num(), num(), g.text(), "none", "[1]", "nope")
		return quote("<%"+flags+width+prec+g.pick("d", "i", "u", "o", "x", "X", "e", "E", "f", "F", "g", "G", "r", "s", "s",
			"%", "q")+">") + " % (" + arg + ",)"
	case 1:
		return quote("%("+g.pick("a", "b", "")+")"+g.pick("s", "d", "05.1f", "r")+g.pick("", " %(a)s", "%%")) + " % {'a': " +
			num() + ", 'b': " + g.text() + "}"
	case 2, 3:
		spec := g.pick("", "", g.pick("*", "0", " ", "é")+g.pick("<", ">", "^", "=")) + g.pick("", "", "+", "-", " ") + g.pick("", "", "0") +
			g.pick("", "8", "20", "3") + g.pick("", "", ",", "_") + g.pick("", "", ".0", ".1", ".3", ".12") +
			g.pick("", "d", "b", "o", "x", "X", "e", "E", "f", "F", "g", "G", "%", "s", "q")
		return quote("{:"+spec+"}|") + ".format(" + g.pick(num(), num(), num(), g.text(), "none", "[1]", "u") + ")"
	case 4:
		field := g.pick("", "0", "1", "a", "b.c", "b[c]", "0.x", "0[0]", "l[1]", "l[-1]", "2", "a!r", "0!s:>5", "a!s:>9",
			"l.append", "a.__class__", "{", "}", "a!x", "a:!", "l[0")
		return quote(some("x{}", 3)+"{"+field+"}"+g.pick("", "{}", "{1}", "{{}}", "{a}")) + ".format(" +
			g.pick(num(), g.text(), "u") + ", 6, a=" + g.pick("7", "'é'", "none") + ", b={'c': 9}, l=[1, 'two'])"
	case 5:
		return "(" + num() + ")|round" + g.pick("", "(1)", "(2)", "(3)", "(-1)", "(-2)", "(5, 'ceil')", "(1, 'floor')",
			"(0, 'common')", "(-1, 'floor')", "|int", "(none)")
	case 6:
		lit := quote(some(" \t+-_0123456789.eExXoObBaAfinty٣", 7))
		return lit + g.pick("|int", "|int(-9)", "|int(-9, 16)", "|int(-9, 0)", "|int(-9, 2)", "|int(base=8)", "|float", "|float('no')")
	case 7:
		return "(" + num() + ") " + g.pick("+", "-", "*", "/", "//", "%", "==", "<", ">=") + " (" + num() + ")"
	case 8:
		return letters() + "." + g.pick("upper", "lower", "title", "capitalize", "isupper", "islower", "istitle", "isalpha",
			"isalnum", "isdigit", "isdecimal", "isnumeric", "isspace", "isprintable") + "()"
	case 9:
		return letters() + "|" + g.pick("title", "upper", "lower", "capitalize", "wordcount", "list", "tojson", "urlencode",
			"tojson(ensure_ascii=true)", "length", "reverse", "first", "unique|list", "forceescape")
	case 10:
		text := quote(some("ab,  \n\t\r\x0b\x1c\u2028\u00a0", 12))
		return text + "." + g.pick("split()", "rsplit()", "split(none, 2)", "rsplit(none, 2)", "split(',')", "rsplit(',', 2)",
			"split('a', 2)", "splitlines()", "splitlines(true)", "strip()", "lstrip()", "rstrip(' \\n')", "partition(',')",
			"rpartition(' ')", "count(' ')", "find('b', 2)", "rfind('a', 1, 8)", "index(',', -4)", "startswith('a', 1, 4)",
			"endswith('', 20)", "replace('', '-')", "replace('a', '', 2)", "title()", "center(20, '*')", "zfill(15)")
	case 11:
		text := quote(some("ab-- cde  fghij-kl\n.!", 40))
		return text + "|" + g.pick("indent(3)", "indent(2, true, true)", "truncate(9)", "truncate(8, true)",
			"truncate(10, false, '-', 0)", "title", "wordcount", "trim('ab-')", "striptags", "replace('-', '+', 2)")
	case 12:
		items := func() string {
			var parts []string
			for range g.IntN(30) {
				parts = append(parts, g.pick(g.text(), num(), "none", "{'key': "+g.text()+", 'other': [1, 2, 3]}", "('a', 'b')"))
			}
			return strings.Join(parts, ", ")
		}
		return g.pick("{'k': ["+items()+"], 'a': 1, 'z': ("+items()+")}|tojson(2)", "["+items()+"]|tojson(indent=1)", "["+items()+"]|string")
	}
	return "strftime_now('" + g.pick("%", "%", "%-", "%_", "%0", "x %", "%Y-%") +
		string("aAbBcCdDeFgGhHIjklmMnpPrRStTuUVwWxXyYzZ%Qf"[g.IntN(42)]) + "')"
}

// source returns the i-th template of a run: alternately expressions, library details and whole templates.
func (g templateMaker) source(i int) string {
	switch i % 5 {
	case 0:
		return "{{ " + g.detail() + " }}"
	case 1:
		return g.template(1 + g.IntN(3))
	}
	return "{{ " + g.expr(1+i%3) + " }}"
}
