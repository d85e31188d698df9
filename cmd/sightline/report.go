package main

import (
	"context"
	"os"

	"github.com/alecthomas/kong"

	"github.com/sightline-router/sightline/app/rollout"
	"github.com/sightline-router/sightline/internal/printable"
)

type reportCmd struct{ rollout.ReportOptions }

// AfterApply takes the flags that other commands have too.
func (c *reportCmd) AfterApply(ctx *kong.Context) (err error) {
	s := of(ctx)
	c.Model = s.Model
	c.JSON, err = s.json()
	if err != nil {
		return err
	}
	c.Admin, err = s.page()
	if c.Admin == "" && err == nil && len(c.Files) == 0 {
		c.Admin, _, err = s.asked()
	}
	return err
}

func (c *reportCmd) Run(ctx context.Context) error {
	return rollout.Report(ctx, c.ReportOptions, printable.Writer(os.Stdout))
}
