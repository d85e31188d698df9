package check

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sightline-router/sightline/envoy"
)

// Missing returns what the configuration lacks, as parts of envoy.Generate's output for w. The error is Generate's.
func Missing(b Bootstrap, w Want) ([]Piece, error) {
	c := look(b, w)
	if len(c.wishes) == 0 {
		return nil, nil
	}
	o := c.want.Options
	o.OverrideHost, o.EDS, o.Pools = true, false, nil
	o.Workers = []string{"worker:8000"} // by name, so that what names need is printed; no piece lists workers
	if minor, ok := minorOf(b.Envoy); ok && o.Version == "" {
		o.Version = "1." + strconv.Itoa(max(minor, 36))
	}
	text, err := envoy.Generate(o)
	if err != nil {
		return nil, err
	}
	var printed any
	if err := yaml.UnmarshalWithOptions(text, &printed, yaml.UseOrderedMap()); err != nil {
		return nil, err
	}
	var out []Piece
	for _, w := range c.wishes {
		p := w.Piece
		v, ok := get(printed, w.from)
		if !ok {
			return nil, fmt.Errorf("the generated configuration has no %v", w.from)
		}
		if w.with != nil {
			v = w.with(v)
		}
		p.value = v
		if p.How != "set" {
			v = []any{v}
		} else {
			v = object(last(p.at), v)
		}
		if _, err := fmt.Sscanf(p.How, "add before [%d]", &p.before); err != nil {
			p.before = -1
		}
		text, err := yaml.MarshalWithOptions(v, yaml.IndentSequence(false))
		if err != nil {
			return nil, err
		}
		p.YAML = string(text)
		out = append(out, p)
	}
	return out, nil
}

// Apply returns the file with the pieces added, as YAML without its comments. b must have been read from a file.
func Apply(b Bootstrap, pieces []Piece) ([]byte, error) {
	if b.file == nil {
		return nil, errNoFile
	}
	v := b.file
	for _, p := range inOrder(pieces) {
		v = applied(v, p)
	}
	return yaml.MarshalWithOptions(v, yaml.IndentSequence(false))
}

// applied returns a copy of a file with a piece in it.
func applied(v any, p Piece) any {
	if p.How == "set" {
		return set(v, p.at, asRead(p.value))
	}
	there, _ := get(v, p.at)
	list, ok := there.([]any)
	if !ok && there != nil { // one value stands for a list of it
		list = []any{there}
	}
	at := len(list)
	if p.before >= 0 {
		at = min(p.before, at)
	}
	return set(v, p.at, slices.Insert(slices.Clone(list), at, asRead(p.value)))
}

// inOrder sorts pieces from the end, so that one added before an element does not move the places of later ones.
func inOrder(pieces []Piece) []Piece {
	ordered := slices.Clone(pieces)
	slices.SortStableFunc(ordered, func(x, y Piece) int { return boolean(x.before >= 0) - boolean(y.before >= 0) })
	return ordered
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

func last(p path) string { s, _ := p[len(p)-1].(string); return s }

// nth is a path step to the n-th element with this name in a list.
type nth struct {
	name string
	n    int
}

// object makes an object of alternating names and values.
func object(pairs ...any) yaml.MapSlice {
	var m yaml.MapSlice
	for i := 0; i+1 < len(pairs); i += 2 {
		m = append(m, yaml.MapItem{Key: pairs[i], Value: pairs[i+1]})
	}
	return m
}

// plain converts a message to objects and lists.
func plain(m proto.Message) any {
	js, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	var v any
	if err == nil {
		err = yaml.UnmarshalWithOptions(js, &v, yaml.UseOrderedMap())
	}
	if err != nil {
		return nil
	}
	return v
}

// member finds a member by its name, or by the same name in camelCase, which Envoy accepts as well; -1: none.
func member(m yaml.MapSlice, name string) int {
	return slices.IndexFunc(m, func(i yaml.MapItem) bool {
		key, _ := i.Key.(string)
		return key == name || strings.Contains(name, "_") && strings.EqualFold(key, strings.ReplaceAll(name, "_", ""))
	})
}

// holds reports whether an object is a TypedStruct, whose value has the members.
func holds(m yaml.MapSlice, name string) bool {
	i := member(m, "@type")
	if i < 0 || name == "@type" || name == "value" || name == "type_url" || member(m, "value") < 0 {
		return false
	}
	url, _ := m[i].Value.(string)
	return strings.HasSuffix(url, typedStruct)
}

// get follows a path; an index of -1 means the last element.
func get(v any, p path) (any, bool) {
	for _, step := range p {
		switch s := step.(type) {
		case string:
			m, _ := v.(yaml.MapSlice)
			if holds(m, s) {
				m, _ = m[member(m, "value")].Value.(yaml.MapSlice)
			}
			i := member(m, s)
			if i < 0 {
				return nil, false
			}
			v = m[i].Value
		case int:
			list, ok := v.([]any)
			if !ok && v != nil {
				list = []any{v}
			}
			if s < 0 {
				s += len(list)
			}
			if s < 0 || s >= len(list) {
				return nil, false
			}
			v = list[s]
		case nth:
			list, _ := v.([]any)
			seen := 0
			i := slices.IndexFunc(list, func(x any) bool {
				name, _ := get(x, path{"name"})
				if name == s.name {
					seen++
				}
				return seen > s.n
			})
			if i < 0 {
				return nil, false
			}
			v = list[i]
		}
	}
	return v, true
}

// set returns a copy of v with x at a path below it, creating missing objects; v itself is not changed.
func set(v any, p path, x any) any {
	if len(p) == 0 {
		return x
	}
	switch s := p[0].(type) {
	case string:
		m, _ := v.(yaml.MapSlice)
		m = slices.Clone(m)
		if holds(m, s) {
			i := member(m, "value")
			m[i].Value = set(m[i].Value, p, x)
			return m
		}
		if i := member(m, s); i >= 0 {
			m[i].Value = set(m[i].Value, p[1:], x)
			return m
		}
		return append(m, yaml.MapItem{Key: s, Value: set(nil, p[1:], x)})
	case int:
		list, ok := v.([]any)
		if !ok && v != nil && s == 0 {
			return set(v, p[1:], x)
		}
		if s < 0 || s >= len(list) {
			return v
		}
		list = slices.Clone(list)
		list[s] = set(list[s], p[1:], x)
		return list
	}
	return v
}
