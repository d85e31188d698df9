package template

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// The parser builds the tree from tokens: statements here, expressions in parser_expr.go.
// It accepts what Jinja2 3.1 accepts with the loopcontrols extension and transformers' {% generation %} tag.

// maxNesting bounds blocks in blocks and brackets in brackets: a hostile source cannot exhaust the Go stack.
const maxNesting = 100

type parser struct {
	toks  []token
	i     int
	depth int
	loops int // around the current statement, within its macro
}

// parse gives the tree of a template source. It fails (by panic) with a *SyntaxError.
func parse(src string) []node {
	p := &parser{toks: lex(src)}
	body := p.subparse(nil)
	if p.cur().kind != tokEOF {
		p.fail("unexpected %s", p.cur().describe())
	}
	return body
}

func (p *parser) cur() token { return p.toks[p.i] }

func (p *parser) look() token {
	if p.i+1 < len(p.toks) {
		return p.toks[p.i+1]
	}
	return p.toks[len(p.toks)-1]
}

func (p *parser) next() token {
	t := p.toks[p.i]
	if p.i+1 < len(p.toks) {
		p.i++
	}
	return t
}

func (p *parser) fail(format string, args ...any) node {
	panic(syntaxErrorf(p.cur().line, format, args...))
}

// unsupported refuses what Jinja2 has and this package has not: such a template is not rendered at all.
func (p *parser) unsupported(format string, args ...any) {
	panic(&SyntaxError{Line: p.cur().line, Msg: fmt.Sprintf(format, args...) + " is not supported in chat templates", Unsupported: true})
}

func (p *parser) enter() {
	if p.depth++; p.depth > maxNesting {
		p.fail("nested deeper than %d levels", maxNesting)
	}
}

func (p *parser) leave() { p.depth-- }

func (p *parser) isName(name string) bool { return p.cur().kind == tokName && p.cur().text == name }
func (p *parser) isOp(op string) bool     { return p.cur().kind == tokOperator && p.cur().text == op }

func (p *parser) skipName(name string) bool {
	if p.isName(name) {
		p.next()
		return true
	}
	return false
}

func (p *parser) skipOp(op string) bool {
	if p.isOp(op) {
		p.next()
		return true
	}
	return false
}

// expect takes a token of a kind, and of a text where that is not "".
func (p *parser) expect(kind tokenKind, text string) token {
	if t := p.cur(); t.kind != kind || text != "" && t.text != text {
		p.fail("expected token '%s', got '%s'", cmp.Or(text, token{kind: kind}.describe(), "name"), t.describe())
	}
	return p.next()
}

func (p *parser) expectOp(op string) { p.expect(tokOperator, op) }

func (p *parser) ident() token { return p.expect(tokName, "") }

// subparse reads text, prints and statements up to a tag named by one of ends, which becomes the current token.
func (p *parser) subparse(ends []string) []node {
	var body, data []node
	flush := func() {
		if len(data) > 0 {
			body = append(body, &outputNode{pos(data[0].at()), data})
			data = nil
		}
	}
	for {
		t := p.cur()
		switch t.kind {
		case tokData:
			data = append(data, &dataNode{pos(t.line), t.text})
			p.next()
		case tokVarBegin:
			p.next()
			data = append(data, p.tupleExpr(tupleRules{condExpr: true}))
			p.expect(tokVarEnd, "")
		case tokBlockBegin:
			flush()
			p.next()
			if t := p.cur(); t.kind == tokName && slices.Contains(ends, t.text) {
				return body
			}
			body = append(body, p.statement())
			p.expect(tokBlockEnd, "")
		case tokEOF:
			flush()
			return body
		default:
			p.fail("unexpected %s", t.describe())
		}
	}
}

// statements reads a tag's body up to one of the end tags. The tag may end in a colon.
func (p *parser) statements(ends ...string) []node {
	p.enter()
	defer p.leave()
	p.skipOp(":")
	p.expect(tokBlockEnd, "")
	body := p.subparse(ends)
	if p.cur().kind == tokEOF {
		p.fail("Unexpected end of template. Jinja was looking for the following tags: '%s'.", strings.Join(ends, "' or '"))
	}
	return body
}

// block reads a tag's body up to its only end tag, and that tag.
func (p *parser) block(end string) []node {
	body := p.statements(end)
	p.next()
	return body
}

func (p *parser) statement() node {
	t := p.cur()
	if t.kind != tokName {
		p.fail("tag name expected")
	}
	line := pos(t.line)
	switch t.text {
	case "for":
		return p.forStatement()
	case "if":
		return p.ifStatement()
	case "set":
		return p.setStatement()
	case "macro":
		p.next()
		n := &macroNode{pos: line, name: p.storeName().name}
		p.signature(&n.macroBody)
		p.macroBody(&n.macroBody, "endmacro")
		return n
	case "call":
		p.next()
		n := &callBlockNode{pos: line}
		if p.isOp("(") {
			p.signature(&n.macroBody)
		}
		call, ok := p.expr(true).(*callNode)
		if !ok {
			p.fail("expected call")
		}
		n.call = call
		p.macroBody(&n.macroBody, "endcall")
		return n
	case "generation":
		p.next()
		n := &callBlockNode{pos: line}
		p.macroBody(&n.macroBody, "endgeneration")
		return n
	case "break", "continue":
		if p.next(); p.loops == 0 {
			p.fail("break and continue need a loop around them")
		}
		return &loopControlNode{line, t.text == "break"}
	case "include", "import", "from", "extends", "block", "autoescape", "filter", "with", "print":
		p.unsupported("{%% %s %%}", t.text)
	}
	return p.fail("Encountered unknown tag '%s'.", t.text)
}

func (p *parser) forStatement() node {
	n := &forNode{pos: pos(p.next().line)}
	n.target = p.assignTarget(tupleRules{simple: true, endName: "in"})
	p.expect(tokName, "in")
	n.iter = p.tupleExpr(tupleRules{endName: "recursive"})
	if p.skipName("if") {
		n.test = p.expr(true)
	}
	if p.isName("recursive") {
		p.unsupported("a recursive loop")
	}
	p.loops++
	n.body = p.statements("endfor", "else")
	p.loops--
	if n.loop = reads(n.body, "loop"); stores(n, "loop") {
		p.fail("Can't assign to special loop variable in for-loop target")
	}
	if p.next().text == "else" {
		n.orElse = p.block("endfor")
	}
	return n
}

func (p *parser) ifStatement() node {
	root := &ifNode{pos: pos(p.next().line)}
	for n := root; ; {
		n.test = p.tupleExpr(tupleRules{})
		n.body = p.statements("elif", "else", "endif")
		switch p.next().text {
		case "elif":
			n = &ifNode{pos: pos(p.cur().line)}
			root.elifs = append(root.elifs, n)
			continue
		case "else":
			root.orElse = p.block("endif")
		}
		return root
	}
}

func (p *parser) setStatement() node {
	line := pos(p.next().line)
	target := p.assignTarget(tupleRules{simple: true, namespace: true})
	if p.skipOp("=") {
		return &setNode{line, target, p.tupleExpr(tupleRules{condExpr: true})}
	}
	n := &setBlockNode{pos: line, target: target}
	n.filter, _ = p.filterChain(nil).(*filterNode)
	n.body = p.block("endset")
	return n
}

// macroBody reads the body of a macro or a call block, up to its end tag.
func (p *parser) macroBody(m *macroBody, end string) {
	loops := p.loops
	p.loops = 0
	m.body = p.block(end)
	p.loops = loops
	m.caller = reads(m.body, "caller")
	for _, name := range []string{"varargs", "kwargs"} {
		if reads(m.body, name) {
			p.unsupported("%s in a macro", name)
		}
	}
}

func (p *parser) signature(s *macroBody) {
	p.expectOp("(")
	for !p.isOp(")") {
		if len(s.params) > 0 {
			p.expectOp(",")
		}
		param := p.storeName()
		if param.name == "caller" || slices.ContainsFunc(s.params, func(other *nameNode) bool { return other.name == param.name }) {
			p.fail("a parameter named %s twice, or like the call block's body", param.name)
		}
		param.ctx = ctxParam
		if p.skipOp("=") {
			s.defaults = append(s.defaults, p.expr(true))
		} else if len(s.defaults) > 0 {
			p.fail("non-default argument follows default argument")
		}
		s.params = append(s.params, param)
	}
	p.next()
}

// storeName reads one name to assign to.
func (p *parser) storeName() *nameNode {
	t := p.ident()
	if constants[t.text].valid() {
		p.fail("can't assign to '%s'", t.text)
	}
	return &nameNode{pos(t.line), t.text, ctxStore}
}

// constants are the names that stand for values.
var constants = map[string]Value{"true": pyTrue, "True": pyTrue, "false": pyFalse, "False": pyFalse, "none": None, "None": None}

// assignTarget reads a name, a tuple of targets, or (for set) a namespace attribute.
func (p *parser) assignTarget(rules tupleRules) node {
	line := p.cur().line
	target := p.tupleExpr(rules)
	if !assignable(target) {
		panic(syntaxErrorf(line, "can't assign to this expression"))
	}
	setCtx(target, ctxStore)
	return target
}

func assignable(n node) bool {
	switch n := n.(type) {
	case *nameNode:
		return !constants[n.name].valid()
	case *nsRefNode:
		return true
	case *tupleNode:
		return !slices.ContainsFunc(n.items, func(c node) bool { return !assignable(c) })
	}
	return false
}

func setCtx(n node, ctx nameCtx) {
	switch n := n.(type) {
	case *nameNode:
		n.ctx = ctx
	case *tupleNode:
		for _, c := range n.items {
			setCtx(c, ctx)
		}
	}
}
