package check

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	goccy "github.com/goccy/go-yaml"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// How Envoy reads YAML, by Envoy 1.40's source/common/protobuf/yaml_utility.cc and protobuf's json/internal/parser.cc: more than
// proto3 JSON and the YAML standard allow. Members and values that are not known here are left out, as a newer Envoy may have them.

// scalarOf returns what a scalar is: nil, a bool, an int64 or a string. Only plain ones are no strings; fractions are strings, too.
func scalarOf(n *yaml.Node) any {
	v := n.Value
	if n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
		return v
	}
	lower := strings.ToLower(v)
	if v == lower || v == strings.ToUpper(v) || v[1:] == lower[1:] {
		switch lower {
		case "", "~", "null":
			return nil
		case "y", "yes", "true", "on":
			return true
		case "n", "no", "false", "off":
			return false
		}
	}
	digits, base := strings.TrimLeft(lower, "+-"), 10
	if rest, hex := strings.CutPrefix(digits, "0x"); hex {
		digits, base = rest, 16
	} else if len(digits) > 1 && digits[0] == '0' {
		base = 8
	}
	if n, err := strconv.ParseInt(digits, base, 64); err == nil && len(lower)-len(strings.TrimLeft(lower, "+-")) <= 1 {
		if lower[0] == '-' {
			n = -n
		}
		return n
	}
	return v
}

// target follows an alias.
func target(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// members calls do for each member of an object that Envoy reads.
func members(n *yaml.Node, do func(key, value *yaml.Node) error) error {
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := target(n.Content[i])
		if key.Tag == "!ignore" {
			continue
		}
		if err := do(key, target(n.Content[i+1])); err != nil {
			return err
		}
	}
	return nil
}

// treeOf returns objects, lists and scalars with aliases expanded.
func treeOf(n *yaml.Node) any {
	switch n = target(n); n.Kind {
	case yaml.MappingNode:
		m := goccy.MapSlice{}
		_ = members(n, func(key, value *yaml.Node) error { // it fails as do does
			m = append(m, goccy.MapItem{Key: key.Value, Value: treeOf(value)})
			return nil
		})
		return m
	case yaml.SequenceNode:
		list := []any{}
		for _, e := range n.Content {
			list = append(list, treeOf(e))
		}
		return list
	}
	return scalarOf(n)
}

// wrong says what stands at a place instead of what is wanted.
func wrong(n *yaml.Node, at path, want string) error {
	got := map[yaml.Kind]string{yaml.MappingNode: "an object", yaml.SequenceNode: "a list"}[n.Kind]
	if n.Kind == yaml.ScalarNode {
		got = strconv.Quote(n.Value[:min(len(n.Value), 40)])
		if _, text := scalarOf(n).(string); !text {
			got = strings.Trim(got, `"`)
		}
	}
	return fmt.Errorf("line %d: %s: %s, want %s", n.Line, cmp.Or(at.String(), "the file"), got, want)
}

// fill sets a message's fields as a node has them.
func fill(m protoreflect.Message, n *yaml.Node, at path) error {
	switch name := m.Descriptor().FullName(); name {
	case "google.protobuf.Any":
		return fillAny(m, n, at)
	case "google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue":
		return fillJSON(m, n, at, "a value")
	case "google.protobuf.Duration":
		if n.Kind == yaml.ScalarNode {
			return fillJSON(m, n, at, "a time in seconds, such as 0.25s")
		}
	default:
		if value := m.Descriptor().Fields().ByName("value"); n.Kind == yaml.ScalarNode && value != nil && name.Parent() == "google.protobuf" {
			v, ok, err := single(value, n, at)
			if ok {
				m.Set(value, v)
			}
			return err
		}
	}
	if n.Kind != yaml.MappingNode {
		return wrong(n, at, "an object")
	}
	return members(n, func(key, value *yaml.Node) error { return fillField(m, key, value, at.to(key.Value)) })
}

func fillField(m protoreflect.Message, key, n *yaml.Node, at path) error {
	if key.Value == "<<" {
		return fmt.Errorf("line %d: %v: Envoy does not merge objects by <<: write its members out", key.Line, at)
	}
	field := m.Descriptor().Fields().ByName(protoreflect.Name(key.Value))
	if field == nil {
		field = m.Descriptor().Fields().ByJSONName(key.Value)
	}
	if field == nil || n.Kind == yaml.ScalarNode && scalarOf(n) == nil {
		return nil
	}
	switch {
	case field.IsMap():
		if n.Kind != yaml.MappingNode {
			return wrong(n, at, "an object")
		}
		to := m.Mutable(field).Map()
		return members(n, func(key, value *yaml.Node) error {
			name := &yaml.Node{Kind: yaml.ScalarNode, Style: yaml.DoubleQuotedStyle, Value: key.Value, Line: key.Line}
			k, ok, err := single(field.MapKey(), name, at)
			if !ok {
				return err
			}
			v, ok, err := element(to.NewValue(), field.MapValue(), value, at.to(key.Value))
			if ok {
				to.Set(k.MapKey(), v)
			}
			return err
		})
	case field.IsList():
		to, all := m.Mutable(field).List(), n.Content
		if n.Kind != yaml.SequenceNode { // one value stands for a list of it
			all = []*yaml.Node{n}
		}
		for i, e := range all {
			v, ok, err := element(to.NewElement(), field, target(e), at.to(i))
			if err != nil {
				return err
			}
			if ok {
				to.Append(v)
			}
		}
		return nil
	}
	v, ok, err := element(m.NewField(field), field, n, at)
	if ok {
		m.Set(field, v)
	}
	return err
}

// element returns a field's value; ok is false if it is left out.
func element(fresh protoreflect.Value, field protoreflect.FieldDescriptor, n *yaml.Node, at path) (protoreflect.Value, bool, error) {
	if field.Message() == nil {
		return single(field, n, at)
	}
	if n.Kind == yaml.ScalarNode && scalarOf(n) == nil {
		return fresh, true, nil // null in a list is an empty element
	}
	return fresh, true, fill(fresh.Message(), n, at)
}

// single returns a scalar as its field's type.
func single(field protoreflect.FieldDescriptor, n *yaml.Node, at path) (v protoreflect.Value, ok bool, err error) {
	if n.Kind != yaml.ScalarNode {
		return v, false, wrong(n, at, "a "+field.Kind().String())
	}
	is := scalarOf(n)
	text, quoted := is.(string)
	number, whole := is.(int64)
	if quoted {
		if f, err := strconv.ParseFloat(text, 64); err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<63 && !strings.Contains(text, "_") {
			number, whole = int64(f), true
			if exact, err := strconv.ParseInt(text, 10, 64); err == nil {
				number = exact
			}
		}
	}
	switch kind := field.Kind(); kind {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(text), quoted, unless(quoted, n, at, "a text; in quotes, if it looks like a number or yes and no")
	case protoreflect.BytesKind:
		raw, err := base64.RawStdEncoding.DecodeString(strings.NewReplacer("-", "+", "_", "/", "=", "").Replace(text))
		return protoreflect.ValueOfBytes(raw), err == nil && quoted, unless(err == nil && quoted, n, at, "bytes in base64")
	case protoreflect.BoolKind:
		b, ok := is.(bool)
		if word := strings.ToLower(text); quoted {
			b = slices.Contains([]string{"true", "t", "yes", "y", "1"}, word)
			ok = b || slices.Contains([]string{"false", "f", "no", "n", "0"}, word)
		}
		return protoreflect.ValueOfBool(b), ok, unless(ok, n, at, "true or false")
	case protoreflect.EnumKind:
		for i := range field.Enum().Values().Len() {
			if e := field.Enum().Values().Get(i); strings.EqualFold(string(e.Name()), text) {
				return protoreflect.ValueOfEnum(e.Number()), true, nil
			}
		}
		return protoreflect.ValueOfEnum(protoreflect.EnumNumber(number)), whole, nil
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		f, err := strconv.ParseFloat(fmt.Sprint(is), 64)
		if kind == protoreflect.FloatKind {
			return protoreflect.ValueOfFloat32(float32(f)), err == nil, unless(err == nil, n, at, "a number")
		}
		return protoreflect.ValueOfFloat64(f), err == nil, unless(err == nil, n, at, "a number")
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		ok = whole && number == int64(int32(number))
		return protoreflect.ValueOfInt32(int32(number)), ok, unless(ok, n, at, "a whole number")
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		ok = whole && number == int64(uint32(number))
		return protoreflect.ValueOfUint32(uint32(number)), ok, unless(ok, n, at, "a whole number from 0 to 4294967295")
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(number), whole, unless(whole, n, at, "a whole number")
	default: // of 64 bits without a sign
		large, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			large = uint64(max(number, 0))
		}
		ok = err == nil || whole && number >= 0
		return protoreflect.ValueOfUint64(large), ok, unless(ok, n, at, "a whole number from 0")
	}
}

func unless(ok bool, n *yaml.Node, at path, want string) error {
	if ok {
		return nil
	}
	return wrong(n, at, want)
}

// fillJSON reads a message whose JSON is not its fields.
func fillJSON(m protoreflect.Message, n *yaml.Node, at path, want string) error {
	js, err := json.Marshal(values(treeOf(n)))
	if err == nil {
		err = protojson.Unmarshal(js, m.Interface())
	}
	return unless(err == nil, n, at, want)
}

// values returns a tree with maps for its objects.
func values(v any) any {
	switch v := v.(type) {
	case goccy.MapSlice:
		m := map[string]any{}
		for _, i := range v {
			m[fmt.Sprint(i.Key)] = values(i.Value)
		}
		return m
	case []any:
		list := []any{}
		for _, e := range v {
			list = append(list, values(e))
		}
		return list
	}
	return v
}

// fillAny reads an extension's configuration: a message of the type that @type names, or that a TypedStruct does.
func fillAny(m protoreflect.Message, n *yaml.Node, at path) error {
	if n.Kind != yaml.MappingNode {
		return wrong(n, at, "an object with @type")
	}
	url, body := memberOf(n, "@type"), n
	if url != nil && strings.HasSuffix(url.Value, typedStruct) {
		url, body = memberOf(n, "type_url"), memberOf(n, "value")
	}
	if url == nil {
		return nil
	}
	m.Set(m.Descriptor().Fields().ByName("type_url"), protoreflect.ValueOfString(url.Value))
	kind, err := protoregistry.GlobalTypes.FindMessageByURL(url.Value)
	if err != nil || body == nil {
		return nil // an extension that is not linked in: only its name is kept
	}
	if kind.Descriptor().ParentFile().Package() == "google.protobuf" {
		body = memberOf(n, "value")
	}
	inner := kind.New()
	if body != nil {
		if err := fill(inner, body, at); err != nil {
			return err
		}
	}
	raw, err := proto.Marshal(inner.Interface())
	m.Set(m.Descriptor().Fields().ByName("value"), protoreflect.ValueOfBytes(raw))
	return err
}

// typedStruct ends the names of both messages that hold another one as a Struct: xds.type.v3.TypedStruct and udpa.type.v1.TypedStruct.
const typedStruct = ".TypedStruct"

func memberOf(n *yaml.Node, name string) (value *yaml.Node) {
	_ = members(n, func(key, v *yaml.Node) error {
		if member(object(key.Value, nil), name) == 0 {
			value = v
		}
		return nil
	})
	return value
}
