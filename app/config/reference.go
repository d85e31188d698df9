package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/sightline-router/sightline/internal/secure"
)

// A value may refer to an environment variable, ${env:NAME}, or to a file, ${file:/path}, as a whole or in part; $${ is a literal
// ${. References are replaced in the tree parsed from the YAML text, before any key is read. The values are never printed: errors
// and the effective configuration show the reference.

// maxReferenced bounds the size of a referenced file.
const maxReferenced = 64 << 10

// references are the references of one configuration file.
type references struct {
	dir   string     // relative paths of files are relative to this
	found []referred // the resolved values
	Files []string   // the referenced files
	errs  []error
}

// referred is a text that a reference was resolved to.
type referred struct {
	path  string // the key's
	shown string // as written in the file
	value string
	whole bool // it is the whole value of the key
}

// resolve replaces the references in the tree.
func (r *references) resolve(root ast.Node) (ast.Node, error) {
	root = eachScalar(root, "", func(n ast.Node, path string) ast.Node {
		var text string
		switch n := n.(type) {
		case *ast.StringNode:
			text = n.Value
		case *ast.LiteralNode:
			text = n.Value.Value
		}
		if !strings.Contains(text, "${") {
			return n
		}
		value, refers := r.expand(text, path)
		if refers {
			r.found = append(r.found, referred{path, text, value, true})
		}
		return scalar(n, value, refers && text[0] == '$' && strings.IndexByte(text, '}') == len(text)-1)
	})
	// Longest first, so that a text contained in another one is not replaced within it.
	slices.SortStableFunc(r.found, func(a, b referred) int { return cmp.Compare(len(b.value), len(a.value)) })
	return root, errors.Join(r.errs...)
}

// expand returns a text with its references replaced, and whether it has any.
func (r *references) expand(text, path string) (out string, refers bool) {
	for {
		at := strings.Index(text, "${")
		if at < 0 {
			return out + text, refers
		}
		if at > 0 && text[at-1] == '$' {
			out, text = out+text[:at-1]+"${", text[at+2:]
			continue
		}
		inner, rest, closed := strings.Cut(text[at+2:], "}")
		value, err := r.read(inner)
		if !closed {
			err = errors.New("${ without a } behind it (want $${ for a plain ${)")
		}
		if err != nil {
			r.errs = append(r.errs, fmt.Errorf("%s: %w", path, err))
			return "", false
		}
		r.found = append(r.found, referred{path, "${" + inner + "}", value, false})
		out, text, refers = out+text[:at]+value, rest, true
	}
}

// read returns the value of a reference.
func (r *references) read(inner string) (string, error) {
	form, name, _ := strings.Cut(inner, ":")
	switch {
	case form == "env" && name != "":
		value, given := os.LookupEnv(name)
		if !given {
			return "", fmt.Errorf("${%s}: there is no such environment variable", inner)
		}
		return value, nil
	case form == "file" && name != "":
		name = absolute(r.dir, name)
		r.Files = append(r.Files, name)
		f, err := secure.Open(name)
		if err != nil {
			return "", fmt.Errorf("${%s}: %w", inner, err)
		}
		defer f.Close()
		text, err := io.ReadAll(io.LimitReader(f, maxReferenced+1))
		switch {
		case err != nil:
			return "", fmt.Errorf("${%s}: %w", inner, err)
		case len(text) > maxReferenced:
			return "", fmt.Errorf("${%s}: the file is too large (want %v at most)", inner, Size(maxReferenced))
		case !utf8.Valid(text):
			return "", fmt.Errorf("${%s}: the file holds no text", inner)
		}
		return strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r"), nil
	}
	return "", fmt.Errorf("${%s} is not a reference (want ${env:NAME} or ${file:/path}; $${ for a plain ${)", inner)
}

// Hide returns an error whose text shows references in place of their values.
func (c *Config) Hide(err error) error {
	if err == nil || len(c.refs.found) == 0 {
		return err
	}
	return errors.New(c.refs.hide(err.Error()))
}

// sure is the length in bytes from which a value is hidden wherever it occurs; a shorter one is hidden only as a separate word.
const sure = 8

func (r *references) hide(text string) string {
	for _, f := range r.found {
		quoted := strconv.Quote(f.value)
		for _, value := range slices.Compact([]string{f.value, quoted[1 : len(quoted)-1]}) {
			text = replaceWord(text, value, f.shown)
		}
	}
	return text
}

// replaceWord replaces a word. Within another word it replaces only a long one. A list index such as [3] is not a word.
func replaceWord(text, word, by string) string {
	if word == "" {
		return text
	}
	var out strings.Builder
	for {
		at := strings.Index(text, word)
		if at < 0 {
			return out.String() + text
		}
		before, _ := utf8.DecodeLastRuneInString(text[:at])
		after, _ := utf8.DecodeRuneInString(text[at+len(word):])
		inWord := func(c rune) bool { return c == '[' || c == '_' || unicode.IsLetter(c) || unicode.IsDigit(c) }
		out.WriteString(text[:at])
		if len(word) < sure && (inWord(before) || inWord(after)) {
			out.WriteString(word)
		} else {
			out.WriteString(by)
		}
		text = text[at+len(word):]
	}
}

// hideYAML does the same in YAML text, for the keys that were given by references and for keys derived from them.
func (r *references) hideYAML(text []byte) ([]byte, error) {
	file, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, err
	}
	eachScalar(file.Docs[0].Body, "", func(n ast.Node, path string) ast.Node {
		at := slices.IndexFunc(r.found, func(f referred) bool { return f.whole && f.path == path })
		if at >= 0 {
			return scalar(n, r.found[at].shown, false)
		}
		switch s := n.(type) {
		case *ast.StringNode:
			return r.hideScalar(n, s.Value)
		case *ast.LiteralNode:
			return r.hideScalar(n, s.Value.Value)
		}
		return n
	})
	return []byte(file.String()), nil
}

func (r *references) hideScalar(n ast.Node, value string) ast.Node {
	escaped := strings.ReplaceAll(value, "${", "$${")
	if hidden := r.hide(escaped); hidden != value {
		return scalar(n, hidden, false)
	}
	return n
}

// scalar returns a copy of a node with another text. With typed, a text that reads as a number or a truth value becomes one; if a
// string is expected, it is written out unchanged. The token stays in its chain, because partial decoding prints the chain again.
func scalar(old ast.Node, text string, typed bool) ast.Node {
	t := old.GetToken()
	if l, ok := old.(*ast.LiteralNode); ok {
		t = l.Value.Token
	}
	before, after, _ := strings.Cut(t.Origin, strings.TrimSpace(t.Origin))
	t.Value, t.Type, t.Origin = text, token.StringType, before+text+after
	if typed {
		f, err := strconv.ParseFloat(text, 64)
		switch {
		case text == "true", text == "false":
			return ast.Bool(t)
		case text == strconv.FormatInt(int64(f), 10):
			return ast.Integer(t)
		case err == nil && text == fmt.Sprint(f) && strings.Contains(text, "."):
			return ast.Float(t)
		}
	}
	t.Type, t.Origin = token.DoubleQuoteType, before+strconv.Quote(text)+after
	return ast.String(t)
}

// eachScalar replaces each scalar value by f's result. path is its key's.
func eachScalar(n ast.Node, path string, f func(n ast.Node, path string) ast.Node) ast.Node {
	switch n := n.(type) {
	case *ast.MappingNode:
		for _, v := range n.Values {
			eachScalar(v, path, f)
		}
	case *ast.MappingValueNode:
		n.Value = eachScalar(n.Value, strings.TrimPrefix(path+"."+n.Key.GetToken().Value, "."), f)
	case *ast.SequenceNode:
		for i := range n.Values {
			n.Values[i] = eachScalar(n.Values[i], fmt.Sprintf("%s[%d]", path, i), f)
		}
	case *ast.AnchorNode:
		n.Value = eachScalar(n.Value, path, f)
	case *ast.TagNode:
		n.Value = eachScalar(n.Value, path, f)
	case nil:
		return nil
	default:
		return f(n, path)
	}
	return n
}

// Files returns the files that the configuration was read from: its own and the referenced ones.
func (c *Config) Files() []string { return append([]string{c.File}, c.refs.Files...) }

func absolute(dir, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}
