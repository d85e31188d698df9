package template

import (
	"slices"
	"strings"
)

// What the engines derive from a template's tree before they render it: whether message content goes in as text or as a list of
// parts, and which variables the template uses.

// Format is the form in which a template expects a message's content.
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

// ContentFormat is vLLM 0.32's detection (renderers/hf.py). It is openai if a for statement iterates over the content of a loop
// variable over messages (or over what messages was assigned to), over a macro's parameter to which some call passes such content
// or, outside macros, over a variable named content. Filters, tests and slices around it do not matter. Like vLLM, it returns
// string if it meets a tuple target in such a place.
func (t *Template) ContentFormat() Format { return t.contentFormat(false) }

// AliasedContentFormat is the detection of vLLM 0.33: it also follows messages through the attributes of a namespace, and a tuple that
// messages is assigned to is passed over.
func (t *Template) AliasedContentFormat() Format { return t.contentFormat(true) }

func (t *Template) contentFormat(namespaces bool) Format {
	lists, ok := t.messageLists(namespaces)
	if !ok {
		return FormatString
	}
	loops := all[*forNode](t.tree)
	var each []string // loop variables over messages
	for _, loop := range loops {
		if accessesAny(loop.iter, lists, "") {
			name, ok := loop.target.(*nameNode)
			if !ok {
				return FormatString
			}
			each = append(each, name.name)
		}
	}
	passed := t.contentParams(each)
	for _, loop := range loops {
		found := accessesAny(loop.iter, each, "content")
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

// messageLists returns messages and all variables that it is assigned to, directly or indirectly; ok is false if a target is not a
// plain name. With namespaces their attributes count too, written like ns.rest, and other targets are passed over.
func (t *Template) messageLists(namespaces bool) (lists []string, ok bool) {
	lists = []string{"messages"}
	add := func(name string) {
		if !slices.Contains(lists, name) {
			lists = append(lists, name)
		}
	}
	sets := all[*setNode](t.tree)
	for i := 0; i < len(lists); i++ {
		for _, set := range sets {
			name, plain := set.target.(*nameNode)
			if !accesses(set.expr, lists[i], "") {
				if call, ok := set.expr.(*callNode); ok && plain && namespaces && call.calls("namespace") {
					for _, kw := range call.args.kw {
						if accesses(kw.val, lists[i], "") {
							add(name.name + "." + kw.name)
						}
					}
				}
				continue
			}
			if plain {
				add(name.name)
			} else if ref, ok := set.target.(*nsRefNode); ok && namespaces {
				add(ref.name + "." + ref.attr)
			} else if !namespaces {
				return nil, false
			}
		}
	}
	return lists, true
}

// contentParams returns, for each loop in a macro, the macro's parameters to which some call passes the content of one of items.
func (t *Template) contentParams(items []string) map[*forNode][]string {
	passed := map[*forNode][]string{}
	calls := all[*callNode](t.tree)
	for _, m := range all[*macroNode](t.tree) {
		var params []string
		for _, call := range calls {
			if callee, ok := call.expr.(*nameNode); ok && callee.name == m.name {
				params = append(params, m.paramsGiven(call, items)...)
			}
		}
		for _, loop := range all[*forNode](m.body) {
			if params != nil || passed[loop] == nil {
				passed[loop] = params
			}
		}
	}
	return passed
}

// paramsGiven returns the parameters to which a call passes the content of one of items.
func (m *macroNode) paramsGiven(call *callNode, items []string) (names []string) {
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
	return names
}

// calls reports whether it is a call of a function by its name.
func (c *callNode) calls(function string) bool {
	name, ok := c.expr.(*nameNode)
	return ok && name.name == function
}

// all returns the nodes of one kind in a tree.
func all[N node](tree []node) (found []N) {
	walk(func(n node) bool {
		if one, ok := n.(N); ok {
			found = append(found, one)
		}
		return true
	}, tree...)
	return found
}

// SGLangFormat is SGLang's detection (srt/parser/jinja_template_utils.py): openai if the source mentions a medium at all, or if a
// for statement iterates over the content of message, msg or m.
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

// TensorRTFormat is TensorRT-LLM's detection (inputs/content_format.py): openai if a for statement iterates over something's
// content and reads the type of its loop variable.
func (t *Template) TensorRTFormat() Format {
	return t.anyLoop(func(loop *forNode) bool {
		name, ok := loop.target.(*nameNode)
		return ok && memberOf(loop.iter, "content") != nil && !walk(func(n node) bool {
			owner, ok := memberOf(n, "type").(*nameNode)
			return !ok || owner.name != name.name
		}, loop)
	})
}

func (t *Template) anyLoop(is func(*forNode) bool) Format {
	if slices.ContainsFunc(all[*forNode](t.tree), is) {
		return FormatOpenAI
	}
	return FormatString
}

// memberOf returns x for x.key and x['key'], and nil otherwise.
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
		return accesses(x.expr, variable, key)
	case *itemNode:
		if _, ok := x.arg.(*sliceNode); ok {
			return accesses(x.expr, variable, key)
		}
	}
	if key != "" {
		n = memberOf(n, key)
	}
	if base, attr, dotted := strings.Cut(variable, "."); dotted {
		member, ok := n.(*attrNode)
		return ok && member.name == attr && accesses(member.expr, base, "")
	}
	name, ok := n.(*nameNode)
	return ok && !name.stored && name.name == variable
}

func accessesAny(n node, variables []string, key string) bool {
	return slices.ContainsFunc(variables, func(v string) bool { return accesses(n, v, key) })
}

// Uses reports whether the template reads a variable that it does not set itself (jinja2.meta.find_undeclared_variables). vLLM and
// transformers pass only such chat_template_kwargs on.
func (t *Template) Uses(name string) bool {
	return t.asked[name] && !slices.Contains(environmentGlobals, name)
}

// Mentions reports whether the source contains text. vLLM asks it about the developer role, in quotes.
func (t *Template) Mentions(text string) bool { return strings.Contains(t.source, text) }

// constString returns the value of a string literal.
func constString(n node) (string, bool) {
	k, ok := n.(*constNode)
	if !ok {
		return "", false
	}
	return k.val.str, k.val.kind == KindString
}
