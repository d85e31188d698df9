package program

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

type manCmd struct{}

func (manCmd) Run(ctx *kong.Context) error { return manPage(ctx.Stdout, ctx.Model.Node) }

// roff escapes what a line of roff would read otherwise.
func roff(text string) string {
	var out strings.Builder
	for _, r := range text {
		switch {
		case r == '\\':
			out.WriteString(`\e`)
		case r == '-':
			out.WriteString(`\-`)
		case r == '\'' || r > '~':
			fmt.Fprintf(&out, `\[u%04X]`, r)
		default:
			out.WriteRune(r)
		}
	}
	return out.String()
}

// manPage writes the man page of a program: its commands with their arguments and flags.
func manPage(out io.Writer, root *kong.Node) error {
	var page strings.Builder
	line := func(format string, texts ...any) {
		for i, t := range texts {
			texts[i] = roff(fmt.Sprint(t))
		}
		fmt.Fprintf(&page, format+"\n", texts...)
	}
	flags := func(n *kong.Node) {
		for _, f := range flagsOf(n) {
			name := "--" + f.Name
			if f.Short != 0 {
				name = "-" + string(f.Short) + ", " + name
			}
			if !f.IsBool() {
				name += "=" + strings.ReplaceAll(f.FormatPlaceHolder(), `"`, "")
			}
			line(".TP\n.B %s\n%s", name, f.Help)
		}
	}
	line(".TH %s 1\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.B %[2]s\nCOMMAND [FLAGS]\n.SH COMMANDS",
		strings.ToUpper(root.Name), root.Name, root.Help)
	var below func(*kong.Node)
	below = func(n *kong.Node) {
		for _, c := range n.Children {
			if c.Hidden {
				continue
			}
			if len(c.Children) == 0 {
				line(".SS %s\n%s", c.Summary(), c.Help)
				if c.Detail != "" {
					line(".PP\n%s", c.Detail)
				}
				for _, p := range c.Positional {
					line(".TP\n.I %s\n%s", p.Summary(), p.Help)
				}
				flags(c)
			}
			below(c)
		}
	}
	below(root)
	_, err := io.WriteString(out, page.String())
	return err
}
