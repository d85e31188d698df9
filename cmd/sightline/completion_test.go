package main

import (
	"bytes"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/sightline-router/sightline/app/program"
)

// printed returns what a command prints.
func printed(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	parser, err := program.Parser("sightline", description, &cli{}, kong.Writers(&out, &out))
	if err != nil {
		t.Fatal(err)
	}
	ctx, err := parser.Parse(args)
	if err == nil {
		err = ctx.Run()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestManPage: every command and flag has its place in the man page, and none that is hidden; groff, where there is one, has no complaint.
func TestManPage(t *testing.T) {
	page := printed(t, "man")
	for _, want := range []string{".TH SIGHTLINE 1", "\n.SS serve [flags]\nRun the router", "\n.B \\-c, \\-\\-config=", "\n.SS config schema",
		`\-\-worker=HOST:PORT`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if groff, err := exec.LookPath("groff"); err == nil {
		c := exec.Command(groff, "-man", "-ww", "-z", "-Tutf8")
		c.Stdin = strings.NewReader(page)
		if said, err := c.CombinedOutput(); err != nil || len(said) > 0 {
			t.Errorf("groff: %v\n%s", err, said)
		}
	}
}

// TestCompletion: bash offers the binary's commands, subcommands and flags, and file names where no word applies.
func TestCompletion(t *testing.T) {
	script := func(shell string) string { return printed(t, "completion", shell) }
	bash := script("bash")
	for _, c := range []struct{ line, want, not string }{
		{"sightline ", "serve doctor completion", "worker-sim demo --version"},
		{"sightline do", "doctor", "serve"},
		{"sightline --", "--version", "serve"},
		{"sightline serve --", "--config --check", "--variant"},
		{"sightline serve --c", "--config --check", "--print-config"},
		{"sightline config ", "schema", "serve"},
		{"sightline completion ", "bash zsh fish", "serve"},
		{"sightline serve -c conf", "", "serve"},
	} {
		words := strings.Split(c.line, " ")
		run := bash + `COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sightline; echo "${COMPREPLY[*]}"`
		out, err := exec.Command("bash", append([]string{"-c", run, "bash"}, words...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v\n%s", c.line, err, out)
		}
		got := strings.Fields(string(out))
		for _, w := range strings.Fields(c.want) {
			if !slices.Contains(got, w) {
				t.Errorf("%q: %s is not offered: %q", c.line, w, got)
			}
		}
		for _, w := range strings.Fields(c.not) {
			if slices.Contains(got, w) {
				t.Errorf("%q: %s is offered", c.line, w)
			}
		}
	}
	if fish := script("fish"); !strings.Contains(fish, "-n '__fish_seen_subcommand_from serve' -l config -r -d '") ||
		strings.Contains(fish, "worker-sim") {
		t.Errorf("fish:\n%s", fish)
	}
	if zsh := script("zsh"); !strings.HasSuffix(zsh, bash) {
		t.Errorf("zsh:\n%.200s", zsh)
	}
}
