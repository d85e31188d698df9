package command

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/sightline-router/sightline/lab/fleetsim"
)

type simCmd struct {
	Scenarios  []string  `help:"Names of the scenarios to run; default: all."`
	Pickers    []string  `help:"Names of the pickers to compare; default: all."`
	Loads      []float64 `default:"0.7" help:"Loads as shares of round robin's capacity; --loads 0.4,0.7,0.9,1.3 for all of docs/choice.md."`
	Trace      string    `type:"existingfile" help:"A trace to run as well, gzipped or not: one JSON object per line in Mooncake's format. The scenario is named after the file."`
	Workers    int       `default:"16" help:"Workers that serve the trace."`
	HTML       string    `name:"html" placeholder:"FILE" help:"Write the plots to this file, as one page."`
	WriteTrace string    `placeholder:"FILE" help:"Write the trace of examples/traces that is called so (images.jsonl.gz, documents.jsonl.gz, …) to this file and run nothing."`
	Seed       uint64    `default:"1" help:"Seed of the traffic."`
	Goals      bool      `help:"Run the scenarios of docs/choice.md's goals instead and report which goals are reached."`
	Missed     string    `type:"existingfile" help:"With --goals and seed 1: the page that lists the goals that are missed, lab/fleetsim/missed.md; fails where another is missed, or one by other figures."`
}

func (c *simCmd) Run() error {
	signal.Reset(os.Interrupt, syscall.SIGTERM) // there is nothing to clean up: exit at once
	if c.WriteTrace != "" {
		return toFile(c.WriteTrace, func(w io.Writer) error { return fleetsim.WriteTrace(w, c.WriteTrace) })
	}
	missed, err := fleetsim.ReadMissed(c.Missed)
	if err != nil {
		return err
	}
	play := func(page io.Writer) error {
		return fleetsim.Play(os.Stdout, fleetsim.Options{Scenarios: c.Scenarios, Pickers: c.Pickers, Loads: c.Loads,
			Trace: c.Trace, Workers: c.Workers, HTML: page, Seed: c.Seed, Goals: c.Goals, Missed: missed})
	}
	if c.HTML == "" {
		return play(nil)
	}
	return toFile(c.HTML, play)
}

func toFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
