package fleetsim

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options say what Play plays.
type Options struct {
	Scenarios []string  // by name; nil: all
	Pickers   []string  // by name; nil: all
	Loads     []float64 // shares of a scenario's capacity
	Trace     string    // the file of a trace to play in addition; "": none
	Workers   int       // workers that serve the trace
	HTML      io.Writer // receives the page; nil: none
	Seed      uint64    // of the traffic
	Goals     bool      // play the goals' scenarios instead of Scenarios, Pickers and Loads, and report which are reached
	Missed    Missed    // goals whose miss is known; nil: a miss is no error
}

// Played is one scenario at one load under several pickers, best mean first.
type Played struct {
	Scenario *Scenario
	Load     float64
	Rows     []Row
}

// Row is the result of one picker.
type Row struct {
	Picker string
	Summary
	result *Result // sightline's only
}

// Play compares pickers and writes a table for each scenario and load as it finishes. The error names an unknown name, what cannot be
// read of the trace, or how many goals are not reached.
func Play(w io.Writer, o Options) error {
	scenarios := Scenarios()
	if o.Trace != "" {
		trace, err := readScenario(o.Trace, o.Workers, scenarios)
		if err != nil {
			return err
		}
		scenarios = append(scenarios, trace)
	}
	for i := range scenarios {
		scenarios[i].seed = max(1, o.Seed)
	}
	if o.Goals {
		return playGoals(w, scenarios, o)
	}
	scenarios, err := named(scenarios, o.Scenarios, func(s Scenario) string { return s.Name })
	if err != nil {
		return fmt.Errorf("scenario: %w", err)
	}
	name := func(r Rival) string { return r.Name }
	if _, err := named(slices.Concat(tierPickers(), pairPickers(), hybridPickers()), o.Pickers, name); err != nil {
		return fmt.Errorf("picker: %w", err)
	}
	var all []Played
	for i := range scenarios {
		loads := o.Loads
		if scenarios[i].Loads != nil {
			loads = scenarios[i].Loads
		}
		pickers := slices.DeleteFunc(scenarios[i].pickers(), func(r Rival) bool {
			return len(o.Pickers) > 0 && !slices.Contains(o.Pickers, r.Name)
		})
		if len(pickers) == 0 {
			continue
		}
		for _, load := range loads {
			p := scenarios[i].compare(load, pickers)
			p.write(w)
			all = append(all, p)
		}
	}
	if o.HTML != nil {
		return writePage(o.HTML, all)
	}
	return nil
}

// named returns the elements of a list with the given names; without names, all.
func named[T any](list []T, names []string, name func(T) string) (some []T, err error) {
	if len(names) == 0 {
		return list, nil
	}
	for _, n := range names {
		at := slices.IndexFunc(list, func(x T) bool { return name(x) == n })
		if at < 0 {
			known := make([]string, len(list))
			for i := range list {
				known[i] = name(list[i])
			}
			return nil, fmt.Errorf("%q is none of %q", n, known)
		}
		some = append(some, list[at])
	}
	return some, nil
}

// compare plays a load under each picker, in parallel on all processors.
func (s *Scenario) compare(load float64, pickers []Rival) Played {
	trace := s.at(load, s.seed)
	p := Played{s, load, make([]Row, len(pickers))}
	var all sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, picker := range pickers {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			result, sum := s.run(trace, picker)
			if i != 0 || picker.Name != "sightline" {
				result = nil
			}
			p.Rows[i] = Row{picker.Name, sum, result}
		})
	}
	all.Wait()
	slices.SortStableFunc(p.Rows, func(a, b Row) int { return cmp.Compare(a.Mean, b.Mean) })
	return p
}

// write writes a table: times in milliseconds, shares in percent.
func (p *Played) write(w io.Writer) {
	fmt.Fprintf(w, "%s at %.0f %%: %s\n", p.Scenario.Name, 100*p.Load, p.Scenario.About)
	fmt.Fprintf(w, "  %-17s %8s %8s %8s %8s %9s %7s %6s %6s %6s %6s %6s", "TTFT, ms", "mean", "p50", "p90", "p99", "end",
		"req/s", "hits", "of", "regret", "skew", "failed")
	var kinds []class
	for c := range classes {
		if p.Rows[0].Classes[c].N > 0 {
			kinds = append(kinds, c)
			fmt.Fprintf(w, " %20s", c.String()+" 50/90/99")
		}
	}
	for _, r := range p.Rows {
		fmt.Fprintf(w, "\n  %-17s %8d %8d %8d %8d %9d %7.1f %6.1f %6.1f %6.1f %6.2f %6d", r.Picker, ms(r.Mean), ms(r.TTFT.P50),
			ms(r.TTFT.P90), ms(r.TTFT.P99), ms(r.E2E), r.Rate,
			100*r.Hits, 100*r.Possible, 100*r.Regret, r.Skew, r.Failed)
		for _, c := range kinds {
			q := r.Classes[c]
			fmt.Fprintf(w, " %20s", fmt.Sprintf("%d/%d/%d", ms(q.P50), ms(q.P90), ms(q.P99)))
		}
	}
	fmt.Fprintf(w, "\n%s\n", strings.Repeat("-", 113+21*len(kinds)))
}

func ms(d time.Duration) int64 { return d.Milliseconds() }
