package command

import (
	"context"
	"os"

	"github.com/sightline-router/sightline/lab/eppcheck"
)

type eppCmd struct{ eppcheck.Options }

func (c *eppCmd) Run(ctx context.Context) error { return eppcheck.Report(ctx, c.Options, os.Stdout) }
