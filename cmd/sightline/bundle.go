package main

import (
	"context"
	"os"

	"github.com/sightline-router/sightline/app/bundle"
)

type bundleCmd struct{ bundle.Options }

func (c *bundleCmd) Run(ctx context.Context) error { return bundle.Run(ctx, c.Options, os.Stdout) }
