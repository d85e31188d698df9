// Package docs holds the pages, and the test that they say what is so.
package docs

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

const module = "github.com/sightline-router/sightline"

// row is a row of the table in architecture.md.
type row struct {
	name    string
	imports []string // packages, with all below them
	used    map[string]bool
	all     bool // may import every package below it
	open    bool // every package may import it
}

var code = regexp.MustCompile("`([^`]+)`")

// rows reads the table; a row of several packages is several rows.
func rows(t *testing.T) (list []*row) {
	page, err := os.ReadFile("architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(page), "| package | what it gives | may import |\n|---|---|---|\n")
	if !ok {
		t.Fatal("architecture.md: no table of packages with columns package, what it gives, may import")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	for _, line := range strings.Split(table, "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) != 3 {
			t.Fatalf("architecture.md: %d cells, want 3: %s", len(cells), line)
		}
		for _, name := range code.FindAllStringSubmatch(cells[0], -1) {
			r := &row{name: name[1], used: map[string]bool{}, all: cells[2] == "all", open: strings.Contains(cells[1], "all may import it")}
			for _, m := range code.FindAllStringSubmatch(cells[2], -1) {
				r.imports = append(r.imports, m[1])
			}
			list = append(list, r)
		}
	}
	return list
}

// within is whether a package is dir or lies below it.
func within(pkg, dir string) bool { return pkg == dir || strings.HasPrefix(pkg, dir+"/") }

// at is the index of the row that a package lies in: of several the one with the longest name.
func at(list []*row, pkg string) int {
	best := -1
	for i, r := range list {
		if within(pkg, r.name) && (best < 0 || len(r.name) > len(list[best].name)) {
			best = i
		}
	}
	return best
}

// TestPackages compares the table with what packages import, both ways: an import that the table lacks, and a cell that no package needs.
func TestPackages(t *testing.T) {
	list := rows(t)
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, module+"/...").Output()
	if err != nil {
		t.Fatalf("go list: got %v, want no error", err)
	}
	lived := map[string]bool{}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		imports := strings.Fields(line)
		pkg := strings.TrimPrefix(imports[0], module+"/")
		from := at(list, pkg)
		if from < 0 {
			t.Errorf("%s is in no row of the table", pkg)
			continue
		}
		lived[list[from].name] = true
		for _, path := range imports[1:] {
			if path, ours := strings.CutPrefix(path, module+"/"); ours {
				arrow(t, list, from, pkg, path)
			}
		}
	}
	for _, r := range list {
		if !lived[r.name] {
			t.Errorf("no package lies in %s", r.name)
		}
		for _, dir := range r.imports {
			if !r.used[dir] {
				t.Errorf("%s may import %s by the table, and does not: take it out", r.name, dir)
			}
		}
	}
}

// arrow is one import: from a row downwards, to what it names.
func arrow(t *testing.T, list []*row, from int, pkg, path string) {
	to, r := at(list, path), list[from]
	if to < 0 || to == from || list[to].open {
		return
	}
	if to < from {
		t.Errorf("%s imports %s, and %s stands below %s in the table: arrows point downwards; got %d, want at least %d",
			pkg, path, r.name, list[to].name, to, from)
	}
	allowed := r.all
	for _, dir := range r.imports {
		if within(path, dir) {
			allowed, r.used[dir] = true, true
		}
	}
	if !allowed {
		t.Errorf("%s imports %s: the table lets %s import %v", pkg, path, r.name, r.imports)
	}
}

// TestNames looks up the files and folders of ours that the pages name.
func TestNames(t *testing.T) {
	top := regexp.MustCompile("^(" + strings.Join(folders(t), "|") + ")/[a-z0-9_/.-]+$")
	for _, page := range strings.Fields("../README ../CONTRIBUTING architecture bounds configuration cockpit envoy " +
		"families fidelity numbers operations") {
		page += ".md"
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range code.FindAllStringSubmatch(string(text), -1) {
			if !top.MatchString(m[1]) {
				continue
			}
			if _, err := os.Stat("../" + m[1]); err != nil {
				t.Errorf("%s names %s, which is not there: got %v, want no error", page, m[1], err)
			}
		}
	}
}

// folders is the repository's, without hidden ones.
func folders(t *testing.T) (names []string) {
	entries, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names
}
