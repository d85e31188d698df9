package template

import (
	"maps"
	"slices"
)

// Name resolution. Jinja2 compiles a template to Python functions whose local variables are named by scope level and
// template name ("l_1_item"), and templates can see the consequences: which set leaks out of what, what a macro sees
// of its surroundings. So we resolve names by the rules of jinja2/idtracking.py, to slots of function frames.

// funcScope is one Python function of the compiled template: the root, a macro, a call block, a recursive loop,
// or a loop filter.
type funcScope struct {
	outer    *funcScope
	idents   map[identKey]*ident
	slots    int
	captured bool // some inner function can see these slots, so a frame may outlive its call
}

type identKey struct {
	level int
	name  string
}

// ident is one Python local: a slot in the frames of its function.
type ident struct {
	fn   *funcScope
	slot int
	name string
}

func newFunc(outer *funcScope) *funcScope {
	for f := outer; f != nil; f = f.outer {
		f.captured = true
	}
	return &funcScope{outer: outer, idents: map[identKey]*ident{}}
}

// loadAction says how a scope's variable gets its value on entry.
type loadAction uint8

const (
	loadParam     loadAction = iota // set by the construct itself
	loadResolve                     // from the variables of the rendering
	loadAlias                       // copied from an outer scope
	loadUndefined                   // nothing yet
)

type load struct {
	action loadAction
	from   *ident // for loadAlias
}

// symbols are the variables of one scope.
type symbols struct {
	parent *symbols
	fn     *funcScope
	level  int
	refs   map[string]*ident
	loads  map[*ident]load
	order  []*ident // of loads, by first definition
	stores map[string]bool
}

func newSymbols(parent *symbols, fn *funcScope) *symbols {
	s := &symbols{parent: parent, fn: fn, refs: map[string]*ident{}, loads: map[*ident]load{}, stores: map[string]bool{}}
	if parent != nil {
		s.level = parent.level + 1
	}
	return s
}

func (s *symbols) define(name string, l load) *ident {
	key := identKey{s.level, name}
	id := s.fn.idents[key]
	if id == nil {
		id = &ident{fn: s.fn, slot: s.fn.slots, name: name}
		s.fn.slots++
		s.fn.idents[key] = id
	}
	s.refs[name] = id
	s.setLoad(id, l)
	return id
}

func (s *symbols) setLoad(id *ident, l load) {
	if _, ok := s.loads[id]; !ok {
		s.order = append(s.order, id)
	}
	s.loads[id] = l
}

func (s *symbols) findRef(name string) *ident {
	for ; s != nil; s = s.parent {
		if id := s.refs[name]; id != nil {
			return id
		}
	}
	return nil
}

func (s *symbols) findLoad(id *ident) (load, *symbols) {
	for ; s != nil; s = s.parent {
		if l, ok := s.loads[id]; ok {
			return l, s
		}
	}
	return load{}, nil
}

func (s *symbols) copy() *symbols {
	c := *s
	c.refs, c.loads, c.stores, c.order = maps.Clone(s.refs), maps.Clone(s.loads), maps.Clone(s.stores), slices.Clone(s.order)
	return &c
}

func (s *symbols) store(name string) {
	s.stores[name] = true
	if s.refs[name] != nil {
		return
	}
	if outer := s.parent.findRef(name); outer != nil {
		s.define(name, load{action: loadAlias, from: outer})
		return
	}
	s.define(name, load{action: loadUndefined})
}

func (s *symbols) param(name string) *ident {
	s.stores[name] = true
	return s.define(name, load{action: loadParam})
}

func (s *symbols) load(name string) {
	if s.findRef(name) == nil {
		s.define(name, load{action: loadResolve})
	}
}

// branchUpdate merges what the branches of an if define: a name that only some branch sets falls back to the
// outer scope's variable, or to the rendering's.
func (s *symbols) branchUpdate(branches ...*symbols) {
	var order []string
	stores := map[string]bool{}
	for _, b := range branches {
		for _, id := range b.order {
			if b.stores[id.name] && !s.stores[id.name] && !stores[id.name] {
				stores[id.name] = true
				order = append(order, id.name)
			}
		}
	}
	for _, b := range branches {
		maps.Copy(s.refs, b.refs)
		maps.Copy(s.stores, b.stores)
		for _, id := range b.order {
			s.setLoad(id, b.loads[id])
		}
	}
	for _, name := range order {
		id := s.findRef(name)
		if outer := s.parent.findRef(name); outer != nil {
			s.setLoad(id, load{action: loadAlias, from: outer})
		} else {
			s.setLoad(id, load{action: loadResolve})
		}
	}
}

// visitAll records the names that the nodes define and use in this scope. Inner scopes are left out.
func (s *symbols) visitAll(ns []node) {
	for _, n := range ns {
		if n != nil {
			s.visit(n)
		}
	}
}

func (s *symbols) visit(n node) {
	switch n := n.(type) {
	case *nameNode:
		switch n.ctx {
		case ctxParam:
			s.param(n.name)
		case ctxStore:
			s.store(n.name)
		default:
			s.load(n.name)
		}
	case *nsRefNode:
		s.load(n.name)
	case *ifNode:
		s.visit(n.test)
		body, elifs, orElse := s.copy(), s.copy(), s.copy()
		body.visitAll(n.body)
		for _, e := range n.elifs {
			elifs.visit(e)
		}
		orElse.visitAll(n.orElse)
		s.branchUpdate(body, elifs, orElse)
	case *macroNode:
		s.store(n.name)
	case *setNode:
		s.visit(n.expr)
		s.visit(n.target)
	case *setBlockNode:
		s.visit(n.target)
	case *forNode:
		s.visit(n.iter)
	case *callBlockNode:
		if n.call != nil {
			s.visit(n.call)
		}
	case *filterBlockNode:
		s.visit(n.filter)
	case *withNode:
		s.visitAll(n.values)
	default:
		s.visitAll(n.kids())
	}
}

// params declares every name of an assignment target as set by the construct.
func (s *symbols) params(target node) {
	switch t := target.(type) {
	case *nameNode:
		s.param(t.name)
	case *tupleNode:
		for _, c := range t.items {
			s.params(c)
		}
	case *nsRefNode:
		s.load(t.name)
	}
}

// undeclared reports which of the names are read in the nodes before the nodes assign them.
func undeclared(ns []node, names ...string) map[string]bool {
	open, found := map[string]bool{}, map[string]bool{}
	for _, n := range names {
		open[n] = true
	}
	walk(func(n node) bool {
		if name, ok := n.(*nameNode); ok {
			if name.ctx == ctxLoad && open[name.name] {
				found[name.name] = true
			} else {
				delete(open, name.name)
			}
		}
		return true
	}, ns...)
	return found
}
