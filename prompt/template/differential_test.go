package template

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// reference is a Python process with the real Jinja2.
type reference struct {
	in  *bufio.Writer
	out *bufio.Scanner
}

type referenceResult struct {
	OK  *string `json:"ok,omitempty"`
	Err string  `json:"err,omitempty"`
}

// startReference starts the Python of SIGHTLINE_PYTHON, which must have jinja2 3.1.6.
func startReference(t *testing.T) *reference {
	t.Helper()
	python := os.Getenv("SIGHTLINE_PYTHON")
	if python == "" {
		t.Skip("SIGHTLINE_PYTHON is not set: no Python with jinja2 to compare with")
	}
	cmd := exec.Command(python, "-W", "ignore", "testdata/differential.py")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if t.Failed() { // it may still be writing what nobody reads
			cmd.Process.Kill()
			cmd.Wait()
			return
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: got %v, want no error", python, err)
		}
	})
	scan := bufio.NewScanner(out)
	scan.Buffer(nil, 64<<20)
	return &reference{bufio.NewWriter(in), scan}
}

func (r *reference) render(t *testing.T, src string) referenceResult {
	t.Helper()
	row, _ := json.Marshal(map[string]any{"template": src, "vars": json.RawMessage(makerVars)})
	r.in.Write(append(row, '\n'))
	r.in.Flush()
	var res referenceResult
	if !r.out.Scan() {
		t.Fatalf("the reference died on %q: %v", src, r.out.Err())
	}
	if err := json.Unmarshal(r.out.Bytes(), &res); err != nil {
		t.Fatal(err)
	}
	return res
}

// hasAddress reports whether a text shows a memory address of the Python process, which nothing can predict.
func hasAddress(text string) bool { return strings.Contains(strings.ToLower(text), " at 0x") }

// isUnsupported reports whether a template uses a feature that this package reports as unsupported.
func isUnsupported(err error) bool {
	run, ok := errors.AsType[*Error](err)
	return ok && run.Unsupported && !run.internal
}

// compare renders src here and compares the result with the reference's. A feature that is unsupported here must be an error that
// says so.
func compare(src string, vars Vars, want referenceResult) error {
	if want.OK != nil && hasAddress(*want.OK) {
		return nil
	}
	var got []byte
	tmpl, err := Compile(src, Options{Now: fixedClock})
	if err == nil {
		got, err = tmpl.Render(nil, vars)
	}
	switch {
	case isUnsupported(err):
		return err
	case strings.HasPrefix(want.Err, "TemplateAssertionError: No "): // reported here only if it is evaluated
	case want.OK == nil && err == nil:
		return fmt.Errorf("%q\n got %q\nwant the error %s", src, got, want.Err)
	case want.OK != nil && err != nil:
		return fmt.Errorf("%q\n got the error %v\nwant %q", src, err, *want.OK)
	case want.OK != nil && string(got) != *want.OK:
		return fmt.Errorf("%q\n got %q\nwant %q", src, got, *want.OK)
	}
	return nil
}

// TestWriteFacts rewrites testdata/facts.json.gz if SIGHTLINE_WRITE_FACTS is set.
func TestWriteFacts(t *testing.T) {
	if os.Getenv("SIGHTLINE_WRITE_FACTS") == "" {
		t.Skip("SIGHTLINE_WRITE_FACTS is not set")
	}
	ref := startReference(t)
	g := newMaker(2025)
	f, err := os.Create("testdata/facts.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	z, _ := gzip.NewWriterLevel(f, gzip.BestCompression)
	sep := "["
	for i := range 8000 {
		src := g.source(i)
		want := ref.render(t, src)
		if want.OK == nil && i%4 != 0 || want.OK != nil && (hasAddress(*want.OK) || len(*want.OK) > 2000) {
			continue
		}
		row, err := json.Marshal(map[string]any{"t": src, "r": want})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(z, "%s%s", sep, row)
		sep = ",\n"
	}
	fmt.Fprintln(z, "]")
	if err := errors.Join(z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestDifferential compares random expressions and templates with the real Jinja2. SIGHTLINE_SEED and SIGHTLINE_CASES select
// another run than the default.
func TestDifferential(t *testing.T) {
	ref := startReference(t)
	number := func(name string, def int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
		return def
	}
	g := newMaker(uint64(number("SIGHTLINE_SEED", 1)))
	vars := varsOf(mustJSON(t, []byte(makerVars)))
	cases, fine, wrong := number("SIGHTLINE_CASES", 4000), 0, 0
	absent := 0
	for i := range cases {
		src := g.source(i)
		want := ref.render(t, src)
		if want.OK != nil {
			fine++
		}
		err := compare(src, vars, want)
		if isUnsupported(err) {
			absent++
			continue
		}
		if err != nil {
			t.Error(err)
			wrong++
			if wrong == 100 {
				t.Fatalf("too many differences: got %d, want other than 100", wrong)
			}
		}
	}
	t.Logf("%d cases, %d of them without an error in Jinja2, %d ask for what is not supported, %d differences", cases, fine, absent, wrong)
}
