package template

import (
	"cmp"
	"slices"
	"strings"
)

// The parser builds the tree from tokens: statements here, expressions in parser_expr.go.
// It accepts what Jinja2 3.1 accepts with the loopcontrols extension and transformers' {% generation %} tag.

// maxNesting bounds nested blocks and nested brackets, so that a hostile source cannot exhaust the Go stack.
const maxNesting = 100

type parser struct {
	toks  []token
	i     int
	depth int
	loops int // around the current statement, within its macro
}

// parse returns the tree of a template source. It fails (by panic) with a *SyntaxError.
func parse(src string) []node {
	p := &parser{toks: lex(src)}
	body := p.subparse(nil)
	if p.cur().kind != tokEOF {
		p.fail("unexpected %s", p.cur().describe())
	}
	return body
}

func (p *parser) cur() token { return p.toks[p.i] }
func (p *parser) line() pos  { return pos(p.cur().line) }

// look returns the token after the current one; the last one is always tokEOF.
func (p *parser) look() token { return p.toks[min(p.i+1, len(p.toks)-1)] }

func (p *parser) next() token {
	t := p.toks[p.i]
	p.i = min(p.i+1, len(p.toks)-1)
	return t
}

func (p *parser) fail(format string, args ...any) node {
	panic(syntaxErrorf(p.cur().line, format, args...))
}

// absent returns a node for what Jinja2 supports and this package does not: it fails when it is run.
func absent(line pos, what string, parts ...node) node { return &absentNode{list{line, parts}, what} }

func (p *parser) enter() {
	p.depth++
	if p.depth > maxNesting {
		p.fail("nested deeper than %d levels", maxNesting)
	}
}

func (p *parser) leave() { p.depth-- }

func (p *parser) isName(name string) bool { return p.cur().kind == tokName && p.cur().text == name }
func (p *parser) isOp(op string) bool     { return p.cur().kind == tokOperator && p.cur().text == op }

func (p *parser) skipName(name string) bool { return p.skip(p.isName(name)) }
func (p *parser) skipOp(op string) bool     { return p.skip(p.isOp(op)) }

func (p *parser) skip(found bool) bool {
	if found {
		p.next()
	}
	return found
}

// expect consumes a token of a kind and, if text is not "", with that text.
func (p *parser) expect(kind tokenKind, text string) token {
	if t := p.cur(); t.kind != kind || text != "" && t.text != text {
		p.fail("expected token '%s', got '%s'", cmp.Or(text, token{kind: kind}.describe(), "name"), t.describe())
	}
	return p.next()
}

func (p *parser) ident() token { return p.expect(tokName, "") }

// commas reads comma-separated elements up to and including the closing operator.
func (p *parser) commas(end string, element func()) {
	for first := true; !p.skipOp(end); first = false {
		if !first {
			p.expect(tokOperator, ",")
			if p.skipOp(end) {
				return
			}
		}
		element()
	}
}

// subparse reads text, prints and statements up to a tag named in ends, which becomes the current token.
func (p *parser) subparse(ends []string) []node {
	var body, data []node
	flush := func() {
		if len(data) > 0 {
			body = append(body, &outputNode{list{pos(data[0].at()), data}})
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
			data = append(data, p.tuple(true, false))
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

// block reads a tag's body up to and including its only end tag.
func (p *parser) block(end string) []node {
	body := p.statements(end)
	p.next()
	return body
}

func (p *parser) statement() node {
	line, t := p.line(), p.cur()
	if t.kind != tokName {
		p.fail("tag name expected")
	}
	p.next()
	switch t.text {
	case "for":
		return p.forStatement(line)
	case "if":
		return p.ifStatement(line)
	case "set":
		return p.setStatement(line)
	case "macro":
		n := &macroNode{pos: line, name: p.storeName().name}
		p.signature(&n.macroBody)
		p.macroBody(&n.macroBody, "endmacro")
		return n
	case "call":
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
		n := &callBlockNode{pos: line}
		p.macroBody(&n.macroBody, "endgeneration")
		return n
	case "break", "continue":
		if p.loops == 0 {
			p.fail("break and continue need a loop around them")
		}
		return &loopControlNode{line, t.text == "break"}
	case "include", "import", "from", "extends", "print":
		p.skipTag()
		return absent(line, "{% "+t.text+" %}")
	case "block", "autoescape", "filter", "with":
		name := p.cur().text
		p.skipTag()
		n := absent(line, "{% "+t.text+" %}", p.statements("end"+t.text)...)
		p.next()
		if t.text == "block" && p.isName(name) {
			p.next()
		}
		return n
	}
	return p.fail("Encountered unknown tag '%s'.", t.text)
}

// skipTag reads what is left of a tag.
func (p *parser) skipTag() {
	for p.cur().kind != tokBlockEnd && p.cur().kind != tokEOF {
		p.next()
	}
}

func (p *parser) forStatement(line pos) node {
	n := &forNode{pos: line, target: p.target(false)}
	for _, name := range all[*nameNode]([]node{n.target}) {
		if name.name == "loop" {
			p.fail("Can't assign to special loop variable in for-loop target")
		}
	}
	p.expect(tokName, "in")
	n.iter = p.tuple(false, false)
	if p.skipName("if") {
		n.test = p.expr(true)
	}
	recursive := p.skipName("recursive")
	p.loops++
	n.body = p.statements("endfor", "else")
	p.loops--
	n.loop = reads(n.body, "loop")
	if p.next().text == "else" {
		n.orElse = p.block("endfor")
	}
	if recursive {
		return absent(line, "a recursive loop", n)
	}
	return n
}

func (p *parser) ifStatement(line pos) node {
	root := &ifNode{pos: line}
	n := root
	for links := 0; ; p.chain(&links) {
		n.test = p.tuple(false, false)
		n.body = p.statements("elif", "else", "endif")
		switch p.next().text {
		case "elif":
			next := &ifNode{pos: p.line()}
			n.orElse = []node{next}
			n = next
			continue
		case "else":
			n.orElse = p.block("endif")
		}
		return root
	}
}

func (p *parser) setStatement(line pos) node {
	target := p.target(true)
	if p.skipOp("=") {
		return &setNode{line, target, p.tuple(true, false)}
	}
	filter := p.filterChain(nil)
	n := &setBlockNode{pos: line, target: target, body: p.block("endset")}
	if filter != nil {
		return absent(line, "a filter of a set block", n)
	}
	return n
}

// macroBody reads the body of a macro or a call block, up to its end tag.
func (p *parser) macroBody(m *macroBody, end string) {
	loops := p.loops
	p.loops = 0
	m.body = p.block(end)
	p.loops = loops
	m.caller, m.varargs, m.kwargs = reads(m.body, "caller"), reads(m.body, "varargs"), reads(m.body, "kwargs")
}

func (p *parser) signature(s *macroBody) {
	p.expect(tokOperator, "(")
	p.commas(")", func() {
		param := p.storeName()
		if param.name == "caller" || slices.ContainsFunc(s.params, func(other *nameNode) bool { return other.name == param.name }) {
			p.fail("a parameter named %s twice, or like the call block's body", param.name)
		}
		if p.skipOp("=") {
			s.defaults = append(s.defaults, p.expr(true))
		} else if len(s.defaults) > 0 {
			p.fail("non-default argument follows default argument")
		}
		s.params = append(s.params, param)
	})
}

// constants are the names of constant values.
var constants = map[string]Value{"true": pyTrue, "True": pyTrue, "false": pyFalse, "False": pyFalse, "none": None, "None": None}

// storeName reads one name that is assigned to.
func (p *parser) storeName() *nameNode {
	t := p.ident()
	if constants[t.text].valid() {
		p.fail("can't assign to '%s'", t.text)
	}
	return &nameNode{pos(t.line), t.text, true}
}

// target reads an assignment's target: a name, a tuple of targets, or (for set) a namespace's attribute.
func (p *parser) target(namespaces bool) node {
	p.enter()
	defer p.leave()
	line := p.line()
	var targets []node
	for len(targets) == 0 || p.skipOp(",") {
		switch {
		case p.skipOp("("):
			targets = append(targets, p.target(false))
			p.expect(tokOperator, ")")
		case len(targets) > 0 && (p.isName("in") || p.isOp("=") || p.isOp(")")): // after a trailing comma
			return &tupleNode{list{line, targets}}
		default:
			name := p.storeName()
			if namespaces && p.skipOp(".") {
				targets = append(targets, &nsRefNode{name.pos, name.name, p.ident().text})
			} else {
				targets = append(targets, name)
			}
		}
		if len(targets) == 1 && !p.isOp(",") {
			return targets[0]
		}
	}
	return &tupleNode{list{line, targets}}
}
