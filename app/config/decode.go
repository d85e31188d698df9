package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/internal/document"
)

// Load reads and checks a file. Relative model directories are relative to the file's directory.
func Load(path string) (Config, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Config{}, err
	}
	dir := filepath.Dir(path)
	c, err := parse(data, dir)
	c.File = path
	if err != nil {
		return c, fmt.Errorf("%s: %w", path, err)
	}
	for i := range c.Models {
		m := &c.Models[i]
		m.Dir = absolute(dir, m.Dir)
		m.ResolveTemplate(dir)
		for j := range m.Classes {
			class := &m.Classes[j]
			class.Dir = absolute(dir, class.Dir)
			class.ResolveTemplate(dir)
		}
	}
	return c, nil
}

// Parse reads and checks YAML text. Each error names the path of its key. Relative paths of referenced files are relative to the
// working directory.
func Parse(data []byte) (Config, error) { return parse(data, "") }

func parse(data []byte, dir string) (Config, error) {
	c := Default()
	c.refs.dir = dir
	if err := decode(data, &c, &c.refs); err != nil {
		return c, c.Hide(err)
	}
	return c, c.Hide(c.check())
}

// UnmarshalYAML starts from the engine's defaults, and for each class from the model's values.
func (m *Model) UnmarshalYAML(decode func(any) error) error {
	type plain Model // without this method
	own := plain{Server: engine.DefaultServer(), EngineOrder: "auto"}
	var given map[string]deferredValue
	if err := errors.Join(decode(&own), decode(&given)); err != nil {
		return err
	}
	own.DefaultsOf(func(key string) bool { return given[key].decode != nil })
	*m = Model(own)
	var classes []deferredValue
	if read := given["classes"].decode; read != nil {
		if err := read(&classes); err != nil {
			return err
		}
	}
	for i, class := range classes {
		m.Classes[i] = m.own()
		if class.decode == nil { // null
			continue
		}
		var given map[string]any
		if err := errors.Join(class.decode(&m.Classes[i]), class.decode(&given)); err != nil {
			return err
		}
		_, size := given["block_size"]
		_, other := given["engine"] // the model's block size is another engine's
		m.Classes[i].BlockSizeGiven = size || m.BlockSizeGiven && !other
	}
	return nil
}

// deferredValue is a value that is decoded once its target is known. decode is nil for null.
type deferredValue struct{ decode func(any) error }

// UnmarshalYAML keeps the decoder for later.
func (l *deferredValue) UnmarshalYAML(decode func(any) error) error {
	l.decode = decode
	return nil
}

// Set sets one key of a model from a value written as YAML, as `--set key=value` does. Dashes in the key count as underscores, so
// that an engine's flag name can be used as it is.
func (m *Model) Set(assignment string) error {
	key, value, ok := strings.Cut(assignment, "=")
	if !ok {
		return fmt.Errorf("%q: want key=value", assignment)
	}
	key = strings.ReplaceAll(strings.TrimLeft(key, "-"), "-", "_")
	var v any
	if err := yaml.Unmarshal([]byte(value), &v); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	data, err := yaml.Marshal(map[string]any{key: v})
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	type plain Model // omitted keys stay unchanged
	return decode(data, (*plain)(m), nil)
}

// decode reads YAML text into v, which holds the defaults. refs, if not nil, collects the references in values.
func decode(data []byte, v any, refs *references) error {
	data = bytes.TrimPrefix(data, []byte("\ufeff")) // some editors put it there
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		return errors.New("the file: not text in UTF-8 (want YAML in UTF-8)")
	}
	// The reader below takes more than linear time for what is nested deep; small texts have its own words for what is wrong.
	if _, err := document.Parse(data); err != nil && (len(data) > 1<<16 || errors.Is(err, document.ErrSize)) {
		return fmt.Errorf("the file: %w", err)
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return firstLine(err)
	}
	docs := slices.DeleteFunc(file.Docs, func(d *ast.DocumentNode) bool { return d.Body == nil || d.Body.Type() == ast.DirectiveType })
	switch {
	case len(docs) == 0:
		return nil
	case len(docs) > 1:
		return fmt.Errorf("[%d:1] a second YAML document, after --- or ... (want all keys in one)", docs[1].Body.GetToken().Position.Line)
	}
	root := docs[0].Body
	if refs != nil {
		root, err = refs.resolve(root)
		if err != nil {
			return err
		}
	}
	if err := takeFixed(root, v); err != nil {
		return err
	}
	var tree any
	if err := yaml.NodeToValue(root, &tree); err != nil {
		return firstLine(err)
	}
	if err := checkKeys(tree, reflect.TypeOf(v).Elem(), ""); err != nil || tree == nil {
		return err
	}
	return yaml.NodeToValue(root, v, times)
}

// firstLine removes the excerpt of the file that the YAML reader adds.
func firstLine(err error) error {
	line, _, _ := strings.Cut(err.Error(), "\n")
	if strings.HasSuffix(line, "value is not allowed in this context") {
		line += " (want \"key: value\", indented as the keys beside it)"
	}
	return errors.New(line)
}

// times reads times such as 20s, and a plain 0, which needs no unit. Whether a key accepts 0 is checked by its range.
var times = yaml.CustomUnmarshaler(func(d *time.Duration, text []byte) error {
	var given any
	err := yaml.Unmarshal(text, &given)
	if given != nil && err == nil {
		*d, err = time.ParseDuration(fmt.Sprint(given))
	}
	return err
})

// checkKeys reports, by its path, each key of a tree that the type lacks or whose value the type cannot hold.
func checkKeys(tree any, t reflect.Type, path string) error {
	var all []error
	switch node := tree.(type) {
	case nil: // a key without a value counts as missing
		return nil
	case map[string]any:
		if t.Kind() != reflect.Struct {
			break
		}
		fields := fieldsOf(t)
		for _, key := range slices.Sorted(maps.Keys(node)) {
			at := strings.TrimPrefix(path+"."+key, ".")
			ft, ok := fields[key]
			if !ok {
				all = append(all, fmt.Errorf("%s: %s", at, unknown(at, fields)))
				continue
			}
			all = append(all, checkKeys(node[key], ft, at))
		}
		return errors.Join(all...)
	case []any:
		if t.Kind() != reflect.Slice {
			break
		}
		for i, e := range node {
			all = append(all, checkKeys(e, t.Elem(), fmt.Sprintf("%s[%d]", path, i)))
		}
		return errors.Join(all...)
	}
	if t.Kind() == reflect.Struct && t.Field(0).Tag.Get("yaml") == "url" { // its former form was a single value, which may hold a password
		return fmt.Errorf("%s: one value, where keys and values are expected (want url, such as {url: nats://10.0.0.4:4222})", path)
	}
	text, err := yaml.Marshal(tree)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	v := reflect.New(t).Interface()
	err = yaml.UnmarshalWithOptions(text, v, times)
	if err == nil {
		return nil
	}
	if own, ok := v.(yaml.BytesUnmarshaler); ok { // its own error says what is expected
		return fmt.Errorf("%s: %w", path, own.UnmarshalYAML(text))
	}
	if path == "" { // maybe another file, such as one with a secret
		text = text[:min(len(text), 40)]
	}
	return fmt.Errorf("%s: %s is not a valid value (want %s)", cmp.Or(path, "the file"), strings.TrimSpace(string(text)), wanted[t.Kind()])
}

// wanted describes the values of a kind.
var wanted = map[reflect.Kind]string{reflect.Bool: "true or false", reflect.Int: "a whole number", reflect.Float64: "a number",
	reflect.Int64: "a time such as 20s", reflect.String: "a text", reflect.Slice: "a list", reflect.Struct: "keys and values",
	reflect.Map: "keys and values"}

func fieldsOf(t reflect.Type) map[string]reflect.Type {
	out := make(map[string]reflect.Type)
	for i := range t.NumField() {
		f := t.Field(i)
		name, opt, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if opt == "inline" {
			maps.Copy(out, fieldsOf(f.Type))
		} else if name != "" && name != "-" {
			out[name] = f.Type
		}
	}
	return out
}

// unknown describes an unknown key, by its path, and suggests the nearest one.
func unknown(path string, fields map[string]reflect.Type) string {
	if what := noLonger(path); what != "" {
		return "no longer a key: " + what
	}
	key := path[strings.LastIndexByte(path, '.')+1:]
	best, dist := "", 3
	if len(key) > 8 {
		dist = 4
	}
	for _, f := range slices.Sorted(maps.Keys(fields)) {
		if d := distance(key, f); d < dist {
			best, dist = f, d
		}
	}
	if best == "" {
		if at := placesOf(key, reflect.TypeFor[Config](), ""); len(at) > 0 {
			return fmt.Sprintf("unknown key here (it belongs at %s)", strings.Join(at[:min(len(at), 3)], " or "))
		}
		return "unknown key"
	}
	return fmt.Sprintf("unknown key (did you mean %s?)", best)
}

// placesOf returns the paths at which a type has a key of this name, such as models[].block_size.
func placesOf(key string, t reflect.Type, path string) (at []string) {
	for t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer {
		if t.Kind() == reflect.Slice {
			path += "[]"
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	fields := fieldsOf(t)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		below := strings.TrimPrefix(path+"."+name, ".")
		if name == key {
			at = append(at, below)
		}
		at = append(at, placesOf(key, fields[name], below)...)
	}
	return at
}

// distance returns the edit distance of a and b: how many letters must be changed, added, removed or swapped with the next one.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1) // rows[i][j] is the distance of a[:i] and b[:j]
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				cost++
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cost = min(cost, rows[i-2][j-2]+1)
			}
			rows[i][j] = min(cost, rows[i-1][j]+1, rows[i][j-1]+1)
		}
	}
	return rows[len(a)][len(b)]
}
