package serve

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/sightline-router/sightline/app/config"
)

// TestPreviousRelease checks what the previous release has left on people's machines, made by it and kept in testdata/rc1: a
// configuration with every key (serve --print-config) loads but for keys that are refused with what to do instead and that
// CHANGELOG.md names, and metrics on which dashboards and alerts are built still exist, or CHANGELOG.md names them.
func TestPreviousRelease(t *testing.T) {
	read := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	changes := read("../../CHANGELOG.md")
	var before map[string]any
	if err := yaml.Unmarshal([]byte(read("testdata/rc1/sightline.yaml")), &before); err != nil {
		t.Fatal(err)
	}
	_, err := config.Parse([]byte(read("testdata/rc1/sightline.yaml")))
	for line := range strings.Lines(err.Error()) {
		path, why, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if !strings.HasPrefix(why, "no longer a key: ") {
			t.Errorf("its configuration: got %s, want keys that were removed alone", line)
		}
		if key := path[strings.LastIndexByte(path, '.')+1:]; !strings.Contains(changes, "`"+key+"`") && !strings.Contains(changes, "."+key+"`") {
			t.Errorf("%s is refused, and CHANGELOG.md does not name it, want \"`\"+key+\"`\" in changes or \".\"+key+\"`\" in "+
				"changes", path)
		}
		without(before, strings.FieldsFunc(path, func(c rune) bool { return c == '.' || c == '[' || c == ']' }))
	}
	text, err := yaml.Marshal(before)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse(text)
	if err != nil {
		t.Errorf("its configuration without them: got %v, want no error", err)
	}
	if len(cfg.Workers) != 2 || len(cfg.Envoy.Sightlines) != 2 {
		t.Errorf("its configuration is read as %d workers, %d Sightlines, want 2 and 2", len(cfg.Workers), len(cfg.Envoy.Sightlines))
	}
	gone := strings.Join(regexp.MustCompile(`(?m)^.*\b(renamed|removed)\b.*$`).FindAllString(changes, -1), "\n")
	now := read("../../docs/signals.md")
	for name := range strings.FieldsSeq(read("testdata/rc1/metrics.txt")) {
		is := regexp.MustCompile(`\b` + name + `\b`)
		if !is.MatchString(now) && !is.MatchString(gone) {
			t.Errorf("the metric %s is gone, and no line of CHANGELOG.md says that it was renamed or removed, want "+
				"is.MatchString(now) or is.MatchString(gone)", name)
		}
	}
}

// TestThisRelease keeps a configuration with every key of this release (serve --print-config) in testdata/next, for the tests of the
// releases after it: -update writes it.
func TestThisRelease(t *testing.T) {
	const file = "testdata/next/sightline.yaml"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	all, err := cfg.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		err = os.WriteFile(file, all, 0o644)
		if err != nil {
			t.Fatal(err)
		}
	} else if string(all) != string(text) {
		t.Errorf("%s is\n%s\nwant every key of this release\n%s\n(go test ./app/serve -run TestThisRelease -update)", file, text, all)
	}
}

// without deletes a key from a tree.
func without(tree any, path []string) {
	for i, key := range path {
		switch node := tree.(type) {
		case map[string]any:
			tree = node[key]
			if i == len(path)-1 {
				delete(node, key)
			}
		case []any:
			n := 0
			for _, digit := range key {
				n = 10*n + int(digit-'0')
			}
			tree = node[n]
		}
	}
}
