package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/sightline-router/sightline/internal/doctor"
)

type doctorCmd struct {
	Config   string        `short:"c" required:"" help:"Sightline's configuration."`
	Envoy    string        `placeholder:"FILE|URL" help:"An envoy.yaml, a saved config dump, or an Envoy's admin page such as http://127.0.0.1:9901; default: that of envoy.admin, if it answers."`
	Admin    string        `placeholder:"URL" help:"A running Sightline's admin page; default: that of the configuration's admin, if it answers."`
	Agent    []string      `placeholder:"URL,…" help:"Agents' admin pages."`
	Pre      bool          `help:"Look at files alone, before anything runs."`
	Canary   bool          `negatable:"" default:"true" help:"Send each worker a small prompt twice, and Envoy, where it answers, one more pair, forged headers and a body of body_limit."`
	Patience time.Duration `default:"3s" help:"How long an answer, or an event, is waited for."`
	Watch    time.Duration `placeholder:"EVERY" help:"Look again after so long, until interrupted, and print what has changed."`
	JSON     bool          `help:"As one JSON object: status, and a list of code, category, title, verdict, evidence, fix, link."`
}

func (c *doctorCmd) Help() string {
	return "Exit status: 0 all is well, 1 an error, 2 a warning and no error. What was not checked is listed and does not count. docs/doctor.md has a section for each code."
}

func (c *doctorCmd) Run(ctx context.Context) error {
	status, err := doctor.Run(ctx, doctor.Options{Config: c.Config, Envoy: c.Envoy, Admin: c.Admin, Agents: c.Agent, Pre: c.Pre, Canary: c.Canary && !c.Pre,
		Patience: c.Patience, Watch: c.Watch, JSON: c.JSON, Out: os.Stdout, Color: colored(os.Stdout)})
	if err != nil {
		return fmt.Errorf("doctor: %w", err)
	}
	os.Exit(status)
	return nil
}
