package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

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
		{"sightline ", "serve doctor completion", "worker-sim demo"},
		{"sightline do", "doctor", "serve"},
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
				t.Errorf("%q: %s is not offered: got %q, want %q in it", c.line, w, got, w)
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

// TestCompletionOfNames: the shells that are here offer the names of workers, models, causes and codes where one of them belongs, as the
// program tells them, and commands and flags. bash always is.
func TestCompletionOfNames(t *testing.T) {
	dir := t.TempDir()
	stand := `#!/bin/sh
case "$*" in
"names workers") printf 'worker-1\nworker-2\n' ;;
"names models") echo Qwen/Qwen2.5-VL-7B-Instruct ;;
"names causes") echo being-computed ;;
"names codes") printf 'SL0109\nSL0301\n' ;;
esac
`
	if err := os.WriteFile(filepath.Join(dir, "sightline"), []byte(stand), 0o700); err != nil {
		t.Fatal(err)
	}
	// What each shell offers for a command line, in its own way: zsh's emulation takes bash's function, and its widgets, which need a
	// terminal, what begins with the word.
	asks := map[string]string{
		"bash": `source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sightline; printf '%s\n' "${COMPREPLY[@]}"`,
		"zsh": `source "$1"; shift; COMP_WORDS=("$@"); setopt ksh_arrays sh_word_split; COMP_CWORD=$(($# - 1)); _sightline
printf '%s\n' "${(M)COMPREPLY[@]:#${COMP_WORDS[COMP_CWORD]}*}"`,
		"fish": `source $argv[1]; complete -C "$argv[2..]"`,
	}
	for shell, ask := range asks {
		at, err := exec.LookPath(shell)
		if err != nil {
			t.Logf("%s: NOT RUN: it is not installed", shell)
			continue
		}
		script := filepath.Join(dir, "completion."+shell)
		if err := os.WriteFile(script, []byte(printed(t, "completion", shell)), 0o600); err != nil {
			t.Fatal(err)
		}
		for line, want := range map[string]string{"sightline drain ": "worker-1 worker-2", "sightline workers worker-": "worker-1 worker-2",
			"sightline decisions --worker ": "worker-1 worker-2", "sightline decisions --model ": "Qwen/Qwen2.5-VL-7B-Instruct",
			"sightline report --model Q": "Qwen/Qwen2.5-VL-7B-Instruct", "sightline decisions --lost ": "being-computed",
			"sightline doctor SL": "SL0109 SL0301", "sightline problems SL03": "SL0301", "sightline dec": "decisions",
			"sightline decisions --f": "--failed --follow"} {
			c := exec.Command(at, append([]string{"-c", ask, shell, script}, strings.Split(line, " ")...)...)
			if shell == "fish" {
				c = exec.Command(at, "--no-config", "-c", ask, script, line)
			}
			c.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "HOME="+dir)
			out, err := c.CombinedOutput()
			if err != nil {
				t.Fatalf("%s, %q: %v\n%s", shell, line, err, out)
			}
			var got []string
			for offer := range strings.Lines(string(out)) {
				offer, _, _ = strings.Cut(strings.TrimSpace(offer), "\t")
				got = append(got, offer)
			}
			slices.Sort(got)
			if strings.Join(got, " ") != want {
				t.Errorf("%s offers %q for %q, want %q", shell, got, line, want)
			}
		}
	}
}

// helped returns the help that a command line asks for.
func helped(t *testing.T, args []string) (text string) {
	t.Helper()
	var out bytes.Buffer
	parser, err := program.Parser("sightline", description, &cli{}, kong.Writers(&out, &out), kong.Exit(func(int) { panic("done") }))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Errorf("%q: got no help", args)
		}
		text = out.String()
	}()
	_, _ = parser.Parse(args)
	return ""
}

// TestScreen: the help of the program and of each command fits a screen, and there are no more flags than a person meets. Hidden flags are
// not counted: those of other endpoint pickers, which charts pass to serve (seven that work, such as --grpc-port, listed in docs/envoy.md,
// and twelve without effect); agent's --admin-token and --log-level, which are read from environment variables; --version, a command too.
func TestScreen(t *testing.T) {
	parser, err := program.Parser("sightline", description, &cli{})
	if err != nil {
		t.Fatal(err)
	}
	flags := 0
	for _, n := range append([]*kong.Node{parser.Model.Node}, parser.Model.Children...) {
		args := []string{"--help"}
		if n != parser.Model.Node {
			args = []string{n.Name, "--help"}
		}
		for _, f := range n.Flags {
			if !f.Hidden {
				flags++
			}
		}
		text := helped(t, args)
		if lines := strings.Count(text, "\n"); lines > 24 || lines < 3 {
			t.Errorf("%q: got %d lines, want 3 to 24\n%s", args, lines, text)
		}
		for line := range strings.Lines(text) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%q: got %d columns, want at most 80: %s", args, n, line)
			}
		}
	}
	const most = 75
	t.Logf("%d flags", flags)
	if flags > most {
		t.Errorf("got %d flags, want at most %d: a new one takes another's place", flags, most)
	}
}

// TestOnePage: commands that ask one admin page refuse what would lead them to none, and take the token of -c with its page.
func TestOnePage(t *testing.T) {
	parse := func(args ...string) (*cli, error) {
		c := &cli{}
		parser, err := program.Parser("sightline", description, c)
		if err != nil {
			t.Fatal(err)
		}
		_, err = parser.Parse(args)
		return c, err
	}
	for _, c := range []struct{ variable, args, want string }{
		{"", "explain --id x --admin svc/sightline", "--admin svc/sightline: want an address"},
		{"", "report --admin svc/sightline", "--admin svc/sightline: want an address"},
		{"", "report --admin a:1 --admin b:1", "--admin a:1,b:1: want one address"},
		{"svc/sightline", "explain --id x", "SIGHTLINE_ADMIN=svc/sightline: want an address"},
		{"svc/sightline", "report", "SIGHTLINE_ADMIN=svc/sightline: want an address"},
	} {
		t.Setenv("SIGHTLINE_ADMIN", c.variable)
		if _, err := parse(strings.Fields(c.args)...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("SIGHTLINE_ADMIN=%s, %s: got %v, want %s", c.variable, c.args, err, c.want)
		}
	}
	t.Setenv("SIGHTLINE_ADMIN", "")
	name := filepath.Join(t.TempDir(), "sightline.yaml")
	text := "admin: 10.0.0.1:9903\nadmin_token: secret-of-sixteen\nmodels: [{name: m, engine: vllm, dir: .}]\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := parse("explain", "--id", "x", "-c", name)
	if err != nil || c.Explain.Admin != "http://10.0.0.1:9903" || c.Explain.Token != "secret-of-sixteen" {
		t.Errorf("explain --id -c: got %s with token %q, %v, want http://10.0.0.1:9903 with the configuration's", c.Explain.Admin,
			c.Explain.Token, err)
	}
}
