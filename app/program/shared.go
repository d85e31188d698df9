package program

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// takes reports whether a command has a flag: its own, or a program's flag whose tag `for` names the command or its group.
func takes(n *kong.Node, f *kong.Flag) bool {
	words, group := strings.Fields(f.Tag.Get("for")), n.ClosestGroup()
	return len(words) == 0 || slices.Contains(words, n.Name) || group != nil && slices.Contains(words, group.Key)
}

// flagsOf returns a command's visible flags: those that it shares with other commands, then its own.
func flagsOf(n *kong.Node) (list []*kong.Flag) {
	for _, group := range n.AllFlags(true) {
		for _, f := range group {
			if takes(n, f) {
				list = append(list, f)
			}
		}
	}
	return list
}

// Unshared returns an error if the command line has a program's flag that is not for its command.
func Unshared(ctx *kong.Context) error {
	n := ctx.Selected()
	for _, f := range ctx.Model.Flags {
		if n != nil && f.Set && !takes(n, f) {
			return fmt.Errorf("%s has no flag --%s", n.Name, f.Name)
		}
	}
	return nil
}

// help prints the help of a command with the flags that it has, or the commands of the program by group.
func help(o kong.HelpOptions, ctx *kong.Context) error {
	n := ctx.Selected()
	if n != nil {
		n.Flags, ctx.Model.Flags = flagsOf(n), nil
		return kong.DefaultHelpPrinter(o, ctx)
	}
	var groups []string
	of := map[string][]string{}
	for _, c := range ctx.Model.Leaves(true) {
		name := c.ClosestGroup().Title
		if of[name] == nil {
			groups = append(groups, name)
		}
		of[name] = append(of[name], fmt.Sprintf("%-15s%s", strings.TrimPrefix(c.FullPath(), ctx.Model.Name+" "), c.Help))
	}
	fmt.Fprintf(ctx.Stdout, "Usage: %s COMMAND [flags]; COMMAND --help tells more\n\n%s\n\n", ctx.Model.Name, ctx.Model.Help)
	for _, name := range groups {
		for i, line := range of[name] {
			fmt.Fprintf(ctx.Stdout, "%-7s%s\n", map[bool]string{true: name}[i == 0], line)
		}
	}
	return nil
}
