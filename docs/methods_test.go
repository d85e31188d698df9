package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// mostMethods is the largest number of methods of a type: beyond it a reader cannot hold a type in the head.
const mostMethods = 30

// manyMethods are the types that may have more, by the reason.
var manyMethods = map[string]string{
	"prompt/template.parser": "a parser: a method for each production",
	"prompt/template.state":  "an interpreter: a method for each kind of node",
}

// TestMethods counts the methods of each type outside the laboratory and tests.
func TestMethods(t *testing.T) {
	count := map[string]int{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		if err != nil || d.IsDir() && (strings.HasPrefix(name, ".") && name != ".." || name == "lab" || name == "testdata") {
			if d.IsDir() && err == nil {
				return filepath.SkipDir
			}
			return err
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range f.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv != nil {
				at := fn.Recv.List[0].Type
				if star, ok := at.(*ast.StarExpr); ok {
					at = star.X
				}
				if of, ok := at.(*ast.IndexExpr); ok {
					at = of.X
				}
				if id, ok := at.(*ast.Ident); ok {
					count[strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "../")+"."+id.Name]++
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if count["router.plan"] == 0 {
		t.Fatalf("no method of router.plan is counted: got %d, want some", count["router.plan"])
	}
	for name, n := range count {
		if n > mostMethods && manyMethods[name] == "" {
			t.Errorf("%s has %d methods, want at most %d: cut it into values, or make functions of what uses no field", name, n, mostMethods)
		}
	}
	for name := range manyMethods {
		if count[name] <= mostMethods {
			t.Errorf("%s has %d methods: it needs no entry in manyMethods, want more than %d", name, count[name], mostMethods)
		}
	}
}
