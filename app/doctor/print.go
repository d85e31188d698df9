package doctor

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/sightline-router/sightline/internal/printable"
)

// marks are the symbols and colours (SGR) of verdicts.
var marks = map[Verdict]struct{ mark, color string }{OK: {"√", "32"}, Warning: {"‼", "33"}, Error: {"×", "31"}, Unchecked: {"-", "2"}}

// maxLines is how many findings of a check are printed; the worst come first.
const maxLines = 12

// print writes all results as JSON or as text by category, where a result without findings takes one line.
func (o *Options) print(list []Result) error {
	if o.JSON {
		return json.NewEncoder(o.Out).Encode(map[string]any{"status": Status(list, o.Pre), "checks": list})
	}
	category, partly, count := "", "", map[Verdict]int{}
	if n := len(slices.DeleteFunc(slices.Clone(list), func(r Result) bool { return r.Verdict != OK || len(r.skipped()) == 0 })); n > 0 {
		partly = fmt.Sprintf(" (%d in part)", n)
	}
	for i := range list { // names in it come from outside
		r := &list[i]
		r.Fix, r.Note, r.Evidence = printable.Text(r.Fix), printable.Text(r.Note), slices.Clone(r.Evidence)
		for j := range r.Evidence {
			r.Evidence[j] = printable.Text(r.Evidence[j])
		}
	}
	for len(list) > 0 {
		same := list[:sameReason(list)]
		list = list[len(same):]
		r := same[0]
		if r.Category != category {
			if category != "" {
				fmt.Fprintln(o.Out)
			}
			category = r.Category
			fmt.Fprintln(o.Out, category)
		}
		count[r.Verdict] += len(same)
		if len(same) > 1 {
			fmt.Fprint(o.Out, o.mark(r.Verdict))
			for _, one := range same {
				fmt.Fprint(o.Out, " ", one.Code)
			}
			fmt.Fprintf(o.Out, " (%s)\n", r.Evidence[0])
			continue
		}
		if err := o.printOne(r); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(o.Out, "\n%d passed%s, %d warnings, %d errors, %d not checked\n", count[OK], partly,
		count[Warning], count[Error], count[Unchecked])
	return err
}

// sameReason returns how many checks at the beginning of the list were skipped for the same reason, so that one line can report them.
func sameReason(list []Result) int {
	first := list[0]
	other := slices.IndexFunc(list, func(r Result) bool {
		return r.Verdict != Unchecked || r.Category != first.Category || len(r.Evidence) == 0 || r.Evidence[0] != first.Evidence[0]
	})
	if other < 0 {
		return len(list)
	}
	return max(other, 1)
}

func (o *Options) mark(v Verdict) string {
	if m := marks[v]; o.Color {
		return "\x1b[" + m.color + "m" + m.mark + "\x1b[0m"
	}
	return marks[v].mark
}

// skipped returns what a check left out, and why.
func (r *Result) skipped() (list []string) {
	for _, e := range r.Evidence {
		if strings.HasPrefix(e, notChecked) {
			list = append(list, e)
		}
	}
	return list
}

func (o *Options) printOne(r Result) (err error) {
	why := ""
	if r.Note != "" {
		why = " (" + r.Note + ")"
	}
	if r.Verdict == Unchecked && len(r.Evidence) > 0 {
		why = " (" + r.Evidence[0] + ")"
	}
	_, err = fmt.Fprintf(o.Out, "%s %s %s%s\n", o.mark(r.Verdict), r.Code, r.Title, why)
	if r.Verdict == OK {
		for _, e := range r.skipped() {
			_, err = fmt.Fprintf(o.Out, "    %s\n", e)
		}
	}
	if r.Verdict == OK || r.Verdict == Unchecked {
		return err
	}
	for _, e := range r.Evidence[:min(len(r.Evidence), maxLines)] {
		fmt.Fprintf(o.Out, "    %s\n", e)
	}
	if more := len(r.Evidence) - maxLines; more > 0 {
		fmt.Fprintf(o.Out, "    … and %d more lines (-o json has them)\n", more)
	}
	if r.Fix != "" {
		_, err = fmt.Fprintf(o.Out, "    fix: %s\n    see %s\n", r.Fix, r.Link)
	}
	return err
}
