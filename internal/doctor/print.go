package doctor

import (
	"encoding/json"
	"fmt"
)

// marks are the symbols and colours (SGR) of verdicts.
var marks = map[Verdict]struct{ mark, color string }{OK: {"√", "32"}, Warning: {"‼", "33"}, Error: {"×", "31"}, Unchecked: {"-", "2"}}

// print writes all results as JSON or as text by category, where a result without findings takes one line.
func (o *Options) print(list []Result) error {
	if o.JSON {
		return json.NewEncoder(o.Out).Encode(map[string]any{"status": Status(list), "checks": list})
	}
	category, count := "", map[Verdict]int{}
	for _, r := range list {
		if r.Category != category {
			if category != "" {
				fmt.Fprintln(o.Out)
			}
			category = r.Category
			fmt.Fprintln(o.Out, category)
		}
		count[r.Verdict]++
		if err := o.printOne(r, ""); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(o.Out, "\n%d well, %d warnings, %d errors, %d not checked\n", count[OK], count[Warning], count[Error], count[Unchecked])
	return err
}

func (o *Options) printOne(r Result, before string) (err error) {
	if before != "" && o.JSON {
		return json.NewEncoder(o.Out).Encode(r)
	}
	m := marks[r.Verdict]
	if o.Color {
		m.mark = "\x1b[" + m.color + "m" + m.mark + "\x1b[0m"
	}
	why := ""
	if r.Verdict == Unchecked && len(r.Evidence) > 0 {
		why = " (" + r.Evidence[0] + ")"
	}
	_, err = fmt.Fprintf(o.Out, "%s %s %s%s%s\n", m.mark, r.Code, before, r.Title, why)
	if r.Verdict == OK || r.Verdict == Unchecked {
		return err
	}
	for _, e := range r.Evidence {
		fmt.Fprintf(o.Out, "    %s\n", e)
	}
	if r.Fix != "" {
		_, err = fmt.Fprintf(o.Out, "    fix: %s\n    see %s\n", r.Fix, r.Link)
	}
	return err
}
