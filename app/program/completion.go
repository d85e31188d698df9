package program

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help is the command's longer one.
func (completionCmd) Help() string {
	return "In ~/.bashrc or ~/.zshrc: source <(sightline completion bash), or zsh. For fish: sightline completion fish > " +
		"~/.config/fish/completions/sightline.fish. " +
		"sightline-lab has one of its own."
}

func (c *completionCmd) Run(ctx *kong.Context) error {
	if c.Shell == "fish" {
		fishCompletion(ctx.Stdout, ctx.Model.Node)
		return nil
	}
	if c.Shell == "zsh" {
		fmt.Fprint(ctx.Stdout, "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n")
	}
	bashCompletion(ctx.Stdout, ctx.Model.Node)
	return nil
}

// offered returns the words that may follow a command: its subcommands or the values of its argument, and its flags.
func offered(n *kong.Node) (words []string, flags []*kong.Flag) {
	for _, below := range n.Children {
		if !below.Hidden {
			words = append(words, below.Name)
		}
	}
	for _, p := range n.Positional {
		if p.Enum != "" {
			words = append(words, p.EnumSlice()...)
		}
	}
	return words, flagsOf(n)
}

// bashCompletion writes the completion for bash, and for zsh's emulation of it. If no word matches, file names are offered.
func bashCompletion(w io.Writer, root *kong.Node) {
	line := func(indent, pattern string, n *kong.Node) {
		words, flags := offered(n)
		var names []string
		for _, f := range flags {
			names = append(names, "--"+f.Name)
		}
		fmt.Fprintf(w, "%s%s) words='%s' flags='%s' ;;\n", indent, pattern, strings.Join(words, " "), strings.Join(names, " "))
	}
	// named writes where names of a kind are offered, which are asked for then.
	named := func(pattern, kind string) {
		fmt.Fprintf(w, "    %s) words=\"$words $(%s names %s 2>/dev/null)\" ;;\n", pattern, root.Name, kind)
	}
	function := "_" + strings.ReplaceAll(root.Name, "-", "_")
	fmt.Fprint(w,
		function+
			"() {\n  local cur=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} words flags\n  [ \"$COMP_CWORD\" -gt 1 ] || "+
			"command=\n  case $command in\n")
	for _, n := range root.Children {
		line("    ", n.Name, n)
	}
	line("    ", "*", root)
	fmt.Fprint(w, "  esac\n  case \"$command ${COMP_WORDS[COMP_CWORD-1]}\" in\n")
	for _, n := range root.Children {
		for _, f := range flagsOf(n) {
			if f.Tag.Has("names") {
				named(fmt.Sprintf("'%s --%s'", n.Name, f.Name), f.Tag.Get("names"))
			}
		}
		for _, p := range n.Positional {
			if p.Tag.Has("names") {
				named("'"+n.Name+" '*", p.Tag.Get("names"))
			}
		}
	}
	fmt.Fprint(w, "  esac\n  case $cur in -*) words=$flags ;; esac\n  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\n")
	fmt.Fprintf(w, "complete -o default -F %s %s\n", function, root.Name)
}

func fishCompletion(w io.Writer, root *kong.Node) {
	quote := func(text string) string { return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(text) + "'" }
	below := func(when string, n *kong.Node) {
		words, flags := offered(n)
		if len(words) > 0 {
			fmt.Fprintf(w, "complete -c %s -n %s -f -a %s\n", root.Name, quote(when), quote(strings.Join(words, " ")))
		}
		for _, p := range n.Positional {
			if p.Tag.Has("names") {
				fmt.Fprintf(w, "complete -c %s -n %s -f -a '(%[1]s names %[3]s)'\n", root.Name, quote(when), p.Tag.Get("names"))
			}
		}
		for _, f := range flags {
			takes := ""
			if f.Tag.Has("names") {
				takes = fmt.Sprintf(" -f -a '(%s names %s)'", root.Name, f.Tag.Get("names"))
			}
			if !f.IsBool() {
				takes += " -r"
			}
			fmt.Fprintf(w, "complete -c %s -n %s -l %s%s -d %s\n", root.Name, quote(when), f.Name, takes, quote(f.Help))
		}
	}
	below("__fish_use_subcommand", root)
	for _, n := range root.Children {
		if !n.Hidden {
			below("__fish_seen_subcommand_from "+n.Name, n)
		}
	}
}
