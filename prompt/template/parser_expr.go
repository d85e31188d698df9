package template

import (
	"cmp"
	"slices"
)

// Expression grammar of Jinja2 3.1, lowest precedence first:
// inline if, or, and, not, comparisons, + -, ~, * / // %, unary signs, postfix, filters and tests.

// tuple reads "a, b". With cond, its elements may be inline ifs; in parens, () is a tuple.
func (p *parser) tuple(cond, parens bool) node {
	line := p.line()
	var parts []node
	for {
		switch k := p.cur().kind; {
		case k == tokVarEnd, k == tokBlockEnd, p.isOp(")"):
			if len(parts) == 0 && !parens {
				p.fail("Expected an expression, got '%s'", p.cur().describe())
			}
			return &tupleNode{list{line, parts}}
		}
		parts = append(parts, p.expr(cond))
		line = p.line()
		if !p.skipOp(",") {
			break
		}
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return &tupleNode{list{line, parts}}
}

func (p *parser) expr(withCond bool) node {
	p.enter()
	defer p.leave()
	line := p.line()
	e := p.or()
	for links := 0; withCond && p.skipName("if"); p.chain(&links) {
		test := p.or()
		var otherwise node
		if p.skipName("else") {
			otherwise = p.expr(true)
		}
		e = &condNode{line, test, e, otherwise}
		line = p.line()
	}
	return e
}

// chained reads a chain of left associative operators, whose operands are read by operand.
func (p *parser) chained(operand func() node, ops ...string) node {
	line := p.line()
	left := operand()
	for links := 0; (p.cur().kind == tokOperator || p.cur().kind == tokName) && slices.Contains(ops, p.cur().text); p.chain(&links) {
		op := p.next().text
		left = &binaryNode{line, op, left, operand(), operators[op]}
		line = p.line()
	}
	return left
}

func (p *parser) or() node     { return p.chained(p.and, "or") }
func (p *parser) and() node    { return p.chained(p.not, "and") }
func (p *parser) sum() node    { return p.chained(p.concat, "+", "-") }
func (p *parser) concat() node { return p.chained(p.product, "~") }
func (p *parser) product() node {
	return p.chained(func() node { return p.unary(true) }, "*", "/", "//", "%")
}

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
	line := p.line()
	left := p.sum()
	op := p.comparison()
	if op == "" {
		return left
	}
	var n node = &binaryNode{line, op, left, p.sum(), operators[op]}
	for links := 0; p.comparison() != ""; p.chain(&links) {
		n = absent(line, "a chain of comparisons", n, p.sum())
	}
	return n
}

// comparison consumes a comparison operator and returns it, "" if there is none.
func (p *parser) comparison() string {
	switch t := p.cur(); {
	case t.kind == tokOperator && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text), p.isName("in"):
		return p.next().text
	case p.isName("not") && p.look().kind == tokName && p.look().text == "in":
		p.next()
		p.next()
		return "not in"
	}
	return ""
}

func (p *parser) unary(withFilter bool) node {
	var n node
	if p.isOp("-") || p.isOp("+") {
		p.enter()
		t := p.next()
		n = &unaryNode{pos(t.line), t.text, p.unary(false)}
		p.leave()
	} else {
		n = p.primary()
	}
	n = p.postfix(n)
	for links := 0; withFilter; p.chain(&links) {
		switch {
		case p.isOp("|"):
			n = p.filterChain(n)
		case p.isName("is"):
			n = p.test(n)
		case p.isOp("("):
			n = p.call(n)
		case p.skipOp("**"):
			n = absent(p.line(), "**", n, p.unary(false))
		default:
			return n
		}
	}
	return n
}

func (p *parser) primary() node {
	line, t := p.line(), p.cur()
	switch t.kind {
	case tokName:
		p.next()
		if v := constants[t.text]; v.valid() {
			return &constNode{line, v}
		}
		if t.text == "cycler" || t.text == "joiner" || t.text == "lipsum" {
			return absent(line, t.text+"()")
		}
		return &nameNode{line, t.text, false}
	case tokString:
		p.next()
		for p.cur().kind == tokString {
			next := p.next()
			t.text, t.lack = t.text+next.text, cmp.Or(t.lack, next.lack)
		}
		return p.constant(t, String(t.text))
	case tokInteger, tokFloat:
		p.next()
		return p.constant(t, t.num)
	case tokOperator:
		p.enter()
		defer p.leave()
		switch {
		case p.skipOp("("):
			n := p.tuple(true, true)
			p.expect(tokOperator, ")")
			return n
		case p.skipOp("["):
			n := &listNode{list{pos: line}}
			p.commas("]", func() { n.items = append(n.items, p.expr(true)) })
			return n
		case p.skipOp("{"):
			n := &dictNode{list{pos: line}}
			p.commas("}", func() {
				key := p.expr(true)
				p.expect(tokOperator, ":")
				n.items = append(n.items, key, p.expr(true))
			})
			return n
		}
	}
	return p.fail("unexpected '%s'", t.describe())
}

// constant returns the node of a literal.
func (p *parser) constant(t token, v Value) node {
	if t.lack != "" {
		return absent(pos(t.line), t.lack)
	}
	return &constNode{pos(t.line), v}
}

// chain bounds the length of a chain of operators or filters, because each link nests the tree one level deeper.
func (p *parser) chain(links *int) {
	*links++
	if *links > 10*maxNesting {
		p.fail("more than %d operators in one chain", 10*maxNesting)
	}
}

func (p *parser) postfix(n node) node {
	for links := 0; ; p.chain(&links) {
		line := p.line()
		switch {
		case p.skipOp("."):
			a := p.next()
			if a.kind != tokName && a.kind != tokInteger {
				panic(syntaxErrorf(a.line, "expected name or number"))
			}
			if a.kind == tokInteger {
				n = &itemNode{line, n, &constNode{pos(a.line), a.num}}
			} else {
				n = &attrNode{line, n, a.text, dictMethods[a.text] == nil && !isDunder(a.text)}
			}
		case p.skipOp("["):
			n = &itemNode{line, n, p.subscript()}
			p.expect(tokOperator, "]")
		case p.isOp("("):
			n = p.call(n)
		default:
			return n
		}
	}
}

func (p *parser) subscript() node {
	n := p.index()
	for links := 0; p.skipOp(","); p.chain(&links) {
		n = absent(pos(p.cur().line), "a tuple as an index", n, p.index())
	}
	return n
}

func (p *parser) index() node {
	s := &sliceNode{pos: p.line()}
	if !p.skipOp(":") {
		n := p.expr(true)
		if !p.skipOp(":") {
			return n
		}
		s.start = n
	}
	if !p.isOp(":") && !p.isOp("]") && !p.isOp(",") {
		s.stop = p.expr(true)
	}
	if p.skipOp(":") && !p.isOp("]") && !p.isOp(",") {
		s.step = p.expr(true)
	}
	return s
}

func (p *parser) call(n node) node {
	line := p.line()
	return &callNode{line, n, p.callArgs()}
}

// callArgs reads arguments in the order that Jinja2 demands (parser.parse_call_args): positional, by name, *list, **dict. Names may
// also stand between *list and **dict.
func (p *parser) callArgs() (a argNodes) {
	const invalid = "invalid syntax for function call expression"
	p.expect(tokOperator, "(")
	p.commas(")", func() {
		switch {
		case a.dict != nil:
			p.fail(invalid)
		case p.isOp("**"):
			p.next()
			a.dict = p.expr(true)
		case p.isOp("*"):
			p.next()
			if a.list != nil {
				p.fail(invalid)
			}
			a.list = p.expr(true)
		case p.cur().kind == tokName && p.look().kind == tokOperator && p.look().text == "=":
			name := p.next().text
			p.next()
			if slices.ContainsFunc(a.kw, func(k kwNode) bool { return k.name == name }) {
				p.fail("keyword argument repeated: %s", name)
			}
			a.kw = append(a.kw, kwNode{name, p.expr(true)})
		case a.kw != nil, a.list != nil:
			p.fail(invalid)
		default:
			a.pos = append(a.pos, p.expr(true))
		}
	})
	return a
}

// filterChain reads "|name(args)|name…" after n. It returns n if there is none.
func (p *parser) filterChain(n node) node {
	for links := 0; p.skipOp("|"); p.chain(&links) {
		f := &applyNode{pos: p.line(), expr: n}
		f.fn = lookUp("filter", p.dotted())
		if p.isOp("(") {
			f.args = p.callArgs()
		}
		n = f
	}
	return n
}

// dotted reads the name of a filter or test, which may have dots.
func (p *parser) dotted() string {
	name := p.ident().text
	for p.skipOp(".") {
		name += "." + p.ident().text
	}
	return name
}

func (p *parser) test(n node) node {
	line := pos(p.next().line)
	negated := p.skipName("not")
	t := &applyNode{pos: line, expr: n}
	t.fn = lookUp("test", p.dotted())
	switch c := p.cur(); {
	case p.isOp("("):
		t.args = p.callArgs()
	case p.isOp("["), p.isOp("{"), c.kind == tokString, c.kind == tokInteger, c.kind == tokFloat,
		c.kind == tokName && c.text != "else" && c.text != "or" && c.text != "and":
		if p.isName("is") {
			p.fail("You cannot chain multiple tests with is")
		}
		t.args.pos = []node{p.postfix(p.primary())}
	}
	if negated {
		return &unaryNode{line, "not", t}
	}
	return t
}
