package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/alecthomas/kong"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/generate"
	"github.com/sightline-router/sightline/app/serve"
)

type envoyCmd struct {
	fleetFlags
	Variant      string   `default:"composite" placeholder:"NAME,…" help:"Another form: NAME.yaml of folder envoy."`
	EnvoyVersion string   `placeholder:"1.N" help:"The oldest Envoy that must accept it."`
	For          string   `placeholder:"FILE|URL" help:"Check yours: file, dump, or admin page."`
	Apply        bool     `xor:"change" help:"Print that file with what it lacks added."`
	Remove       bool     `xor:"change" help:"Print it as it was before --apply."`
	Cluster      []string `placeholder:"NAME" help:"Its clusters of workers, if not clear."`
}

// Help is the text of `sightline envoy --help` besides the flags.
func (c *envoyCmd) Help() string {
	return "Without -c and --worker: the shipped example. No worker is asked. --for exits with 0 if nothing is found, 1 if " +
		"something is, 2 if the file is unreadable."
}

// AfterApply takes the flag that other commands have too.
func (c *envoyCmd) AfterApply(ctx *kong.Context) error { c.Config = of(ctx).Config; return nil }

// configuration returns what Envoy's depends on.
func (c *envoyCmd) configuration() (config.Config, error) {
	o, err := c.options("", "")
	switch {
	case err != nil:
		return config.Config{}, err
	case len(c.Worker) > 0:
		return generate.Envoy(o)
	case c.Config != "":
		return config.Load(c.Config)
	}
	return config.Default(), nil
}

func (c *envoyCmd) Run(ctx context.Context) error {
	if c.For != "" {
		change := ""
		switch {
		case c.Apply:
			change = "apply"
		case c.Remove:
			change = "remove"
		}
		cfg, err := c.configuration()
		fits := false
		if err == nil {
			fits, err = serve.FitEnvoy(ctx, cfg, c.Variant, c.EnvoyVersion, c.For, c.Cluster, change, os.Stdout, os.Stderr)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "sightline: %v\n", err)
			os.Exit(2)
		}
		if !fits {
			os.Exit(1)
		}
		return nil
	}
	if c.Apply || c.Remove || len(c.Cluster) > 0 {
		return errors.New("--apply, --remove and --cluster belong to --for FILE, which is not given")
	}
	cfg, err := c.configuration()
	if err != nil {
		return err
	}
	return serve.PrintEnvoy(cfg, c.Variant, c.EnvoyVersion, os.Stdout, os.Stderr)
}
