package main

import (
	"context"
	"os"

	"github.com/alecthomas/kong"

	"github.com/sightline-router/sightline/app/bundle"
	"github.com/sightline-router/sightline/internal/printable"
)

type bundleCmd struct{ bundle.Options }

// AfterApply takes the flag that other commands have too.
func (c *bundleCmd) AfterApply(ctx *kong.Context) error { c.Config = of(ctx).Config; return nil }

func (c *bundleCmd) Run(ctx context.Context) error {
	return bundle.Run(ctx, c.Options, printable.Writer(os.Stdout))
}
