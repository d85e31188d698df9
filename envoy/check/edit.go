package check

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// What marks the pieces in a file, so that Remove finds them. A line that a piece replaces stays as a comment behind was.
const (
	marksBegin = "# sightline envoy --apply: begin"
	marksEnd   = "# sightline envoy --apply: end"
	marksWas   = "# sightline envoy --apply: was "
)

var errFlow = errors.New("it is no block of lines")

// Edit returns the file with the pieces added as marked lines: all other lines stay as they are, with their comments. ok is false if
// that cannot be done, as for a part in flow style; then the text is Apply's.
func Edit(b Bootstrap, pieces []Piece) (text []byte, ok bool, err error) {
	whole, err := Apply(b, pieces)
	if err != nil || len(pieces) == 0 {
		return b.text, true, err
	}
	text = b.text
	for _, p := range inOrder(pieces) {
		edited, err := insert(text, p)
		if errors.Is(err, errFlow) {
			edited, err = rewrite(text, p)
		}
		if err != nil {
			return whole, false, nil
		}
		text = edited
	}
	var edited, applied any
	if yaml.UnmarshalWithOptions(text, &edited) != nil || yaml.UnmarshalWithOptions(whole, &applied) != nil ||
		!reflect.DeepEqual(edited, applied) {
		return whole, false, nil
	}
	return text, true, nil
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

// Diff returns what Edit has changed in b's file as a unified diff: it adds lines, and makes comments of some.
func Diff(name string, b Bootstrap, after []byte) string {
	type line struct {
		mark byte
		text string
	}
	var all []line
	before := strings.Split(string(b.text), "\n")
	for l := range strings.Lines(string(after)) {
		text := strings.TrimSuffix(l, "\n")
		_, was, replaced := strings.Cut(text, marksWas)
		switch {
		case len(before) > 0 && text == before[0]:
			all = append(all, line{' ', text})
			before = before[1:]
			continue
		case replaced && len(before) > 0 && was == before[0]:
			all = append(all, line{'-', was})
			before = before[1:]
		}
		all = append(all, line{'+', text})
	}
	const around = 3
	var out strings.Builder
	fmt.Fprintf(&out, "--- %s\n+++ %s\n", name, name)
	old, now := 1, 1
	for i := 0; i < len(all); {
		next := slices.IndexFunc(all[i:], func(l line) bool { return l.mark != ' ' })
		if next < 0 {
			break
		}
		from := max(i, i+next-around)
		old, now = old+from-i, now+from-i
		to := i + next
		for same := 0; to < len(all) && same <= 2*around; to++ { // hunks that would touch are one
			same++
			if all[to].mark != ' ' {
				same = 0
			}
		}
		for to > from && all[to-1].mark == ' ' {
			to--
		}
		to = min(to+around, len(all))
		olds, nows := 0, 0
		for _, l := range all[from:to] {
			olds += boolean(l.mark != '+')
			nows += boolean(l.mark != '-')
		}
		fmt.Fprintf(&out, "@@ -%d,%d +%d,%d @@\n", old, olds, now, nows)
		for _, l := range all[from:to] {
			fmt.Fprintf(&out, "%c%s\n", l.mark, l.text)
		}
		old, now, i = old+olds, now+nows, to
	}
	return out.String()
}

// insert adds a piece to a file as marked lines.
func insert(text []byte, p Piece) ([]byte, error) {
	file, err := parser.ParseBytes(text, 0)
	if err != nil || len(file.Docs) == 0 {
		return nil, errFlow
	}
	e := &editor{lines: strings.SplitAfter(string(text), "\n")}
	node, rest := descend(file.Docs[0].Body, p.at)
	value := p.value
	if p.How != "set" {
		if len(rest) == 0 {
			return e.addTo(node, p)
		}
		value = []any{p.value}
	} else if len(rest) == 0 {
		return e.replace(file.Docs[0].Body, p)
	}
	for i := len(rest) - 1; i > 0; i-- {
		name, ok := rest[i].(string)
		if !ok {
			return nil, errFlow
		}
		value = object(name, value)
	}
	name, ok := rest[0].(string)
	m, block := node.(*ast.MappingNode)
	if !ok || !block || m.IsFlowStyle || len(m.Values) == 0 {
		return nil, errFlow
	}
	at := m.Values[0].Key.GetToken().Position
	return e.put(e.end(at.Line, at.Column, false), at.Column, object(name, value))
}

// rewrite adds a piece within a part in flow style: the smallest member around it that has lines of its own is replaced by itself
// with the piece in it, in block style.
func rewrite(text []byte, p Piece) ([]byte, error) {
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, err
	}
	var v any
	if err := yaml.UnmarshalWithOptions(text, &v, yaml.UseOrderedMap()); err != nil {
		return nil, err
	}
	v, err = applied(v, p)
	if err != nil {
		return nil, err
	}
	for k := len(p.at); k > 0; k-- {
		if _, ok := p.at[k-1].(string); !ok {
			continue
		}
		value, ok := get(v, p.at[:k])
		if !ok {
			continue
		}
		e := &editor{lines: strings.SplitAfter(string(text), "\n")}
		if out, err := e.replace(file.Docs[0].Body, Piece{at: p.at[:k], value: value}); err == nil {
			return out, nil
		}
	}
	return nil, errFlow
}

// descend follows a path as far as the file has it.
func descend(n ast.Node, p path) (ast.Node, path) {
	for {
		switch x := n.(type) {
		case *ast.AnchorNode:
			n = x.Value
			continue
		case *ast.TagNode:
			n = x.Value
			continue
		}
		if len(p) == 0 {
			return n, nil
		}
		next := ast.Node(nil)
		switch s := p[0].(type) {
		case string:
			if v := memberNode(n, s); v != nil {
				next = v.Value
			}
		case int:
			if list, ok := n.(*ast.SequenceNode); ok && s < len(list.Values) && s >= -len(list.Values) {
				next = list.Values[(s+len(list.Values))%len(list.Values)]
			}
		}
		if next == nil {
			return n, p
		}
		n, p = next, p[1:]
	}
}

func memberNode(n ast.Node, name string) *ast.MappingValueNode {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		return nil
	}
	for _, v := range m.Values {
		if member(object(v.Key.GetToken().Value, nil), name) == 0 {
			return v
		}
	}
	return nil
}

type editor struct{ lines []string } // with their ends

// end returns the number of lines up to the end of a block that begins at a line, in a column, both from 1.
func (e *editor) end(line, column int, sequence bool) int {
	last := line
	for i := line; i < len(e.lines); i++ {
		bare := strings.TrimSpace(e.lines[i])
		indent := len(e.lines[i]) - len(strings.TrimLeft(e.lines[i], " ")) + 1
		if bare == "" || strings.HasPrefix(bare, "#") && bare != marksEnd {
			continue
		}
		if bare != marksEnd && (indent < column || sequence && indent == column && !strings.HasPrefix(bare, "-")) {
			break
		}
		if bare == marksEnd && indent < column {
			break
		}
		last = i + 1
	}
	return last
}

// addTo adds an element to a list.
func (e *editor) addTo(n ast.Node, p Piece) ([]byte, error) {
	list, ok := n.(*ast.SequenceNode)
	if !ok || list.IsFlowStyle || list.Start == nil {
		return nil, errFlow
	}
	at := list.Start.Position
	after := e.end(at.Line, at.Column, true)
	if p.before >= 0 && p.before < len(list.Values) {
		seen := 0
		for i := at.Line - 1; i < after; i++ {
			if strings.HasPrefix(e.lines[i], strings.Repeat(" ", at.Column-1)+"-") {
				if seen == p.before {
					after = i
					break
				}
				seen++
			}
		}
	}
	return e.put(after, at.Column, []any{p.value})
}

// replace puts a member in the place of one that is there.
func (e *editor) replace(root ast.Node, p Piece) ([]byte, error) {
	parent, rest := descend(root, p.at[:len(p.at)-1])
	v := memberNode(parent, last(p.at))
	if v == nil || len(rest) > 0 || parent.(*ast.MappingNode).IsFlowStyle {
		return nil, errFlow
	}
	at := v.Key.GetToken().Position
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
	text, err := yaml.MarshalWithOptions(v, yaml.IndentSequence(false))
	if err != nil {
		return nil, err
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
