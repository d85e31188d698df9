// Package section writes what a test has measured into a page. Only tests import it.
package section

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Write puts text between a page's markers <!-- name --> and <!-- /name -->. The page's path is that from the repository's root;
// the test's package lies in a folder of the root.
func Write(t *testing.T, page, name, text string) {
	t.Helper()
	file := filepath.Join("..", page)
	was, err := os.ReadFile(file)
	begin, end := "<!-- "+name+" -->\n", "<!-- /"+name+" -->"
	head, rest, found := strings.Cut(string(was), begin)
	_, tail, ended := strings.Cut(rest, end)
	if err != nil || !found || !ended {
		t.Fatalf("%s has no %s … %s (%v)", file, begin, end, err)
	}
	if err := os.WriteFile(file, []byte(head+begin+"\n"+text+"\n\n"+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}
