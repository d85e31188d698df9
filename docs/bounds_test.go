package docs

import (
	"flag"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of bounds.md")

// bound is a row of the page's table.
type bound struct {
	what, size string // {package.constant} stands for its value, {package.constant B} for that many bytes
	past       string // what becomes of what is beyond it
	// counted are the metrics that count that, without sightline_, each with the word of its label where one says it; or, behind a –,
	// why nobody needs to know.
	counted string
	// driven is the test that goes beyond the bound: its package and name, then the words by which it names the bound and what is counted.
	driven string
	fields string // of structs: what is bounded so
}

// TestBounds holds the table to the code. Each row's numbers are those of the constants, its counter is exported, and the test that
// it names is there and looks at bound and counter. And each queue, cache, map and buffer that outlives a call on the path of requests
// and events stands in a row, or in the list of those that need none. -update writes the table.
func TestBounds(t *testing.T) {
	source := parsed(t)
	signals := readPage(t, "signals.md")
	var table strings.Builder                        // what clients and hosts can reach
	alike, ends := map[string][]string{}, []string{} // rows by what happens beyond them
	named := map[string]int{}
	for _, b := range bounds {
		numbers := func(text string) string {
			return constants.ReplaceAllStringFunc(text, func(at string) string { return source.value(t, constants.FindStringSubmatch(at)) })
		}
		counted := b.counted
		if !strings.HasPrefix(counted, "–") {
			counted = ""
			for one := range strings.SplitSeq(b.counted, ", ") {
				name, word, _ := strings.Cut(one, " ")
				exported := strings.Contains(signals, "`sightline_"+name+"`") || strings.Contains(signals, "`sightline_"+name+"{")
				if !exported && !strings.HasPrefix(name, "go_") {
					t.Errorf("%s: docs/signals.md has no sightline_%s", b.what, name)
				}
				if !source.says(word) {
					t.Errorf("%s: nobody counts anything as %q", b.what, word)
				}
				if !strings.Contains(counted, "`"+name+"`") {
					counted += ", `" + name + "`"
				}
			}
			counted = " (" + counted[2:] + ")"
		} else {
			counted = ""
		}
		// What exceeds an uncounted bound costs nothing that a user would notice; a cache makes what it has forgotten again.
		first, _, _ := strings.Cut(b.counted, "_")
		if counted != "" && b.past != "least used forgotten" && !strings.Contains("events peer agent dynamo", first) {
			end := b.past + counted
			alike[end] = append(alike[end], fmt.Sprintf("- **%s**: %s", numbers(b.what), numbers(b.size)))
			if len(alike[end]) == 1 {
				ends = append(ends, end)
			}
		}
		test, words, _ := strings.Cut(b.driven, ": ")
		if text := source.tests[test]; text == "" || words == "" {
			t.Errorf("%s: no test %q with words to look for; got %q, %q, want some, some", b.what, b.driven, text, words)
		} else {
			for word := range strings.SplitSeq(words, ", ") {
				if !strings.Contains(text, word) {
					t.Errorf("%s: %s does not look at %s", b.what, test, word)
				}
			}
		}
		for _, f := range strings.Fields(b.fields) {
			named[f]++
		}
	}
	for _, end := range ends {
		if len(alike[end]) < 3 {
			table.WriteString(strings.Join(alike[end], " → "+end+"\n") + " → " + end + "\n")
		}
	}
	for _, end := range ends {
		if len(alike[end]) >= 3 {
			table.WriteString("\nBeyond these: " + end + "\n\n" + strings.Join(alike[end], "\n") + "\n")
		}
	}
	for _, list := range unbounded {
		for _, f := range strings.Fields(list) {
			named[f]++
		}
	}
	for _, f := range source.fields {
		if named[f] != 1 {
			t.Errorf("%s stands in %d rows of the bounds: give it one (docs/bounds_test.go), or a reason why it needs none, want 1", f, named[f])
		}
		delete(named, f)
	}
	for f := range named {
		t.Errorf("the bounds name %s, which is no queue, cache, map or buffer", f)
	}
	page := readPage(t, "bounds.md")
	head, rest, _ := strings.Cut(page, "<!-- bounds -->\n")
	_, tail, ok := strings.Cut(rest, "<!-- end -->")
	if !ok {
		t.Fatal("bounds.md has no <!-- bounds --> … <!-- end -->")
	}
	switch written := head + "<!-- bounds -->\n\n" + table.String() + "\n<!-- end -->" + tail; {
	case *update:
		if err := os.WriteFile("bounds.md", []byte(written), 0o644); err != nil {
			t.Fatal(err)
		}
	case written != page:
		t.Error("bounds.md is not what boundlist_test.go says; go test ./docs -run TestBounds -update writes it")
	}
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	constants = regexp.MustCompile(`\{([a-z0-9/]+)\.(\w+)( B)?\}`)
	onPath    = regexp.MustCompile(`^(body|engine|extproc|indexer|media|mmhash|prompt|router|workers|app/(admin|registry|serve|trace)|internal/(secure|sockets))(/|$)`)
)

// source is what the test reads of the code.
type source struct {
	set    *token.FileSet
	files  map[string][]*ast.File // by folder, without tests
	scopes map[string]*types.Scope
	tests  map[string]string // text by folder and name
	fields []string          // folder.type.field of all that is kept on the path of requests and events
	text   strings.Builder
}

func parsed(t *testing.T) *source {
	s := &source{set: token.NewFileSet(), files: map[string][]*ast.File{}, scopes: map[string]*types.Scope{}, tests: map[string]string{}}
	for name, text := range files(t, ".go") {
		dir := filepath.ToSlash(filepath.Dir(name))
		if !onPath.MatchString(dir) || strings.Contains(dir, "testdata") {
			continue
		}
		f, err := parser.ParseFile(s.set, name, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(name, "_test.go") {
			s.files[dir] = append(s.files[dir], f)
			s.text.WriteString(text)
			continue
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				s.tests[dir+" "+fn.Name.Name] = text[s.set.Position(fn.Pos()).Offset:s.set.Position(fn.End()).Offset]
			}
		}
	}
	for dir, list := range s.files {
		s.fields = append(s.fields, keeping(dir, list)...)
	}
	return s
}

// says tells whether code of ours has a text.
func (s *source) says(word string) bool {
	return word == "" || strings.Contains(s.text.String(), `"`+word+`"`)
}

// value is a constant's: package, name, whether it is bytes. Imports are not followed, so constants of other packages have none.
func (s *source) value(t *testing.T, at []string) string {
	dir := at[1]
	if s.scopes[dir] == nil {
		conf := types.Config{Error: func(error) {}}
		pkg, _ := conf.Check(dir, s.set, s.files[dir], nil)
		s.scopes[dir] = pkg.Scope()
	}
	c, ok := s.scopes[dir].Lookup(at[2]).(*types.Const)
	if !ok {
		t.Fatalf("no constant %s in %s", at[2], dir)
	}
	n, _ := constant.Int64Val(constant.ToInt(c.Val()))
	switch {
	case at[3] != "" && n%(1<<20) == 0:
		return fmt.Sprint(n>>20, " MiB")
	case at[3] != "":
		return fmt.Sprint(n>>10, " KiB")
	}
	return thousands(int(n))
}

// keeping lists the fields of a package's structs that can grow: maps, caches, lists, pools, channels with room for more than one,
// and slices that are appended to in structs with a lock, which outlive a call.
func keeping(dir string, list []*ast.File) (fields []string) {
	grows, roomy, maps := map[string]bool{}, map[string]bool{}, map[string]bool{}
	note := func(name string, v ast.Expr) {
		call, ok := v.(*ast.CallExpr)
		if !ok {
			return
		}
		switch fn, _ := call.Fun.(*ast.Ident); {
		case fn != nil && fn.Name == "make" && len(call.Args) == 2:
			n, ok := call.Args[1].(*ast.BasicLit)
			roomy[name] = roomy[name] || !ok || n.Value != "1"
		case fn != nil && fn.Name == "append":
			to, ok := call.Args[0].(*ast.SelectorExpr)
			grows[name] = grows[name] || ok && to.Sel.Name == name
		}
	}
	var structs []*ast.TypeSpec
	for _, f := range list {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				switch n.Type.(type) {
				case *ast.StructType:
					structs = append(structs, n)
				case *ast.MapType:
					maps[n.Name.Name] = true
				}
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok {
					note(key.Name, n.Value)
				}
			case *ast.AssignStmt:
				for i, to := range n.Lhs {
					if at, ok := to.(*ast.SelectorExpr); ok && i < len(n.Rhs) {
						note(at.Sel.Name, n.Rhs[i])
					}
				}
			}
			return true
		})
	}
	locks := lockedStructs(structs)
	for _, s := range structs {
		locked := locks[s.Name.Name]
		for _, f := range s.Type.(*ast.StructType).Fields.List {
			for _, name := range f.Names {
				found := false
				ast.Inspect(f.Type, func(n ast.Node) bool {
					switch n := n.(type) {
					case *ast.FuncType, *ast.StructType:
						return false
					case *ast.MapType:
						found = true
					case *ast.Ident:
						found = found || maps[n.Name]
					case *ast.ChanType:
						found = found || n.Dir != ast.RECV && roomy[name.Name]
					case *ast.ArrayType:
						found = found || n.Len == nil && locked && grows[name.Name]
					case *ast.SelectorExpr:
						found = found || slices.Contains([]string{"LRU", "Cache", "List", "Pool", "Map"}, n.Sel.Name)
					}
					return !found
				})
				if found {
					fields = append(fields, dir+"."+s.Name.Name+"."+name.Name)
				}
			}
		}
	}
	return fields
}

// lockedStructs are the structs that have a lock, or that are embedded in one that has, or embed one.
func lockedStructs(structs []*ast.TypeSpec) map[string]bool {
	locked, embeds := map[string]bool{}, map[string][]string{}
	for _, s := range structs {
		name := s.Name.Name
		for _, f := range s.Type.(*ast.StructType).Fields.List {
			switch at := f.Type.(type) {
			case *ast.SelectorExpr:
				locked[name] = locked[name] || strings.HasSuffix(at.Sel.Name, "Mutex")
			case *ast.Ident:
				if len(f.Names) == 0 {
					embeds[name] = append(embeds[name], at.Name)
				}
			}
		}
	}
	for range embeds { // as deep as they are embedded
		for outer, list := range embeds {
			for _, inner := range list {
				either := locked[outer] || locked[inner]
				locked[outer], locked[inner] = either, either
			}
		}
	}
	return locked
}
