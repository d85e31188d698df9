package template

import (
	"slices"
	"strings"
)

// Expression grammar of Jinja2 3.1, lowest precedence first:
// inline if, or, and, not, comparisons, + -, ~, * / // %, **, unary signs, postfix, filters and tests.
// Two oddities to know: ** is left associative, and a sign binds closer than ** ("-1 ** 2" is 1).

// tupleRules say how to read "a, b": which expressions may stand in it and what ends it.
type tupleRules struct {
	simple    bool   // only names and literals: assignment targets
	condExpr  bool   // inline if allowed
	parens    bool   // inside explicit parentheses, where () is a tuple
	namespace bool   // name.attr allowed as a target
	endName   string // a name that ends the tuple
}

func (p *parser) tupleExpr(rules tupleRules) node {
	line := pos(p.cur().line)
	var items []node
	isTuple := false
	for {
		if len(items) > 0 {
			p.expectOp(",")
		}
		if p.tupleEnds(rules.endName) {
			break
		}
		if rules.simple {
			items = append(items, p.primary(rules.namespace))
		} else {
			items = append(items, p.expr(rules.condExpr))
		}
		if !p.isOp(",") {
			break
		}
		isTuple = true
		line = pos(p.cur().line)
	}
	if !isTuple {
		if len(items) == 1 {
			return items[0]
		}
		if !rules.parens {
			p.fail("Expected an expression, got '%s'", p.cur().describe())
		}
	}
	return &tupleNode{line, items}
}

func (p *parser) tupleEnds(endName string) bool {
	switch p.cur().kind {
	case tokVarEnd, tokBlockEnd:
		return true
	}
	return p.isOp(")") || endName != "" && p.isName(endName)
}

func (p *parser) expr(withCond bool) node {
	p.enter()
	defer p.leave()
	if !withCond {
		return p.or()
	}
	line := pos(p.cur().line)
	e := p.or()
	for links := 0; p.skipName("if"); p.chain(&links) {
		test := p.or()
		var otherwise node
		if p.skipName("else") {
			otherwise = p.expr(true)
		}
		e = &condNode{line, test, e, otherwise}
		line = pos(p.cur().line)
	}
	return e
}

// chained reads a chain of left associative operators, whose operands are read by operand.
func (p *parser) chained(operand func() node, ops ...string) node {
	line := pos(p.cur().line)
	left := operand()
	for links := 0; (p.cur().kind == tokOperator || p.cur().kind == tokName) && slices.Contains(ops, p.cur().text); p.chain(&links) {
		op := p.next().text
		left = &binaryNode{line, op, left, operand(), arithmetic[op]}
		line = pos(p.cur().line)
	}
	return left
}

func (p *parser) or() node      { return p.chained(p.and, "or") }
func (p *parser) and() node     { return p.chained(p.not, "and") }
func (p *parser) sum() node     { return p.chained(p.concat, "+", "-") }
func (p *parser) product() node { return p.chained(p.power, "*", "/", "//", "%") }
func (p *parser) power() node   { return p.chained(func() node { return p.unary(true) }, "**") }

func (p *parser) not() node {
	if p.isName("not") {
		p.enter()
		defer p.leave()
		line := pos(p.next().line)
		return &unaryNode{line, "not", p.not()}
	}
	return p.compare()
}

func (p *parser) compare() node {
	line := pos(p.cur().line)
	left := p.sum()
	var ops []compareOp
	for {
		t := p.cur()
		op := ""
		switch {
		case t.kind == tokOperator && comparisons[t.text] != nil, p.isName("in"):
			op = p.next().text
		case p.isName("not") && p.look().kind == tokName && p.look().text == "in":
			p.next()
			p.next()
			op = "notin"
		case ops == nil:
			return left
		default:
			return &compareNode{line, left, ops}
		}
		ops = append(ops, compareOp{comparisons[op], p.sum()})
	}
}

func (p *parser) concat() node {
	line := pos(p.cur().line)
	items := []node{p.product()}
	for p.skipOp("~") {
		items = append(items, p.product())
	}
	if len(items) == 1 {
		return items[0]
	}
	return &concatNode{line, items}
}

func (p *parser) unary(withFilter bool) node {
	var n node
	if p.isOp("-") || p.isOp("+") {
		p.enter()
		t := p.next()
		n = &unaryNode{pos(t.line), t.text, p.unary(false)}
		p.leave()
	} else {
		n = p.primary(false)
	}
	n = p.postfix(n)
	if withFilter {
		n = p.filterExpr(n)
	}
	return n
}

func (p *parser) primary(namespace bool) node {
	t := p.cur()
	line := pos(t.line)
	switch t.kind {
	case tokName:
		p.next()
		if v := constants[t.text]; v.valid() {
			return &constNode{line, v}
		}
		if namespace && p.skipOp(".") {
			return &nsRefNode{line, t.text, p.ident().text}
		}
		return &nameNode{line, t.text, ctxLoad}
	case tokString:
		text := p.next().text
		for p.cur().kind == tokString {
			text += p.next().text
		}
		return &constNode{line, String(text)}
	case tokInteger, tokFloat:
		p.next()
		return &constNode{line, t.num}
	case tokOperator:
		p.enter()
		defer p.leave()
		switch t.text {
		case "(":
			p.next()
			n := p.tupleExpr(tupleRules{parens: true, condExpr: true})
			p.expectOp(")")
			return n
		case "[":
			return p.list()
		case "{":
			return p.dict()
		}
	}
	return p.fail("unexpected '%s'", t.describe())
}

func (p *parser) list() node {
	n := &listNode{pos: pos(p.next().line)}
	for !p.isOp("]") {
		if len(n.items) > 0 {
			p.expectOp(",")
		}
		if p.isOp("]") {
			break
		}
		n.items = append(n.items, p.expr(true))
	}
	p.next()
	return n
}

func (p *parser) dict() node {
	n := &dictNode{pos: pos(p.next().line)}
	for !p.isOp("}") {
		if len(n.keys) > 0 {
			p.expectOp(",")
		}
		if p.isOp("}") {
			break
		}
		n.keys = append(n.keys, p.expr(true))
		p.expectOp(":")
		n.values = append(n.values, p.expr(true))
	}
	p.next()
	return n
}

// chain bounds the length of a chain of operators or filters: each link nests the tree one deeper.
func (p *parser) chain(links *int) {
	if *links++; *links > 10*maxNesting {
		p.fail("more than %d operators in one chain", 10*maxNesting)
	}
}

func (p *parser) postfix(n node) node {
	for links := 0; ; p.chain(&links) {
		switch {
		case p.isOp("."), p.isOp("["):
			n = p.subscript(n)
		case p.isOp("("):
			n = p.call(n)
		default:
			return n
		}
	}
}

func (p *parser) filterExpr(n node) node {
	for links := 0; ; p.chain(&links) {
		switch {
		case p.isOp("|"):
			n = p.filterChain(n)
		case p.isName("is"):
			n = p.test(n)
		case p.isOp("("):
			n = p.call(n)
		default:
			return n
		}
	}
}

func (p *parser) subscript(n node) node {
	t := p.next()
	line := pos(t.line)
	if t.text == "." {
		a := p.next()
		switch a.kind {
		case tokName:
			return &attrNode{line, n, a.text, dictMethods[a.text] == nil && !isDunder(a.text)}
		case tokInteger:
			return &itemNode{line, n, &constNode{pos(a.line), a.num}}
		}
		panic(syntaxErrorf(a.line, "expected name or number"))
	}
	var args []node
	for !p.isOp("]") {
		if len(args) > 0 {
			p.expectOp(",")
		}
		args = append(args, p.subscribed())
	}
	p.next()
	if len(args) == 1 {
		return &itemNode{line, n, args[0]}
	}
	return &itemNode{line, n, &tupleNode{line, args}}
}

func (p *parser) subscribed() node {
	s := &sliceNode{pos: pos(p.cur().line)}
	if !p.skipOp(":") {
		n := p.expr(true)
		if !p.skipOp(":") {
			return n
		}
		s.start = n
	}
	ends := func() bool { return p.isOp("]") || p.isOp(",") }
	if !p.isOp(":") && !ends() {
		s.stop = p.expr(true)
	}
	if p.skipOp(":") && !ends() {
		s.step = p.expr(true)
	}
	return s
}

func (p *parser) call(n node) node {
	if attr, ok := n.(*attrNode); ok && slices.Contains(strings.Fields(absentMethods), attr.name) {
		p.unsupported("the method %s", attr.name)
	}
	line := pos(p.cur().line)
	return &callNode{line, n, p.callArgs()}
}

func (p *parser) callArgs() argNodes {
	var a argNodes
	p.expectOp("(")
	ensure := func(ok bool) {
		if !ok {
			p.fail("invalid syntax for function call expression")
		}
	}
	for first := true; !p.isOp(")"); first = false {
		if !first {
			p.expectOp(",")
			if p.isOp(")") {
				break
			}
		}
		switch {
		case p.skipOp("*"):
			ensure(a.dyn == nil && a.dynKw == nil)
			a.dyn = p.expr(true)
		case p.skipOp("**"):
			ensure(a.dynKw == nil)
			a.dynKw = p.expr(true)
		case p.cur().kind == tokName && p.look().kind == tokOperator && p.look().text == "=":
			ensure(a.dynKw == nil)
			name := p.next().text
			p.next()
			for _, k := range a.kw {
				if k.name == name {
					p.fail("keyword argument repeated: %s", name)
				}
			}
			a.kw = append(a.kw, kwNode{name, p.expr(true)})
		default:
			ensure(a.dyn == nil && a.dynKw == nil && a.kw == nil)
			a.pos = append(a.pos, p.expr(true))
		}
	}
	p.next()
	return a
}

// filterChain reads "|name(args)|name…" after n. It gives n where there is none.
func (p *parser) filterChain(n node) node {
	for links := 0; p.skipOp("|"); p.chain(&links) {
		f := &filterNode{pos: pos(p.cur().line), expr: n}
		f.fn = p.library("filter", filters, absentFilters)
		if p.isOp("(") {
			f.args = p.callArgs()
		}
		n = f
	}
	return n
}

// library reads the name of a filter or test. One that Jinja2 does not know either is an error when it is asked.
func (p *parser) library(what string, table map[string]*builtin, absent string) *builtin {
	name := p.dottedName()
	if table[name] == nil && slices.Contains(strings.Fields(absent), name) {
		p.unsupported("the %s %s", what, name)
	}
	if table[name] == nil {
		return raw(name, func(*state, Value, *callArgs) Value { return raise("No %s named '%s'.", what, name) })
	}
	return table[name]
}

func (p *parser) dottedName() string {
	name := p.ident().text
	for p.skipOp(".") {
		name += "." + p.ident().text
	}
	return name
}

func (p *parser) test(n node) node {
	line := pos(p.next().line)
	negated := p.skipName("not")
	t := &testNode{pos: line, expr: n}
	t.fn = p.library("test", tests, absentTests)
	switch c := p.cur(); {
	case p.isOp("("):
		t.args = p.callArgs()
	case p.isOp("["), p.isOp("{"), c.kind == tokString, c.kind == tokInteger, c.kind == tokFloat,
		c.kind == tokName && c.text != "else" && c.text != "or" && c.text != "and":
		if p.isName("is") {
			p.fail("You cannot chain multiple tests with is")
		}
		t.args.pos = []node{p.postfix(p.primary(false))}
	}
	if negated {
		return &unaryNode{line, "not", t}
	}
	return t
}
