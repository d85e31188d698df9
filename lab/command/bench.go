package command

import (
	"context"
	"os"

	"github.com/sightline-router/sightline/lab/bench"
)

type benchCmd struct{ bench.Options }

func (c *benchCmd) Run(ctx context.Context) error {
	return bench.Run(ctx, c.Options, os.Stdout, os.Stderr)
}
