package findings

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// speakers are the packages that tell an operator what is wrong at workers and what mends it.
var speakers = []string{".", "../doctor", "../admin", "../generate", "../../workers/inspect", "../registry",
	"../serve", "../../workers/probe",
	"../../workers/health", "../../workers/discover", "../../engine/rules", "../../router/audit", "../../indexer/stream"}

var (
	pauses = regexp.MustCompile(`%[-+#.\d\[\]]*[a-zA-Z]|[.;:()]\s|such as`)
	words  = regexp.MustCompile(`[\p{L}\p{N}_-]+`)
)

// TestAdviceStandsOnce: no six words in a row stand in two texts. What is said twice comes apart: it is a constant or a Finding that both
// places use.
func TestAdviceStandsOnce(t *testing.T) {
	const run = 6
	first := map[string]string{}
	for _, dir := range speakers {
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: got %d files, %v, want no error, some", dir, len(files), err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			at := token.NewFileSet()
			file, err := parser.ParseFile(at, name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.ImportSpec:
					return false
				case *ast.CallExpr: // a metric's description is none
					name := types.ExprString(n.Fun)
					name = name[strings.LastIndex(name, ".")+1:]
					if slices.Contains([]string{"Counters", "Gauges", "Histograms", "Desc", "count"}, name) {
						return false
					}
				case *ast.ValueSpec:
					return n.Names[0].Name != "agentMetrics"
				case *ast.Field:
					n.Tag = nil // a flag's help
				case ast.Expr:
					text := strings.ToLower(textOf(n))
					if text == "" {
						return true
					}
					here := at.Position(n.Pos()).String()
					for _, part := range pauses.Split(text, -1) {
						all := words.FindAllString(part, -1)
						for i := 0; i+run <= len(all); i++ {
							one := strings.Join(all[i:i+run], " ")
							if other := first[one]; other != "" && other != here {
								t.Errorf(`%q stands at %s and at %s, want other == "" or other == %v`, one, other, here, here)
								break
							}
							first[one] = here
						}
					}
					return false
				}
				return true
			})
		}
	}
}

// textOf returns a string's text, or that of several that are added; what is not constant is a pause.
func textOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return text
		}
	case *ast.BinaryExpr:
		if x, y := textOf(e.X), textOf(e.Y); e.Op == token.ADD && x+y != "" {
			return x + y
		} else if e.Op == token.ADD {
			return ""
		}
	case *ast.ParenExpr:
		return textOf(e.X)
	}
	return ""
}
