package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/alecthomas/kong"

	"github.com/sightline-router/sightline/app/bundle"
	"github.com/sightline-router/sightline/app/doctor"
	"github.com/sightline-router/sightline/app/program"
	"github.com/sightline-router/sightline/internal/printable"
)

type doctorCmd struct{ doctor.Options }

func (c *doctorCmd) Help() string {
	return "Exit status: 0 well, 1 an error, 2 only warnings, 3 something was not checked. docs/doctor.md has a section for each code."
}

// AfterApply takes the flags that other commands have too.
func (c *doctorCmd) AfterApply(ctx *kong.Context) (err error) {
	s := of(ctx)
	c.Config = s.Config
	c.JSON, err = s.json()
	if err == nil {
		c.Admin, err = s.page()
	}
	return err
}

func (c *doctorCmd) Run(ctx context.Context) error {
	if c.Config == "" {
		return errors.New("doctor: -c FILE is missing (Sightline's configuration; sightline problems asks a running one)")
	}
	c.Out, c.Color = os.Stdout, program.Colored(os.Stdout)
	status, err := doctor.Run(ctx, c.Options)
	if err != nil {
		return fmt.Errorf("doctor: %w", err)
	}
	os.Exit(status)
	return nil
}

type bundleCmd struct{ bundle.Options }

// AfterApply takes the flag that other commands have too.
func (c *bundleCmd) AfterApply(ctx *kong.Context) error { c.Config = of(ctx).Config; return nil }

func (c *bundleCmd) Run(ctx context.Context) error {
	return bundle.Run(ctx, c.Options, printable.Writer(os.Stdout))
}
