package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/alecthomas/kong"

	"github.com/sightline-router/sightline/app/doctor"
	"github.com/sightline-router/sightline/app/program"
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
