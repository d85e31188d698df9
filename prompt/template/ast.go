package template

import "slices"

// The syntax tree, with the node kinds of Jinja2 (jinja2/nodes.py), because the engines' content format
// detection is defined over that tree.

type node interface {
	at() int      // the line that it starts on
	kids() []node // the nodes right below, in Jinja2's field order; nil stands for one that was left out
}

// pos is embedded in every node.
type pos int

func (p pos) at() int    { return int(p) }
func (pos) kids() []node { return nil }

// Expressions.
type (
	nameNode struct {
		pos
		name string
		ctx  nameCtx
	}
	constNode struct {
		pos
		val Value
	}
	dataNode struct { // text outside tags
		pos
		text string
	}
	tupleNode struct {
		pos
		items []node
	}
	listNode struct {
		pos
		items []node
	}
	dictNode struct {
		pos
		keys, values []node
	}
	condNode struct {
		pos
		test, then, otherwise node // otherwise may be nil
	}
	binaryNode struct { // + - * / // % ** and or
		pos
		op          string
		left, right node
		fn          binaryOp // nil for and, or
	}
	unaryNode struct { // not, + and -
		pos
		op   string
		expr node
	}
	compareNode struct {
		pos
		expr node
		ops  []compareOp
	}
	compareOp struct {
		fn   comparison // == != < <= > >= in notin
		expr node
	}
	concatNode struct {
		pos
		items []node
	}
	filterNode struct {
		pos
		expr node // nil: the text of the set block
		fn   *builtin
		args argNodes
	}
	testNode struct {
		pos
		expr node
		fn   *builtin
		args argNodes
	}
	callNode struct {
		pos
		expr node
		args argNodes
	}
	attrNode struct {
		pos
		expr   node
		name   string
		member bool // of a dict: no method has this name
	}
	itemNode struct {
		pos
		expr, arg node
	}
	sliceNode struct {
		pos
		start, stop, step node // each may be nil
	}
	nsRefNode struct { // the target of {% set ns.attr = ... %}
		pos
		name, attr string
	}
	argNodes struct {
		pos   []node
		kw    []kwNode
		dyn   node // *args
		dynKw node // **kwargs
	}
	kwNode struct {
		name string
		val  node
	}
)

func (a *argNodes) empty() bool {
	return len(a.pos)+len(a.kw) == 0 && a.dyn == nil && a.dynKw == nil
}

type nameCtx uint8

const (
	ctxLoad nameCtx = iota
	ctxStore
	ctxParam
)

// Statements.
type (
	outputNode struct {
		pos
		items []node
	}
	forNode struct {
		pos
		target, iter node
		body, orElse []node
		test         node
		loop         bool // the body reads the variable loop

		shadowed, elseShadowed []string // see names.go, as in the nodes below
	}
	ifNode struct {
		pos
		test   node
		body   []node
		elifs  []*ifNode
		orElse []node
	}
	// macroBody is what runs when a macro or a call block is called; defaults belong to the last parameters.
	macroBody struct {
		params   []*nameNode
		defaults []node
		body     []node
		caller   bool // it reads the variable caller
		shadowed []string
	}
	macroNode struct {
		pos
		name string
		macroBody
	}
	callBlockNode struct {
		pos
		call node // a callNode; nil for {% generation %}
		macroBody
	}
	setNode struct {
		pos
		target, expr node
	}
	setBlockNode struct {
		pos
		target node
		filter *filterNode // nil: none
		body   []node

		shadowed []string
	}
	loopControlNode struct {
		pos
		brk bool
	}
)

func (n *tupleNode) kids() []node  { return n.items }
func (n *listNode) kids() []node   { return n.items }
func (n *concatNode) kids() []node { return n.items }
func (n *outputNode) kids() []node { return n.items }
func (n *dictNode) kids() []node   { return slices.Concat(n.keys, n.values) }
func (n *condNode) kids() []node   { return []node{n.test, n.then, n.otherwise} }
func (n *binaryNode) kids() []node { return []node{n.left, n.right} }
func (n *unaryNode) kids() []node  { return []node{n.expr} }
func (n *filterNode) kids() []node { return append([]node{n.expr}, n.args.kids()...) }
func (n *testNode) kids() []node   { return append([]node{n.expr}, n.args.kids()...) }
func (n *callNode) kids() []node   { return append([]node{n.expr}, n.args.kids()...) }
func (n *attrNode) kids() []node   { return []node{n.expr} }
func (n *itemNode) kids() []node   { return []node{n.expr, n.arg} }
func (n *sliceNode) kids() []node  { return []node{n.start, n.stop, n.step} }
func (n *forNode) kids() []node {
	return slices.Concat([]node{n.target, n.iter}, n.body, n.orElse, []node{n.test})
}
func (n *macroNode) kids() []node     { return n.macroBody.kids() }
func (n *callBlockNode) kids() []node { return append([]node{n.call}, n.macroBody.kids()...) }
func (n *setNode) kids() []node       { return []node{n.target, n.expr} }
func (n *setBlockNode) kids() []node {
	if n.filter == nil {
		return append([]node{n.target}, n.body...)
	}
	return append([]node{n.target, n.filter}, n.body...)
}

func (n *compareNode) kids() []node {
	out := []node{n.expr}
	for _, op := range n.ops {
		out = append(out, op.expr)
	}
	return out
}

func (n *ifNode) kids() []node {
	out := append([]node{n.test}, n.body...)
	for _, e := range n.elifs {
		out = append(out, e)
	}
	return append(out, n.orElse...)
}

func (a *argNodes) kids() []node {
	out := slices.Clone(a.pos)
	for _, k := range a.kw {
		out = append(out, k.val)
	}
	return append(out, a.dyn, a.dynKw)
}

func (m *macroBody) kids() []node {
	var out []node
	for _, p := range m.params {
		out = append(out, p)
	}
	return slices.Concat(out, m.defaults, m.body)
}

// walk calls f on the nodes and on all below them, parents first, in source order; it stops, and gives false, when f
// does.
func walk(f func(node) bool, ns ...node) bool {
	for _, n := range ns {
		if n != nil && (!f(n) || !walk(f, n.kids()...)) {
			return false
		}
	}
	return true
}
