package main

import (
	"os"

	"github.com/sightline-router/sightline/internal/fleetsim"
)

type simCmd struct {
	Scenarios []string  `help:"Names of the scenarios to play; default: all."`
	Rules     []string  `help:"Names of the rules to compare; default: all."`
	Loads     []float64 `default:"0.7" help:"Shares of what round robin bears."`
	Trace     string    `type:"existingfile" help:"A trace in Mooncake's form, gzipped, to play too (scenario mooncake)."`
}

func (c *simCmd) Run() error {
	return fleetsim.Play(os.Stdout, fleetsim.Options{Scenarios: c.Scenarios, Rules: c.Rules, Loads: c.Loads, Trace: c.Trace})
}
