package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/sightline-router/sightline/lab/command"
)

// runs says which package's tests run a program's subcommand.
var runs = map[string]map[string]string{
	"sightline": {"init": "e2e", "serve": "e2e", "explain": "e2e", "envoy": "e2e", "report": "e2e", "config": "app/config",
		"agent":       "app/serve",
		"credentials": "app/serve", "doctor": "app/doctor", "bundle": "app/bundle", "cordon": "e2e", "drain": "e2e", "uncordon": "e2e",
		"status": "e2e", "top": "e2e", "decisions": "e2e", "workers": "e2e", "problems": "e2e",
		"completion": "cmd/sightline", "version": "lab/release"},
	"sightline-lab": {"demo": "e2e", "envoy": "e2e", "worker-sim": "e2e", "epp-conformance": "e2e", "bench": "lab/bench",
		"sim": "lab/fleetsim", "replay": "lab/fleetsim",
		"completion": "cmd/sightline", "version": "lab/release"},
}

// elsewhere lists the programs in the pages' commands that no test runs as written, and what they need.
var elsewhere = map[string]string{
	"kubectl":      "a cluster: make manifests validates what is applied, make e2e-gateway applies it",
	"helm":         "a cluster: make manifests renders the chart",
	"docker":       "Docker and a registry: make e2e-compose",
	"trtllm-serve": "a GPU",
	"vllm":         "a GPU: make e2e-vllm starts its CPU build",
	"sglang":       "a GPU: its recordings are part of make test",
	"nats-server":  "a server of your own: make test embeds it",
}

// shell lists programs that every machine has, or that a page has just started; make test runs Envoy itself.
var shell = strings.Fields("curl jq open cp cat head chmod printf envoy")

var (
	blocks = regexp.MustCompile("(?ms)^ *```([a-z]*)\n(.*?)^ *```$|((?:^ {4,}\\S[^\n]*\n)+)")
	spans  = regexp.MustCompile("`((?:make [a-z][a-z0-9-]*|sightline(?:-lab)? )[^`]*)`")
	flags  = regexp.MustCompile(`--[a-z][a-z-]+`)
	target = regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`)
	part   = regexp.MustCompile(`\s(?:\||&&|;|>)\s|\s#`)
	assign = regexp.MustCompile(`^(?:[A-Z_]+=\S+ )+`)
)

// commands returns the commands of a page, from its blocks and spans. In blocks that are not marked as sh only lines that begin
// with a known name count, because these blocks also hold output.
func commands(page string) (list []string) {
	known := func(word string) bool { return runs[word] != nil || word == "make" || elsewhere[word] != "" }
	add := func(text string, all bool) {
		for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
			for i, c := range part.Split(strings.TrimPrefix(strings.TrimSpace(line), "$ "), -1) {
				c = assign.ReplaceAllString(strings.TrimSpace(c), "")
				if word, _, _ := strings.Cut(c, " "); c != "" && (known(word) || all && i == 0 && word[0] != '{' && word[0] != '#') {
					list = append(list, c)
				}
			}
		}
	}
	for _, m := range blocks.FindAllStringSubmatch(page, -1) {
		if m[1] == "" || m[1] == "sh" {
			add(m[2]+m[3], m[1] == "sh")
		}
	}
	for _, m := range spans.FindAllStringSubmatch(page, -1) {
		add(m[1], false)
	}
	return list
}

// pages returns the pages that contain commands.
func pages(t *testing.T) (list []string) {
	for _, at := range []string{"*.md", "docs/*.md", "examples/*/README.md"} {
		found, err := filepath.Glob("../../" + at)
		if err != nil || found == nil {
			t.Fatalf("%q %v: got %q, want no error, one", at, err, found)
		}
		list = append(list, found...)
	}
	return slices.DeleteFunc(list, func(p string) bool { return filepath.Base(p) == "CHANGELOG.md" })
}

// TestCommands compares the commands in the pages with what exists: subcommands and flags are the binary's and have tests that run
// them, targets are the Makefile's. Commands that need a cluster, a GPU or a registry are printed.
func TestCommands(t *testing.T) {
	known := map[string]map[string]bool{} // by program and subcommand, its flags
	for program, commands := range map[string]any{"sightline": &cli{}, command.Name: &command.All{}} {
		parser, err := kong.New(commands, kong.Vars{"version": ""})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range parser.Model.Children {
			subcommand := program + " " + n.Name
			known[subcommand] = map[string]bool{}
			for _, group := range n.AllFlags(false) {
				for _, f := range group {
					known[subcommand]["--"+f.Name] = true
				}
			}
		}
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, m := range target.FindAllStringSubmatch(string(makefile), -1) {
		targets[m[1]] = true
	}
	counted, notRun := 0, map[string]bool{}
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		page = strings.TrimPrefix(filepath.ToSlash(page), "../../")
		for _, line := range commands(string(text)) {
			counted++
			words := strings.Fields(line)
			switch word := words[0]; {
			case word == "make":
				for _, w := range words[1:] {
					if !strings.Contains(w, "=") && !targets[w] {
						t.Errorf("%s: %s: the Makefile has no target %s", page, line, w)
					}
				}
			case runs[word] != nil:
				if words[1] == "--version" {
					break
				}
				subcommand, tested := word+" "+words[1], runs[word][words[1]]
				if known[subcommand] == nil {
					t.Errorf("%s: %s: there is no such subcommand; got %v, want one", page, line, known[subcommand])
				}
				if tests, _ := filepath.Glob(filepath.Join("../..", tested, "*_test.go")); tested == "" || tests == nil {
					t.Errorf("%s: %s: say in runs which tests run it; got %q, %q, want some, one", page, line, tested, tests)
				}
				for _, flag := range flags.FindAllString(line, -1) {
					if !known[subcommand][flag] {
						t.Errorf("%s: %s: there is no flag %s", page, line, flag)
					}
				}
			case elsewhere[word] != "":
				notRun[word+" ("+elsewhere[word]+"): "+page+": "+line] = true
			case strings.Contains(word, "/"):
				if _, err := os.Stat(filepath.Join("../..", word)); err != nil {
					t.Errorf("%s: %s: no such file; got %v, want no error", page, line, err)
				}
			case !slices.Contains(shell, word):
				t.Errorf("%s: %s: say in elsewhere what it needs", page, line)
			}
		}
	}
	if counted < 100 {
		t.Errorf("%d commands found: the pages have more, want at least 100", counted)
	}
	t.Logf("%d commands; not run by make test as they stand:\n%s", counted, strings.Join(slices.Sorted(maps.Keys(notRun)), "\n"))
}
