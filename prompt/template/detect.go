package template

import (
	"slices"
	"strings"
)

// What the engines read off a template's tree before they render it: whether message content goes in as text or as a
// list of parts, and which variables the template knows.

// Format says how a template wants a message's content.
type Format uint8

const (
	FormatString Format = iota // one str
	FormatOpenAI               // a list of {"type": …} parts
)

func (f Format) String() string {
	if f == FormatOpenAI {
		return "openai"
	}
	return "string"
}

// ContentFormat is vLLM 0.32's detection (renderers/hf.py): openai if a for statement goes over the content of a loop
// variable over messages (or of what messages was assigned to), over a macro's parameter that some call passes such
// content to, or, outside macros, over a variable named content. Filters, tests and slices around it do not matter. Like
// vLLM, it gives up ("string") on a tuple target in such a place.
func (t *Template) ContentFormat() Format {
	var loops []*forNode
	var sets []*setNode
	var macros []*macroNode
	calls := map[string][]*callNode{}
	walk(func(n node) bool {
		switch n := n.(type) {
		case *forNode:
			loops = append(loops, n)
		case *setNode:
			sets = append(sets, n)
		case *macroNode:
			macros = append(macros, n)
		case *callNode:
			if callee, ok := n.expr.(*nameNode); ok {
				calls[callee.name] = append(calls[callee.name], n)
			}
		}
		return true
	}, t.tree...)
	lists := []string{"messages"}
	for queue := lists; len(queue) > 0; queue = queue[1:] {
		for _, set := range sets {
			if !accesses(set.expr, queue[0], "") {
				continue
			}
			name, ok := set.target.(*nameNode)
			if !ok {
				return FormatString
			}
			if !slices.Contains(lists, name.name) {
				lists = append(lists, name.name)
				queue = append(queue, name.name)
			}
		}
	}
	var items []string
	for _, loop := range loops {
		if !accessesAny(loop.iter, lists, "") {
			continue
		}
		name, ok := loop.target.(*nameNode)
		if !ok {
			return FormatString
		}
		items = append(items, name.name)
	}
	passed := map[*forNode][]string{} // by loop in a macro: the parameters that get content
	for _, m := range macros {
		params := m.contentParams(calls[m.name], items)
		walk(func(n node) bool {
			if loop, ok := n.(*forNode); ok && (params != nil || passed[loop] == nil) {
				passed[loop] = params
			}
			return true
		}, m.body...)
	}
	for _, loop := range loops {
		found := accessesAny(loop.iter, items, "content")
		if bare, ok := loop.iter.(*nameNode); ok && !found {
			params, inMacro := passed[loop]
			found = slices.Contains(params, bare.name) || !inMacro && bare.name == "content"
		}
		if found {
			if _, ok := loop.target.(*nameNode); !ok {
				return FormatString
			}
			return FormatOpenAI
		}
	}
	return FormatString
}

// contentParams gives the parameters that one of the calls passes the content of one of items to.
func (m *macroNode) contentParams(calls []*callNode, items []string) (names []string) {
	for _, call := range calls {
		for i, arg := range call.args.pos {
			if i < len(m.params) && accessesAny(arg, items, "content") {
				names = append(names, m.params[i].name)
			}
		}
		for _, kw := range call.args.kw {
			if accessesAny(kw.val, items, "content") && slices.ContainsFunc(m.params, func(p *nameNode) bool { return p.name == kw.name }) {
				names = append(names, kw.name)
			}
		}
	}
	return names
}

// SGLangFormat is SGLang's detection (srt/parser/jinja_template_utils.py): openai if the source mentions a medium
// at all, or if a for statement goes over the content of message, msg or m.
func (t *Template) SGLangFormat() Format {
	for _, word := range []string{"image", "audio", "video", "vision"} {
		if strings.Contains(t.source, word) {
			return FormatOpenAI
		}
	}
	return t.anyLoop(func(loop *forNode) bool {
		return accessesAny(loop.iter, []string{"message", "msg", "m"}, "content")
	})
}

// TensorRTFormat is TensorRT-LLM's detection (inputs/content_format.py): openai if a for statement goes over
// something's content and looks at the type of its loop variable.
func (t *Template) TensorRTFormat() Format {
	return t.anyLoop(func(loop *forNode) bool {
		name, ok := loop.target.(*nameNode)
		if !ok || memberOf(loop.iter, "content") == nil {
			return false
		}
		found := false
		walk(func(n node) bool {
			owner, ok := memberOf(n, "type").(*nameNode)
			found = found || ok && owner.name == name.name
			return !found
		}, loop)
		return found
	})
}

func (t *Template) anyLoop(is func(*forNode) bool) Format {
	f := FormatString
	walk(func(n node) bool {
		if loop, ok := n.(*forNode); ok && is(loop) {
			f = FormatOpenAI
		}
		return f == FormatString
	}, t.tree...)
	return f
}

// memberOf gives x for x.key and x['key'], and nil otherwise.
func memberOf(n node, key string) node {
	switch n := n.(type) {
	case *attrNode:
		if n.name == key {
			return n.expr
		}
	case *itemNode:
		if k, ok := constString(n.arg); ok && k == key {
			return n.expr
		}
	}
	return nil
}

// accesses reports whether n is the variable (or with a key, that member of it) with any filters, tests and slices on it.
func accesses(n node, variable, key string) bool {
	switch x := n.(type) {
	case *applyNode:
		return x.expr != nil && accesses(x.expr, variable, key)
	case *itemNode:
		if _, ok := x.arg.(*sliceNode); ok {
			return accesses(x.expr, variable, key)
		}
	}
	if key != "" {
		n = memberOf(n, key)
	}
	name, ok := n.(*nameNode)
	return ok && name.ctx == ctxLoad && name.name == variable
}

func accessesAny(n node, variables []string, key string) bool {
	return slices.ContainsFunc(variables, func(v string) bool { return accesses(n, v, key) })
}

// Uses reports whether the template reads a variable that it does not set itself (jinja2.meta.find_undeclared_variables).
// vLLM and transformers hand only such names of chat_template_kwargs on.
func (t *Template) Uses(name string) bool {
	return t.asked[name] && !slices.Contains(environmentGlobals, name)
}

// Mentions reports whether the source contains text. vLLM asks it about the developer role, in quotes.
func (t *Template) Mentions(text string) bool { return strings.Contains(t.source, text) }

// constString gives the value of a string literal.
func constString(n node) (string, bool) {
	k, ok := n.(*constNode)
	if !ok {
		return "", false
	}
	return k.val.str, k.val.kind == KindString
}
