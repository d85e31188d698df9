// Package document parses YAML and JSON texts at a cost that is linear in their length, whoever wrote them:
//
//	root, err := document.Parse(text)   // nodes with lines and columns; the error names a line
package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds of a text: its bytes, how deep its objects and lists are nested, and its nodes, both with aliases followed. Envoy 1.40 reads
// 100 levels; a file with 20,000 clusters has a million nodes.
const (
	maxBytes = 64 << 20
	maxDepth = 128
	maxNodes = 4 << 20
)

// ErrSize is what errors wrap of a text that is too large or too deep.
var ErrSize = errors.New("too much for one file")

// Parse returns the root of a text's first document; nil: there is none. Aliases are not expanded, but what they would become is
// bounded. A text that is too large or too deep is refused before anything else is made of it.
func Parse(text []byte) (*yaml.Node, error) {
	if len(text) > maxBytes {
		return nil, fmt.Errorf("%w: %d bytes, want %d at most", ErrSize, len(text), maxBytes)
	}
	if bytes.IndexByte(text, '\t') >= 0 && json.Valid(text) { // JSON may be indented by tabs, YAML may not
		text = bytes.ReplaceAll(text, []byte("\t"), []byte(" "))
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		says := strings.TrimPrefix(err.Error(), "yaml: ")
		if strings.Contains(says, "max depth") { // the parser's own limit, 10,000
			return nil, fmt.Errorf("%w: %s", ErrSize, says)
		}
		return nil, errors.New(says)
	}
	if len(doc.Content) == 0 {
		return nil, nil
	}
	m := &measure{known: map[*yaml.Node]extent{}}
	_, err := m.of(doc.Content[0])
	return doc.Content[0], err
}

// extent is how many nodes and levels there are from a node on.
type extent struct{ nodes, depth int }

type measure struct {
	known map[*yaml.Node]extent // of anchors; depth -1: it is being measured
}

func (m *measure) of(n *yaml.Node) (e extent, err error) {
	if n.Kind == yaml.AliasNode {
		e, ok := m.known[n.Alias]
		if !ok || e.depth < 0 {
			return e, fmt.Errorf("line %d: *%s stands within its own anchor", n.Line, n.Value)
		}
		return e, nil
	}
	if n.Anchor != "" {
		m.known[n] = extent{depth: -1}
	}
	e = extent{1, 1}
	for _, below := range n.Content {
		b, err := m.of(below)
		if err != nil {
			return e, err
		}
		e = extent{e.nodes + b.nodes, max(e.depth, 1+b.depth)}
		if e.nodes > maxNodes {
			return e, fmt.Errorf("line %d: %w: more than %d nodes with its aliases", below.Line, ErrSize, maxNodes)
		}
		if e.depth > maxDepth {
			return e, fmt.Errorf("line %d: %w: nested deeper than %d levels", below.Line, ErrSize, maxDepth)
		}
	}
	if n.Anchor != "" {
		m.known[n] = e
	}
	return e, nil
}
