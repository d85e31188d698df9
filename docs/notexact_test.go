package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// notExact are the words of fidelity.md's section "Not exact" for each reason that the code can give, by its name, or by its text where it
// has none.
var notExact = map[string]string{
	"ErrNoTemplate": "templates that are missing", "ErrTemplate": "do not run", "ErrFeature": "do not run",
	"ErrTemplateLimit": "beyond their", "ErrFiles": "files that [do not load]",
	"ErrRelease": "all of [older releases]", "ErrNoFiles": "models without a directory",
	"ErrText": "do not load", "ErrEndpoint": "other APIs than chats", "ErrMistral": "in mistral mode",
	"ErrStored": "`previous_response_id`", "ErrPart": "items whose place", "ErrTooMany": "4,096 messages or parts",
	"ErrManyPrompts": "1,024 prompts", "ErrLong": "2,097,152 tokens", "ErrTime": "not read in time",
	"ErrTruncation": "truncated prompts", "ErrPython": "JSON that only Python reads",
	"ErrField": "fields that change a prompt", "ErrEncoder": "by code of its own", "ErrHarmony": "GPT-OSS's",
	"ErrConversation": "in a named format", "ErrClass": "tokenizers that the engine changes", "Uncompared": "not compared",
	"media of a model whose vision rule is not known": "families without a rule",
	"media whose tokens a request does not tell":      "dynamic resolution", "inexactFormat": "other than PNG",
	"inexactEmbeds": "embeddings", "inexactOther": "video, audio", "inexactUUID": "a uuid that is a list",
	"inexactUnnamed": "SGLang's families but", "inexactLater": "all images on TensorRT-LLM",
	"inexactNoFetch": "not fetched or fails", "inexactFetchFailed": "not fetched or fails",
	"inexactForbidden": "not fetched or fails", "inexactBudget": "slower than `media.budget`",
	"inexactNoFile": "not to be read", "inexactLargeFile": "too large", "inexactSlowFile": "a local file that is slow",
	"inexactTime": "not read in time", "inexactPanic": "not fetched or fails",
	"noMediaInEvents": "What follows an image or salt", "SGLang's events do not tell an extra_key": "`extra_key`",
	"this release's events do not tell adapters apart":              "adapters before",
	"the engine bypasses its cache for this request":                "`prompt_logprobs`",
	"an upper bound: the engine may read no cache for this request": "a beam search",
	"an upper bound: the events do not say all that a hit needs":    "several KV cache groups",
	"a lower bound: the worker is known in part":                    "workers known in part",
	"a lower bound: the engine also finds parts of blocks":          "finds parts of blocks", "unconfirmed": "blocks on their way",
	"eventsLate": "whose events are late", "eventsLost": "whose events are late",
}

// explained are the parts of the section that stand for no reason of the code's by itself, but explain one beside them.
var explained = []string{"Kimi-K2.5 and K2.6", "Qwen3-VL on SGLang", "one image of H2OVL"}

// TestNotExact: the section lists each reason for which a prediction is not exact, and no other.
func TestNotExact(t *testing.T) {
	page, err := os.ReadFile("fidelity.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Not exact\n")
	section, _, _ = strings.Cut(section, "\n## ")
	reasons := reasonsInCode(t)
	for reason, at := range reasons {
		if words, listed := notExact[reason]; !listed {
			t.Errorf("%s: got the reason %q in no list, want it in notExact and in fidelity.md", at, reason)
		} else if !strings.Contains(section, words) {
			t.Errorf("fidelity.md: got no %q under Not exact, want it for the reason %q", words, reason)
		}
	}
	for reason := range notExact {
		if reasons[reason] == "" {
			t.Errorf("notExact: got %q, which the code does not give, want it out of the list", reason)
		}
	}
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "- ") {
			continue
		}
		for _, clause := range splitOutside(line) {
			found := false
			for _, words := range notExact {
				found = found || strings.Contains(clause, words)
			}
			for _, words := range explained {
				found = found || strings.Contains(clause, words)
			}
			if !found {
				t.Errorf("fidelity.md: got %q under Not exact, for which the code has no reason", clause)
			}
		}
	}
}

// splitOutside splits a line at semicolons that are not in parentheses.
func splitOutside(line string) (parts []string) {
	depth, from := 0, 0
	for i, c := range line {
		switch c {
		case '(':
			depth++
		case ')':
			depth--
		case ';':
			if depth == 0 {
				parts, from = append(parts, line[from:i]), i+1
			}
		}
	}
	return append(parts, line[from:])
}

// reasonsInCode returns the names or texts of all reasons, with their files: values of the type Unpredicted, constants whose names begin
// with inexact or are named here, results of keyedAlike, Why of an expanded prompt, and what explain says of a hit.
func reasonsInCode(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	constants := map[string]bool{"Uncompared": true, "noMediaInEvents": true, "unconfirmed": true, "eventsLate": true, "eventsLost": true}
	for _, dir := range []string{"../prompt", "../engine", "../engine/*", "../router"} {
		files, err := filepath.Glob(dir + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatalf("%q %v: got %d, want no error, some", dir, err, len(files))
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			in := ""
			ast.Inspect(tree, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncDecl:
					in = n.Name.Name
				case *ast.ValueSpec:
					for i, name := range n.Names {
						if constants[name.Name] || strings.HasPrefix(name.Name, "inexact") || i < len(n.Values) && isUnpredicted(n.Values[i]) {
							found[name.Name] = file
						}
					}
				case *ast.KeyValueExpr:
					if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Why" && strings.HasSuffix(file, "prompt/expand.go") {
						addText(found, file, n.Value)
					}
				case *ast.ReturnStmt:
					if in == "keyedAlike" {
						addText(found, file, n.Results[0])
					}
				case *ast.AssignStmt:
					if in == "explain" {
						for _, v := range n.Rhs {
							addText(found, file, v)
						}
					}
				}
				return true
			})
		}
	}
	if len(found) < 40 {
		t.Fatalf("got %d reasons, want 40 and more", len(found))
	}
	return found
}

// isUnpredicted reports whether an expression makes a value of the type Unpredicted.
func isUnpredicted(e ast.Expr) bool {
	if u, ok := e.(*ast.UnaryExpr); ok {
		e = u.X
	}
	c, ok := e.(*ast.CompositeLit)
	if !ok {
		return false
	}
	switch kind := c.Type.(type) {
	case *ast.Ident:
		return kind.Name == "Unpredicted"
	case *ast.SelectorExpr:
		return kind.Sel.Name == "Unpredicted"
	}
	return false
}

// addText adds a string literal, unless it says only that nothing is held.
func addText(found map[string]string, file string, e ast.Expr) {
	if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
		if text, err := strconv.Unquote(lit.Value); err == nil && text != "" && !strings.HasPrefix(text, "no block held") {
			found[text] = file
		}
	}
}
