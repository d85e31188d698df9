package main

import (
	"context"
	"os"

	"github.com/sightline-router/sightline/app/rollout"
)

type reportCmd struct{ rollout.ReportOptions }

func (c *reportCmd) Run(ctx context.Context) error {
	return rollout.Report(ctx, c.ReportOptions, os.Stdout)
}
