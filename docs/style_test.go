package docs

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

const columns = 140 // of a line of Go, a tab counting as one

// TestStatements: no line of Go has more than 140 columns, apart from those with a raw string, a struct tag or a string that has no
// blank to be cut at; and what stands before the condition of an if is a := with one value, such as err := f() or v, ok := m[k], in
// tests also got, want := f(), g().
func TestStatements(t *testing.T) {
	for _, name := range goFiles(t) {
		src, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		raw := uncut(src)
		n := 0
		for line := range strings.Lines(string(src)) {
			n++
			if wide := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); wide > columns && !raw[n] {
				t.Errorf("%s:%d: %d columns, want at most %d", name, n, wide, columns)
			}
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, name, src, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.IfStmt); ok && s.Init != nil {
				if a, ok := s.Init.(*ast.AssignStmt); !ok || a.Tok != token.DEFINE || len(a.Rhs) > 1 && !strings.HasSuffix(name, "_test.go") {
					t.Errorf("%s: an if begins with a statement that is no := with one value: write that on a line of its own", files.Position(s.Pos()))
				}
			}
			return true
		})
	}
}

// uncut returns the lines that a raw string touches, and those with a string of more than 70 columns without a blank.
func uncut(src []byte) map[int]bool {
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(src))
	var s scanner.Scanner
	s.Init(file, src, nil, 0)
	lines := map[int]bool{}
	for {
		at, kind, text := s.Scan()
		switch {
		case kind == token.EOF:
			return lines
		case kind == token.STRING && text[0] != '`':
			for _, word := range strings.Fields(text) {
				lines[file.Line(at)] = lines[file.Line(at)] || len(word) > 70
			}
		case kind == token.STRING:
			first := file.Line(at)
			for i := range 1 + strings.Count(text, "\n") {
				lines[first+i] = true
			}
		}
	}
}
