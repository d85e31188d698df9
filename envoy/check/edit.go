package check

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	goccy "github.com/goccy/go-yaml"
	"go.yaml.in/yaml/v3"

	"github.com/sightline-router/sightline/internal/document"
)

// What marks the pieces in a file, so that Remove finds them. A line that a piece replaces stays as a comment behind was.
const (
	marksBegin = "# sightline envoy --apply: begin"
	marksEnd   = "# sightline envoy --apply: end"
	marksWas   = "# sightline envoy --apply: was "
)

var (
	errFlow   = errors.New("it is no block of lines")
	errNoFile = errors.New("a running Envoy's configuration cannot be written back: give its envoy.yaml")
)

// Edit returns the file with the pieces added as marked lines: all other lines stay as they are, with their comments and anchors. ok is
// false if that cannot be done, as for JSON in one line; then the text is Apply's. The error says which anchor is in the way.
func Edit(b Bootstrap, pieces []Piece) (text []byte, ok bool, err error) {
	if b.file == nil {
		return nil, false, errNoFile
	}
	wanted := b.file
	for _, p := range inOrder(pieces) {
		wanted = applied(wanted, p)
	}
	for _, detach := range []bool{false, true} { // a change below an anchor is for all of its places, or for one
		text, err = b.text, nil
		for _, p := range inOrder(pieces) {
			text, err = add(text, p, detach)
			if err != nil {
				break
			}
		}
		if err != nil {
			continue
		}
		if root, err := document.Parse(text); err == nil && (len(pieces) == 0 || reflect.DeepEqual(treeOf(root), wanted)) {
			return text, true, nil
		}
	}
	return refuse(b, pieces)
}

// refuse returns the file as Apply writes it, or if it has anchors, which it would lose, an error.
func refuse(b Bootstrap, pieces []Piece) ([]byte, bool, error) {
	root, err := document.Parse(b.text)
	if err != nil {
		return nil, false, err
	}
	if at := anchorIn(root); at != nil {
		return nil, false, fmt.Errorf("line %d: &%s is in the way of what is to be added: "+
			"write it out at one of them, or add by hand what --for prints", at.Line, at.Anchor)
	}
	whole, err := Apply(b, pieces)
	return whole, false, err
}

func anchorIn(n *yaml.Node) *yaml.Node {
	if n.Anchor != "" {
		return n
	}
	for _, below := range n.Content {
		if at := anchorIn(below); at != nil {
			return at
		}
	}
	return nil
}

// add returns a text with a piece in it. It is there already if it was added below an anchor that this place uses, too. With detach the
// anchor's other places keep what they have.
func add(text []byte, p Piece, detach bool) ([]byte, error) {
	root, err := document.Parse(text)
	if err != nil {
		return nil, err
	}
	if anchorIn(root) != nil {
		there, _ := get(treeOf(root), p.at)
		list, _ := there.([]any)
		has := func(v any) bool { return reflect.DeepEqual(v, asRead(p.value)) }
		if p.How == "set" && has(there) || p.How != "set" && slices.ContainsFunc(list, has) {
			return text, nil
		}
	}
	e := &editor{lines: strings.SplitAfter(string(text), "\n"), root: root, detach: detach}
	edited, err := e.insert(p)
	if errors.Is(err, errFlow) {
		edited, err = e.rewrite(applied(treeOf(root), p), p)
	}
	return edited, err
}

// asRead returns a value as it is read once it is written.
func asRead(v any) any {
	text, err := goccy.Marshal(v)
	if err != nil {
		return v
	}
	root, err := document.Parse(text)
	if err != nil || root == nil {
		return v
	}
	return treeOf(root)
}

// Remove returns the file without the pieces that Edit has added, as it was before, and whether there were any.
func Remove(text []byte) (out []byte, were bool) {
	for out = text; ; were = true {
		next, n := removeOnce(out)
		if n == 0 {
			return out, were
		}
		out = next // what a piece has replaced may have had another one in it
	}
}

func removeOnce(text []byte) (out []byte, n int) {
	inside, noEnd := false, false
	for line := range bytes.Lines(text) {
		bare := strings.TrimSpace(string(line))
		switch {
		case strings.HasPrefix(bare, marksBegin):
			inside, noEnd = true, noEnd || bare != marksBegin
			n++
		case bare == marksEnd:
			inside = false
		case strings.HasPrefix(bare, strings.TrimSpace(marksWas)):
			_, was, _ := bytes.Cut(line, []byte(marksWas))
			out = append(out, was...)
		case !inside:
			out = append(out, line...)
		}
	}
	if noEnd {
		out = bytes.TrimSuffix(out, []byte("\n"))
	}
	return out, n
}

type editor struct {
	lines  []string // with their ends
	root   *yaml.Node
	detach bool
	anchor string // of the member that is replaced
}

// insert adds a piece as marked lines.
func (e *editor) insert(p Piece) ([]byte, error) {
	if e.shared(p.at) {
		return nil, errFlow
	}
	node, rest := descend(e.root, p.at)
	value := p.value
	if p.How != "set" {
		if len(rest) == 0 {
			return e.addTo(node, p)
		}
		value = []any{p.value}
	} else if len(rest) == 0 {
		return e.replace(p)
	}
	for i := len(rest) - 1; i > 0; i-- {
		name, ok := rest[i].(string)
		if !ok {
			return nil, errFlow
		}
		value = object(name, value)
	}
	name, ok := rest[0].(string)
	if !ok || node.Kind != yaml.MappingNode || node.Style&yaml.FlowStyle != 0 || len(node.Content) == 0 {
		return nil, errFlow
	}
	first := node.Content[0]
	return e.put(e.end(first.Line, first.Column, false), first.Column, object(name, value))
}

// shared reports whether a place that must not be shared stands at an anchor or below it.
func (e *editor) shared(at path) bool {
	for k := range at {
		if n, rest := descend(e.root, at[:k+1]); e.detach && len(rest) == 0 && n.Anchor != "" {
			return true
		}
	}
	return false
}

// rewrite adds a piece within a part in flow style, or one that an alias brings: the smallest member around it that has lines of its own
// is replaced by itself with the piece in it, in block style. v is the file with the piece.
func (e *editor) rewrite(v any, p Piece) ([]byte, error) {
	for k := len(p.at); k > 0; k-- {
		if _, ok := p.at[k-1].(string); !ok {
			continue
		}
		value, ok := get(v, p.at[:k])
		if !ok {
			continue
		}
		if out, err := e.replace(Piece{at: p.at[:k], value: value}); err == nil {
			return out, nil
		}
	}
	return nil, errFlow
}

// descend follows a path as far as the file has it, but no alias.
func descend(n *yaml.Node, p path) (*yaml.Node, path) {
	for len(p) > 0 {
		next := (*yaml.Node)(nil)
		switch s := p[0].(type) {
		case string:
			if url := memberNode(n, "@type"); url != nil && strings.HasSuffix(url.Value, typedStruct) && s != "@type" {
				if inner := memberNode(n, "value"); inner != nil {
					n = inner
				}
			}
			next = memberNode(n, s)
		case int:
			switch {
			case n.Kind == yaml.SequenceNode && s < len(n.Content) && s >= -len(n.Content):
				next = n.Content[(s+len(n.Content))%len(n.Content)]
			case n.Kind == yaml.MappingNode && (s == 0 || s == -1): // one value stands for a list of it
				next = n
			}
		}
		if next == nil {
			return n, p
		}
		n, p = next, p[1:]
	}
	return n, p
}

// keyNode returns the key of a member.
func keyNode(n *yaml.Node, name string) (key, value *yaml.Node) {
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if k := n.Content[i]; k.Tag != "!ignore" && member(object(k.Value, nil), name) == 0 {
			return k, n.Content[i+1]
		}
	}
	return nil, nil
}

func memberNode(n *yaml.Node, name string) *yaml.Node { _, value := keyNode(n, name); return value }

// end returns the number of lines up to the end of a block that begins at a line, in a column, both from 1.
func (e *editor) end(line, column int, sequence bool) int {
	last := line
	for i := line; i < len(e.lines); i++ {
		bare := strings.TrimSpace(e.lines[i])
		indent := len(e.lines[i]) - len(strings.TrimLeft(e.lines[i], " ")) + 1
		if bare == "" || strings.HasPrefix(bare, "#") && bare != marksEnd {
			continue
		}
		if indent < column || bare != marksEnd && sequence && indent == column && !strings.HasPrefix(bare, "-") {
			break
		}
		last = i + 1
	}
	return last
}

// addTo adds an element to a list.
func (e *editor) addTo(list *yaml.Node, p Piece) ([]byte, error) {
	if list.Kind != yaml.SequenceNode || list.Style&yaml.FlowStyle != 0 || len(list.Content) == 0 {
		return nil, errFlow
	}
	first := list.Content[0]
	column := 1 + strings.LastIndexByte(e.lines[first.Line-1][:first.Column-1], '-')
	if column == 0 {
		return nil, errFlow
	}
	after := e.end(first.Line, column, true)
	if p.before >= 0 && p.before < len(list.Content) {
		seen := 0
		for i := first.Line - 1; i < after; i++ {
			if strings.HasPrefix(e.lines[i], strings.Repeat(" ", column-1)+"-") {
				if seen == p.before {
					after = i
					break
				}
				seen++
			}
		}
	}
	return e.put(after, column, []any{p.value})
}

// replace puts a member in the place of one that is there.
func (e *editor) replace(p Piece) ([]byte, error) {
	parent, rest := descend(e.root, p.at[:len(p.at)-1])
	at, old := keyNode(parent, last(p.at))
	if at == nil || len(rest) > 0 || parent.Style&yaml.FlowStyle != 0 || e.shared(p.at[:len(p.at)-1]) {
		return nil, errFlow
	}
	first := e.lines[at.Line-1]
	if strings.TrimLeft(first[:at.Column-1], " ") != "" { // "- key:", which cannot be a comment
		return nil, errFlow
	}
	end := e.end(at.Line, at.Column, true) // a list may be in the member's own column
	if strings.TrimSpace(e.lines[end-1]) == marksEnd && e.marked(at.Line-1) {
		end-- // of the piece that the member is the last of
	}
	var was []string
	for _, line := range e.lines[at.Line-1 : end] {
		was = append(was, marksWas+line)
	}
	e.lines = slices.Replace(e.lines, at.Line-1, end)
	e.anchor = old.Anchor
	if e.detach && e.anchor != "" { // Envoy reads no member whose key is tagged so
		e.anchor = ""
		was = append(was, first[:at.Column-1]+"!ignore sightline_"+old.Anchor+first[at.Column-1+len(at.Value):])
		for _, line := range was[1 : len(was)-1] {
			was = append(was, strings.TrimPrefix(line, marksWas))
		}
	}
	return e.put(at.Line-1, at.Column, object(last(p.at), p.value), was...)
}

// marked reports whether what is put behind the first after lines is within a piece.
func (e *editor) marked(after int) (inside bool) {
	for _, line := range e.lines[:after] {
		bare := strings.TrimSpace(line)
		inside = strings.HasPrefix(bare, marksBegin) || inside && bare != marksEnd
	}
	return inside
}

// put puts a value behind the first after lines, in a column, and lines of comment before it.
func (e *editor) put(after, column int, v any, was ...string) ([]byte, error) {
	text, err := goccy.MarshalWithOptions(v, goccy.IndentSequence(false))
	if err != nil {
		return nil, err
	}
	if name, rest, ok := bytes.Cut(text, []byte(":")); ok && e.anchor != "" {
		text = fmt.Appendf(nil, "%s: &%s%s", name, e.anchor, rest)
	}
	indent, begin := strings.Repeat(" ", column-1), marksBegin
	if after > 0 && !strings.HasSuffix(e.lines[after-1], "\n") {
		e.lines[after-1] += "\n"
		begin += ", the file had no end of line"
	}
	var add []string
	for line := range strings.Lines(string(text)) {
		add = append(add, indent+line)
	}
	if !e.marked(after) { // else it is within another piece, which goes as a whole
		add = slices.Concat([]string{indent + begin + "\n"}, was, add, []string{indent + marksEnd + "\n"})
	}
	return []byte(strings.Join(slices.Insert(e.lines, after, add...), "")), nil
}
