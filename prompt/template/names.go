package template

import "slices"

// Static analysis of names: which ones a template reads from its variables, and which of its own it may read before they are set.
// Jinja2 resolves names when it compiles (jinja2/idtracking.py); two results of that are visible: Uses, and that a name which the
// template itself sets is never looked up in the variables, even if a macro reads it first.

// names holds the names of one scope at compile time, and whether the scope's own statements set them before reading them.
type names struct {
	outer *names
	known map[string]bool // true: set first, so that the rendering's variables are not consulted
	asked map[string]bool // of the whole template: read from the variables
}

func (c *names) inner() *names { return &names{outer: c, known: map[string]bool{}, asked: c.asked} }

func (c *names) has(name string) bool {
	for ; c != nil; c = c.outer {
		if _, ok := c.known[name]; ok {
			return true
		}
	}
	return false
}

// read records that a name is read, set that it is set.
func (c *names) read(name string) {
	if !c.has(name) {
		c.known[name], c.asked[name] = false, true
	}
}

func (c *names) set(name string) {
	if _, ok := c.known[name]; !ok {
		c.known[name] = !c.has(name)
	}
}

// targets records the names in an assignment's target.
func (c *names) targets(n node) {
	switch n := n.(type) {
	case *nameNode:
		c.set(n.name)
	case *nsRefNode:
		c.read(n.name)
	case *tupleNode:
		for _, item := range n.items {
			c.targets(item)
		}
	}
}

// visit records the names of nodes that run in this scope, then those of the inner scopes, which see all of this one's.
func (c *names) visit(ns []node) {
	var later []func()
	c.visitHere(ns, &later)
	for _, f := range later {
		f()
	}
}

func (c *names) visitHere(ns []node, later *[]func()) {
	for _, n := range ns {
		walk(func(n node) bool { return c.one(n, later) }, n)
	}
}

// one records a node's names. It returns false if it has handled the node's children itself.
func (c *names) one(n node, later *[]func()) bool {
	switch n := n.(type) {
	case *nameNode:
		c.read(n.name)
		return true
	case *ifNode:
		c.visitHere([]node{n.test}, later)
		for _, b := range [][]node{n.body, n.orElse} { // a name that only a branch sets may be missing: then the variables are consulted
			in := c.inner()
			in.visitHere(b, later)
			for name := range in.known {
				c.read(name)
			}
		}
	case *setNode:
		c.visitHere([]node{n.expr}, later)
		c.targets(n.target)
	case *setBlockNode:
		c.targets(n.target)
		c.scope(later, n.body, &n.shadowed)
	case *macroNode:
		c.set(n.name)
		c.macro(&n.macroBody, later)
	case *callBlockNode:
		c.visitHere([]node{n.call}, later)
		c.macro(&n.macroBody, later)
	case *forNode:
		c.visitHere([]node{n.iter}, later)
		c.scope(later, []node{n.test}, new([]string), n.target)
		c.scope(later, n.body, &n.shadowed, n.target, &nameNode{name: "loop"})
		c.scope(later, n.orElse, &n.elseShadowed)
	default:
		return true
	}
	return false
}

func (c *names) macro(m *macroBody, later *[]func()) {
	var given []node
	for _, p := range m.params {
		given = append(given, p)
	}
	for name, set := range map[string]bool{"caller": m.caller, "varargs": m.varargs, "kwargs": m.kwargs} {
		if set {
			given = append(given, &nameNode{name: name})
		}
	}
	c.scope(later, slices.Concat(m.defaults, m.body), &m.shadowed, given...)
}

// scope defers recording the names of an inner scope; given are the names that it starts with.
func (c *names) scope(later *[]func(), body []node, shadowed *[]string, given ...node) {
	*later = append(*later, func() {
		in := c.inner()
		walk(func(n node) bool {
			if name, ok := n.(*nameNode); ok {
				in.known[name.name] = false
			}
			return true
		}, given...)
		in.visit(body)
		*shadowed = in.first()
	})
}

// first lists the names that a scope sets before it reads them and that no enclosing scope has.
func (c *names) first() (list []string) {
	for name, first := range c.known {
		if first {
			list = append(list, name)
		}
	}
	return list
}

// resolveNames finds the names that t reads from its variables, and those that it sets itself before reading them.
func (t *Template) resolveNames() {
	root := &names{known: map[string]bool{}, asked: map[string]bool{}}
	root.visit(t.tree)
	t.asked, t.shadowed = root.asked, root.first()
}

// reads reports whether the nodes read a name before they set it.
func reads(ns []node, name string) (found bool) {
	walk(func(n node) bool {
		nn, ok := n.(*nameNode)
		if ok && nn.name == name {
			found = !nn.stored
			return false
		}
		return true
	}, ns...)
	return found
}
