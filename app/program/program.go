// Package program is what the command lines of sightline and sightline-lab share: how they start and end, and the commands that both
// have.
package program

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/sightline-router/sightline/internal/buildinfo"
	"github.com/sightline-router/sightline/internal/printable"
)

// Commands are the commands that both programs have. A program's own struct of commands embeds them.
type Commands struct {
	Completion completionCmd `cmd:"" group:"Run" help:"Print the completion script of a shell."`
	Man        manCmd        `cmd:"" hidden:"" help:"Print the man page of all commands and flags."`
	Version    versionCmd    `cmd:"" group:"Run" help:"Print what this binary was built from, as JSON."`

	ShowVersion kong.VersionFlag `name:"version" hidden:""`
}

type versionCmd struct{}

func (versionCmd) Run() error { return json.NewEncoder(os.Stdout).Encode(buildinfo.Read()) }

// Main parses the arguments, runs the command that they name and exits with status 1 if it fails. commands is a pointer to a struct
// whose fields are kong's commands; their Run methods may take a context, which a signal ends.
func Main(name, description string, commands any) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	parser, err := Parser(name, description, commands, kong.BindTo(ctx, (*context.Context)(nil)))
	if err != nil {
		panic(err) // the struct's tags are wrong
	}
	k, err := parser.Parse(os.Args[1:])
	parser.FatalIfErrorf(err)
	if err := k.Run(); err != nil {
		fmt.Fprintf(printable.Writer(os.Stderr), "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// Parser returns the parser of a program's arguments. Help names neither --help nor --version, so that it fits a screen.
func Parser(name, description string, commands any, options ...kong.Option) (*kong.Kong, error) {
	k, err := kong.New(commands, append(options, kong.Name(name), kong.Description(description), kong.UsageOnError(),
		kong.Vars{"version": buildinfo.Read().String()}, kong.Help(help),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 110}))...)
	if err == nil {
		k.Model.HelpFlag.Hidden = true
	}
	return k, err
}

// Colored reports whether output to f is seen on a terminal whose user wants colours.
func Colored(f *os.File) bool {
	i, err := f.Stat()
	return err == nil && i.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == ""
}

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
		of[name] = append(of[name], fmt.Sprintf("%-16s%s", strings.TrimPrefix(c.FullPath(), ctx.Model.Name+" "), c.Help))
	}
	fmt.Fprintf(ctx.Stdout, "Usage: %s COMMAND [flags]; COMMAND --help tells more\n\n%s\n\n", ctx.Model.Name, ctx.Model.Help)
	for _, name := range groups {
		for i, line := range of[name] {
			fmt.Fprintf(ctx.Stdout, "%-7s%s\n", map[bool]string{true: name}[i == 0], line)
		}
	}
	return nil
}
