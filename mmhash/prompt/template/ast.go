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
	autoescapeNode struct {
		pos
		on   node
		body []node
	}
	blockNode struct {
		pos
		name             string
		body             []node
		scoped, required bool
	}
	loaderNode struct { // include, import, from, extends: there is no loader, so running one is an error
		pos
		tag      string
		template node
		targets  []string
	}
	loopControlNode struct {
		pos
		brk bool
	}
)

// each calls f on the children of n, in Jinja2's field order.
func each(n node, f func(node)) {
	list := func(ns []node) {
		for _, c := range ns {
			f(c)
		}
	}
	one := func(c node) {
		if c != nil {
			f(c)
		}
	}
	args := func(a *argNodes) {
		list(a.pos)
		for _, k := range a.kw {
			f(k.val)
		}
		one(a.dyn)
		one(a.dynKw)
	}
	sig := func(s *signature) {
		for _, p := range s.params {
			f(p)
		}
		list(s.defaults)
	}
	switch n := n.(type) {
	case *tupleNode:
		list(n.items)
	case *listNode:
		list(n.items)
	case *dictNode:
		for i := range n.keys {
			f(n.keys[i])
			f(n.values[i])
		}
	case *condNode:
		f(n.test)
		f(n.then)
		one(n.otherwise)
	case *binaryNode:
		f(n.left)
		f(n.right)
	case *unaryNode:
		f(n.expr)
	case *compareNode:
		f(n.expr)
		for _, op := range n.ops {
			f(op.expr)
		}
	case *concatNode:
		list(n.items)
	case *filterNode:
		one(n.expr)
		args(&n.args)
	case *testNode:
		f(n.expr)
		args(&n.args)
	case *callNode:
		f(n.expr)
		args(&n.args)
	case *attrNode:
		f(n.expr)
	case *itemNode:
		f(n.expr)
		f(n.arg)
	case *sliceNode:
		one(n.start)
		one(n.stop)
		one(n.step)
	case *outputNode:
		list(n.items)
	case *forNode:
		f(n.target)
		f(n.iter)
		list(n.body)
		list(n.orElse)
		one(n.test)
	case *ifNode:
		f(n.test)
		list(n.body)
		for _, e := range n.elifs {
			f(e)
		}
		list(n.orElse)
	case *macroNode:
		sig(&n.signature)
		list(n.body)
	case *callBlockNode:
		one(n.call)
		sig(&n.signature)
		list(n.body)
	case *filterBlockNode:
		list(n.body)
		f(n.filter)
	case *withNode:
		list(n.targets)
		list(n.values)
		list(n.body)
	case *setNode:
		f(n.target)
		f(n.expr)
	case *setBlockNode:
		f(n.target)
		if n.filter != nil {
			f(n.filter)
		}
		list(n.body)
	case *autoescapeNode:
		f(n.on)
		list(n.body)
	case *blockNode:
		list(n.body)
	case *loaderNode:
		f(n.template)
	}
}

// walk calls f on every node below the given ones, parents first, in source order; it stops when f returns false.
func walk(ns []node, f func(node) bool) bool {
	for _, n := range ns {
		if !walkNode(n, f) {
			return false
		}
	}
	return true
}

func walkNode(n node, f func(node) bool) bool {
	if !f(n) {
		return false
	}
	ok := true
	each(n, func(c node) { ok = ok && walkNode(c, f) })
	return ok
}
