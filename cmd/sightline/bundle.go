package main

import (
	"context"
	"os"

	"github.com/sightline-router/sightline/internal/bundle"
)

type bundleCmd struct {
	Config string `short:"c" type:"existingfile" help:"Sightline's configuration."`
	Admin  string `placeholder:"URL" help:"A running Sightline's admin page, such as http://127.0.0.1:9903."`
	Token  string `env:"SIGHTLINE_ADMIN_TOKEN" help:"Its admin_token; default: the configuration's."`
	Envoy  string `placeholder:"URL" help:"Envoy's admin page, such as http://127.0.0.1:9901."`
	File   string `short:"o" help:"Where to; default: sightline-bundle-TIME.tar.gz here. A file that is there is left alone."`
}

func (c *bundleCmd) Run(ctx context.Context) error {
	return bundle.Run(ctx, bundle.Options{Config: c.Config, Admin: c.Admin, Token: c.Token, Envoy: c.Envoy, File: c.File, Out: os.Stdout})
}
