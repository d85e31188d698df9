package template

import "slices"

// The syntax tree, with the node kinds of Jinja2 (jinja2/nodes.py), because the engines' content format
// detection is defined over that tree.

type node interface {
	at() int      // the line on which it starts
	kids() []node // the direct children, in Jinja2's field order; nil stands for one that is absent
}

// pos is embedded in every node, list in nodes that are a sequence of others.
type (
	pos  int
	list struct {
		pos
		items []node
	}
)

func (p pos) at() int        { return int(p) }
func (pos) kids() []node     { return nil }
func (l *list) kids() []node { return l.items }

// Expressions.
type (
	nameNode struct {
		pos
		name   string
		stored bool // assigned to, or a parameter; otherwise read
	}
	constNode struct {
		pos
		val Value
	}
	dataNode struct { // text outside tags
		pos
		text string
	}
	tupleNode struct{ list }
	listNode  struct{ list }
	dictNode  struct{ list } // alternating keys and values
	condNode  struct {
		pos
		test, then, otherwise node // otherwise may be nil
	}
	binaryNode struct {
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
	applyNode struct { // a filter or a test
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
	absentNode struct { // an expression or a statement that this package does not support
		list
		what string
	}
	nsRefNode struct { // the target of {% set ns.attr = ... %}
		pos
		name, attr string
	}
	argNodes struct {
		pos  []node
		kw   []kwNode
		list node // after *: more positional arguments; nil: none
		dict node // after **: more keyword arguments; nil: none
	}
	kwNode struct {
		name string
		val  node
	}
)

// Statements. shadowed is explained in names.go.
type (
	outputNode struct{ list }
	forNode    struct {
		pos
		target, iter node
		body, orElse []node
		test         node
		loop         bool // the body reads the variable loop

		shadowed, elseShadowed []string
	}
	ifNode struct {
		pos
		test         node
		body, orElse []node // an elif is an if in orElse
	}
	// macroBody runs when a macro or a call block is called; defaults belong to the last parameters.
	macroBody struct {
		params   []*nameNode
		defaults []node
		body     []node
		caller   bool // it reads the variable caller
		varargs  bool // likewise; it takes any number of positional arguments
		kwargs   bool // likewise; of named ones
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
		target   node
		body     []node
		shadowed []string
	}
	loopControlNode struct {
		pos
		brk bool
	}
)

func (n *condNode) kids() []node   { return []node{n.test, n.then, n.otherwise} }
func (n *binaryNode) kids() []node { return []node{n.left, n.right} }
func (n *unaryNode) kids() []node  { return []node{n.expr} }
func (n *applyNode) kids() []node  { return append([]node{n.expr}, n.args.kids()...) }
func (n *callNode) kids() []node   { return append([]node{n.expr}, n.args.kids()...) }
func (n *attrNode) kids() []node   { return []node{n.expr} }
func (n *itemNode) kids() []node   { return []node{n.expr, n.arg} }
func (n *sliceNode) kids() []node  { return []node{n.start, n.stop, n.step} }
func (n *macroNode) kids() []node  { return n.macroBody.kids() }
func (n *setNode) kids() []node    { return []node{n.target, n.expr} }
func (n *forNode) kids() []node {
	return slices.Concat([]node{n.target, n.iter}, n.body, n.orElse, []node{n.test})
}
func (n *callBlockNode) kids() []node { return append([]node{n.call}, n.macroBody.kids()...) }
func (n *setBlockNode) kids() []node  { return append([]node{n.target}, n.body...) }

func (n *ifNode) kids() []node { return slices.Concat([]node{n.test}, n.body, n.orElse) }

func (a *argNodes) kids() []node {
	out := slices.Clone(a.pos)
	for _, k := range a.kw {
		out = append(out, k.val)
	}
	if a.list != nil {
		out = append(out, a.list)
	}
	if a.dict != nil {
		out = append(out, a.dict)
	}
	return out
}

func (m *macroBody) kids() []node {
	var out []node
	for _, p := range m.params {
		out = append(out, p)
	}
	return slices.Concat(out, m.defaults, m.body)
}

// walk calls f on the nodes and all their descendants, parents first, in source order. It stops and returns false as soon as f
// does.
func walk(f func(node) bool, ns ...node) bool {
	for _, n := range ns {
		if n != nil && (!f(n) || !walk(f, n.kids()...)) {
			return false
		}
	}
	return true
}
