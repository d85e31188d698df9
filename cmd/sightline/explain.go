package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/sightline-router/sightline/app/explain"
	"github.com/sightline-router/sightline/app/look"
	"github.com/sightline-router/sightline/app/rollout"
	"github.com/sightline-router/sightline/internal/printable"
)

type explainCmd struct{ explain.Options }

// AfterApply takes the flags that other commands have too.
func (c *explainCmd) AfterApply(ctx *kong.Context) (err error) {
	s := of(ctx)
	c.Config, c.Model = s.Config, s.Model
	c.JSONL, err = s.json()
	if err != nil {
		return err
	}
	c.Admin, err = s.page()
	if given := map[bool]int{true: 1}; err == nil && given[c.Config != ""]+given[c.Admin != ""]+given[c.ModelDir != ""] > 1 {
		err = errors.New("-c, --model-dir and --admin exclude each other (want one of them)")
	}
	if c.ID != "" && err == nil {
		if of := strings.TrimSpace(os.Getenv(look.AddressVariable)); len(s.Admin) == 0 && strings.ContainsAny(of, ", ") {
			return fmt.Errorf("%s has several: want --admin URL of one (sightline decisions --id asks all)", look.AddressVariable)
		}
		c.Admin, c.Token, err = s.asked()
	}
	return err
}

func (c *explainCmd) Run(ctx context.Context) error { return explain.Run(ctx, c.Options) }

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
