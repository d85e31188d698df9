package template

// The syntax tree, with the node kinds of Jinja2 (jinja2/nodes.py), because the engines' content format
// detection is defined over that tree.

type node interface{ at() int }

// pos is embedded in every node: the line that it starts on.
type pos int

func (p pos) at() int { return int(p) }

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
		op   string // == != < <= > >= in notin
		expr node
	}
	concatNode struct {
		pos
		items []node
	}
	filterNode struct {
		pos
		expr node // nil: the text of the enclosing filter or set block
		name string
		args argNodes
	}
	testNode struct {
		pos
		expr node
		name string
		args argNodes
	}
	callNode struct {
		pos
		expr node
		args argNodes
	}
	attrNode struct {
		pos
		expr node
		name string
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
		recursive    bool
	}
	ifNode struct {
		pos
		test   node
		body   []node
		elifs  []*ifNode
		orElse []node
	}
	// signature is the parameter list of a macro or a call block; defaults belong to the last parameters.
	signature struct {
		params   []*nameNode
		defaults []node
	}
	macroNode struct {
		pos
		name string
		signature
		body []node
	}
	callBlockNode struct {
		pos
		call node // a callNode; nil for {% generation %}
		signature
		body []node
	}
	filterBlockNode struct {
		pos
		body   []node
		filter *filterNode
	}
	withNode struct {
		pos
		targets, values []node
		body            []node
	}
	setNode struct {
		pos
		target, expr node
	}
	setBlockNode struct {
		pos
		target node
		filter *filterNode // may be nil
		body   []node
	}
	loopControlNode struct {
		pos
		brk bool
	}
)

// children gives the nodes right below n, in Jinja2's field order.
func children(n node) []node {
	var out []node
	add := func(ns ...node) {
		for _, c := range ns {
			if c != nil {
				out = append(out, c)
			}
		}
	}
	args := func(a *argNodes) {
		add(a.pos...)
		for _, k := range a.kw {
			add(k.val)
		}
		add(a.dyn, a.dynKw)
	}
	params := func(s *signature) {
		for _, p := range s.params {
			add(p)
		}
		add(s.defaults...)
	}
	switch n := n.(type) {
	case *tupleNode:
		return n.items
	case *listNode:
		return n.items
	case *concatNode:
		return n.items
	case *outputNode:
		return n.items
	case *dictNode:
		for i := range n.keys {
			add(n.keys[i], n.values[i])
		}
	case *condNode:
		add(n.test, n.then, n.otherwise)
	case *binaryNode:
		add(n.left, n.right)
	case *unaryNode:
		add(n.expr)
	case *compareNode:
		add(n.expr)
		for _, op := range n.ops {
			add(op.expr)
		}
	case *filterNode:
		add(n.expr)
		args(&n.args)
	case *testNode:
		add(n.expr)
		args(&n.args)
	case *callNode:
		add(n.expr)
		args(&n.args)
	case *attrNode:
		add(n.expr)
	case *itemNode:
		add(n.expr, n.arg)
	case *sliceNode:
		add(n.start, n.stop, n.step)
	case *forNode:
		add(n.target, n.iter)
		add(n.body...)
		add(n.orElse...)
		add(n.test)
	case *ifNode:
		add(n.test)
		add(n.body...)
		for _, e := range n.elifs {
			add(e)
		}
		add(n.orElse...)
	case *macroNode:
		params(&n.signature)
		add(n.body...)
	case *callBlockNode:
		add(n.call)
		params(&n.signature)
		add(n.body...)
	case *filterBlockNode:
		add(n.body...)
		add(n.filter)
	case *withNode:
		add(n.targets...)
		add(n.values...)
		add(n.body...)
	case *setNode:
		add(n.target, n.expr)
	case *setBlockNode:
		add(n.target)
		if n.filter != nil {
			add(n.filter)
		}
		add(n.body...)
	}
	return out
}

// walk calls f on the nodes and on all below them, parents first, in source order; it stops, and gives false, when f
// does.
func walk(f func(node) bool, ns ...node) bool {
	for _, n := range ns {
		if !f(n) || !walk(f, children(n)...) {
			return false
		}
	}
	return true
}
