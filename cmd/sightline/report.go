package main

import (
	"context"
	"os"

	"github.com/sightline-router/sightline/internal/rollout"
)

// reportCmd has the fields of rollout.ReportOptions, as arguments and flags.
type reportCmd struct {
	Files []string `arg:"" optional:"" type:"existingfile" help:"Decision logs; without one a running Sightline is asked."`
	Admin string   `default:"http://127.0.0.1:9903" help:"The running Sightline's admin page."`
	Token string   `env:"SIGHTLINE_ADMIN_TOKEN" help:"Its admin_token."`
	JSON  bool     `help:"As one JSON object."`
}

func (c *reportCmd) Run(ctx context.Context) error {
	return rollout.Report(ctx, rollout.ReportOptions(*c), os.Stdout)
}
