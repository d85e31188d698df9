package command

import (
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/sightline-router/sightline/app/program"
)

// TestHelp: the help of the program names each command once, and each has one.
func TestHelp(t *testing.T) {
	parser, err := program.Parser(Name, Description, &All{})
	if err != nil {
		t.Fatal(err)
	}
	list := helped(t)
	for _, n := range parser.Model.Children {
		if got := len(regexp.MustCompile("(?m)^.{7}"+n.Name+" +[A-Z]").FindAllString(list, -1)); got != 1 && !n.Hidden {
			t.Errorf("%s: got %d lines of help, want one:\n%s", n.Name, got, list)
		}
		if text := helped(t, n.Name); !strings.Contains(text, Name+" "+n.Name) {
			t.Errorf("%s --help: got %q, want its use", n.Name, text)
		}
	}
}

// helped returns what --help prints behind some arguments.
func helped(t *testing.T, args ...string) string {
	t.Helper()
	var out strings.Builder
	parser, err := program.Parser(Name, Description, &All{}, kong.Writers(&out, &out), kong.Exit(func(int) {}))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = parser.Parse(append(args, "--help")) // goes on behind the help, without a command
	return out.String()
}
