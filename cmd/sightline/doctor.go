package main

import (
	"context"
	"fmt"
	"os"

	"github.com/sightline-router/sightline/app/doctor"
	"github.com/sightline-router/sightline/app/program"
)

type doctorCmd struct{ doctor.Options }

func (c *doctorCmd) Help() string {
	return "Exit status: 0 well, 1 an error, 2 only warnings, 3 something was not checked. docs/doctor.md has a section for each code."
}

func (c *doctorCmd) Run(ctx context.Context) error {
	c.Out, c.Color = os.Stdout, program.Colored(os.Stdout)
	status, err := doctor.Run(ctx, c.Options)
	if err != nil {
		return fmt.Errorf("doctor: %w", err)
	}
	os.Exit(status)
	return nil
}
