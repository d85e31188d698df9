package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	fenced  = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	noSlug  = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	named   = regexp.MustCompile(`\bdocs/[a-z]+\.md(#[a-z0-9_-]+)?`)
)

// files are the repository's texts with one of these endings, by their path from its root.
func files(t *testing.T, endings ...string) map[string]string {
	texts := map[string]string{}
	err := filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		hidden := len(e.Name()) > 2 && e.Name()[0] == '.'
		if err == nil && e.IsDir() && (hidden && e.Name() != ".ci" || e.Name() == "testdata" || e.Name() == "bin") {
			return filepath.SkipDir
		}
		if err != nil || e.IsDir() || !slices.Contains(endings, filepath.Ext(path)) {
			return err
		}
		text, err := os.ReadFile(path)
		texts[filepath.ToSlash(path[len("../"):])] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

// anchors are those that GitHub makes of a page's headings.
func anchors(page string) map[string]bool {
	set := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		set[strings.ReplaceAll(noSlug.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-")] = true
	}
	return set
}

var (
	testNamed    = regexp.MustCompile("`(Test[A-Z][A-Za-z0-9]*)`")
	testDeclared = regexp.MustCompile(`(?m)^func (Test[A-Z][A-Za-z0-9]*)\(`)
)

// TestNamedTests checks that each test that a page names as proof of something exists.
func TestNamedTests(t *testing.T) {
	there := map[string]bool{}
	for _, text := range files(t, ".go") {
		for _, m := range testDeclared.FindAllStringSubmatch(text, -1) {
			there[m[1]] = true
		}
	}
	for page, text := range files(t, ".md") {
		for _, m := range testNamed.FindAllStringSubmatch(text, -1) {
			if !there[m[1]] && page != "CHANGELOG.md" {
				t.Errorf("%s names %s, which no test is called", page, m[1])
			}
		}
	}
}

var (
	goTest = regexp.MustCompile(`\$\(GO\) test (.*)`)
	valued = regexp.MustCompile(`^-(timeout|run|skip|bench|benchtime|cpu|parallel|tags|count)$`)
	quoted = regexp.MustCompile(`'[^']*'`)
)

// TestTargets: each go test of the Makefile names packages that are there, and tests that some package has.
func TestTargets(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	for _, text := range files(t, ".go") {
		for _, m := range testDeclared.FindAllStringSubmatch(text, -1) {
			declared = append(declared, m[1])
		}
	}
	lines := goTest.FindAllStringSubmatch(strings.ReplaceAll(string(makefile), "\\\n", ""), -1)
	if len(lines) < 30 {
		t.Errorf("got %d lines of go test, want 30 at least", len(lines))
	}
	for _, m := range lines {
		for _, names := range quoted.FindAllString(m[1], -1) {
			for _, name := range regexp.MustCompile(`Test[A-Z]\w*`).FindAllString(names, -1) {
				if !slices.ContainsFunc(declared, func(one string) bool { return strings.HasPrefix(one, name) }) {
					t.Errorf("got %s in %q, want a test that exists", name, m[1])
				}
			}
		}
		args := strings.Fields(quoted.ReplaceAllString(m[1], "''"))
		for i := 0; i < len(args); i++ {
			arg := args[i]
			if strings.ContainsAny(arg[:1], "|&>;#") {
				break
			}
			if valued.MatchString(arg) {
				i++
			} else if dir, isPath := strings.CutPrefix(strings.TrimRight(arg, ";"), "./"); isPath {
				if _, err := os.Stat(filepath.Join("..", strings.TrimSuffix(dir, "..."))); err != nil {
					t.Errorf("got %s in %q, want a package that is there", arg, m[1])
				}
			} else if arg[0] != '-' && arg[0] != '$' && arg != "." {
				t.Errorf("got %q in %q, want a flag or a package", arg, m[1])
			}
			if strings.HasSuffix(arg, ";") || strings.HasPrefix(arg, "$$(") {
				break
			}
		}
	}
}

// TestLinks follows each relative link of a page, and each page that code, manifests and pages name as docs/….md: file and
// heading exist. Every page of docs/ stands in its index.
func TestLinks(t *testing.T) {
	pages := files(t, ".md")
	follow := func(from, to, fragment string) {
		if _, err := os.Stat(filepath.Join("..", to)); err != nil {
			t.Errorf("%s names %s, which is not there: got %v, want no error", from, to, err)
		} else if fragment != "" && !anchors(pages[to])[fragment] {
			t.Errorf("%s names %s#%s: no such heading there", from, to, fragment)
		}
	}
	linked := map[string]bool{}
	for from, text := range pages {
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			if to, fragment, _ := strings.Cut(m[1], "#"); !strings.Contains(to, ":") {
				target := from
				if to != "" {
					target = filepath.Join(filepath.Dir(from), to)
				}
				follow(from, target, fragment)
				linked[from+" "+target] = true
			}
		}
	}
	for from, text := range files(t, ".go", ".yaml", ".yml", ".json", ".md") {
		for _, m := range named.FindAllString(text, -1) {
			to, fragment, _ := strings.Cut(m, "#")
			follow(from, to, fragment)
		}
	}
	for page := range pages {
		if filepath.Dir(page) == "docs" && page != "docs/README.md" && !linked["docs/README.md "+page] {
			t.Errorf("docs/README.md does not list %s", page)
		}
	}
}

// TestPagesAreShort: a page that gains text loses as much elsewhere.
func TestPagesAreShort(t *testing.T) {
	const most = 20000
	words := 0
	for page, text := range files(t, ".md") {
		if filepath.Dir(page) == "docs" {
			words += len(strings.Fields(text))
		}
	}
	t.Logf("%d words in docs/*.md", words)
	if words > most {
		t.Errorf("got %d words in docs/*.md, want %d at most: say it in fewer, or take something away", words, most)
	}
}
