package docs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	fuzzFunc = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)
	fuzzRow  = regexp.MustCompile(`(?m)^(\S+) (Fuzz\w+)\t([0-9,]+)\t(.+)$`)
	fuzzRuns = regexp.MustCompile(`execs: (\d+)`)
	fuzzSum  = regexp.MustCompile(`[0-9,]+ executions so far, by [0-9]+ targets`)
)

// fuzzTable lists the targets with their executions; reliability.md has the sum.
const fuzzTable = "testdata/fuzz.txt"

// TestFuzz holds the table of fuzz targets to those that there are, and reliability.md to its sum. With SIGHTLINE_FUZZ, a time or a count
// such as 20s or 500x, it runs those that SIGHTLINE_FUZZ_ONLY matches ("package Name"), and adds what was run to the table. With
// SIGHTLINE_FUZZ_SHORT it builds them as make test does, so that little is built anew: inputs are found by chance then, not by what
// they reach, and do not count.
func TestFuzz(t *testing.T) {
	var targets []string
	for file, text := range files(t, ".go") {
		for _, f := range fuzzFunc.FindAllStringSubmatch(text, -1) {
			targets = append(targets, filepath.ToSlash(filepath.Dir(file))+" "+f[1])
		}
	}
	slices.Sort(targets)
	page, err := os.ReadFile(fuzzTable)
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, r := range fuzzRow.FindAllSubmatch(page, -1) {
		rows = append(rows, fmt.Sprintf("%s %s", r[1], r[2]))
	}
	slices.Sort(rows)
	if !slices.Equal(rows, targets) {
		t.Fatalf("%s has not one row for each fuzz target:\nrows without a target or twice: %q\ntargets without a row: %q",
			fuzzTable, without(rows, targets), without(targets, rows))
	}
	sum := 0
	for _, r := range fuzzRow.FindAllSubmatch(page, -1) {
		sum += executions(t, string(r[3]))
	}
	if got := fuzzSum.FindString(files(t, ".md")[filepath.Join("docs", "reliability.md")]); got != executed(sum, len(rows)) {
		t.Errorf("reliability.md: got %q, want %q, the sum of %s", got, executed(sum, len(rows)), fuzzTable)
	}
	how, only := os.Getenv("SIGHTLINE_FUZZ"), regexp.MustCompile(os.Getenv("SIGHTLINE_FUZZ_ONLY"))
	if how == "" {
		return
	}
	short := os.Getenv("SIGHTLINE_FUZZ_SHORT") != ""
	cache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	built, binary := "", filepath.Join(t.TempDir(), "fuzz.test")
	for _, target := range targets {
		if !only.MatchString(target) {
			continue
		}
		dir, name, _ := strings.Cut(target, " ")
		if built != dir { // once for all targets of a package
			how := "-fuzz=."
			if short {
				how = "-tags=poison"
			}
			if out, err := exec.Command("go", "test", "-c", how, "-o", binary, "../"+dir).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", dir, err, out)
			}
			built = dir
		}
		run := exec.Command(binary, "-test.run=^$", "-test.fuzz=^"+name+"$", "-test.fuzztime="+how, "-test.fuzzminimizetime=20x",
			"-test.parallel=1",
			"-test.fuzzcachedir="+filepath.Join(strings.TrimSpace(string(cache)), "fuzz", module, dir))
		run.Dir = filepath.Join(root, dir)
		out, err := run.CombinedOutput()
		n := 0
		for _, m := range fuzzRuns.FindAllSubmatch(out, -1) {
			n, _ = strconv.Atoi(string(m[1]))
		}
		t.Logf("%s: %d", target, n)
		if !short {
			count(t, target, n)
		}
		// When the time ends during an input, go test says so and fails, though nothing was found; a find names its input.
		if err != nil && (!bytes.Contains(out, []byte("context deadline exceeded")) || bytes.Contains(out, []byte("Failing input"))) {
			t.Errorf("%s: %v\n%s", target, err, out)
		}
	}
}

// count adds to a target's executions in the table, and to their sum.
func count(t *testing.T, target string, n int) {
	sum, rows := 0, 0
	rewrite(t, fuzzTable, fuzzRow, func(m []string) string {
		so := executions(t, m[3])
		if m[1]+" "+m[2] == target {
			so += n
		}
		sum, rows = sum+so, rows+1
		return fmt.Sprintf("%s %s\t%s\t%s", m[1], m[2], thousands(so), m[4])
	})
	rewrite(t, "reliability.md", fuzzSum, func([]string) string {
		return executed(sum, rows)
	})
}

func executions(t *testing.T, text string) int {
	n, err := strconv.Atoi(strings.ReplaceAll(text, ",", ""))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// executed is what reliability.md says of the table.
func executed(sum, rows int) string {
	return fmt.Sprintf("%s executions so far, by %d targets", thousands(sum), rows)
}

// rewrite replaces what a pattern matches in a file.
func rewrite(t *testing.T, file string, pattern *regexp.Regexp, by func(match []string) string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !pattern.Match(text) {
		t.Fatalf("%s: got nothing like %s, want it to write there", file, pattern)
	}
	out := pattern.ReplaceAllStringFunc(string(text), func(match string) string { return by(pattern.FindStringSubmatch(match)) })
	if err := os.WriteFile(file, []byte(out), 0o644); err != nil {
		t.Fatal(err)
	}
}

func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

func without(list, other []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(other, s) })
}
