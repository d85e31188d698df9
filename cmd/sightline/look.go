package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sightline-router/sightline/app/look"
	"github.com/sightline-router/sightline/app/program"
)

// lookCmd is what the commands that show running Sightlines have in common.
type lookCmd struct {
	look.View `kong:"-"`
	model     string
}

// AfterApply takes the flags that other commands have too.
func (c *lookCmd) AfterApply(ctx *kong.Context) error {
	s := of(ctx)
	if !slices.Contains([]string{"", "table", "wide", "json", "yaml"}, s.Output) {
		return fmt.Errorf("-o %s: want table, wide, json or yaml", s.Output)
	}
	c.View = look.View{From: s.from(), Output: s.Output, Watch: s.Watch, Out: os.Stdout, Errors: os.Stderr, Color: program.Colored(os.Stdout)}
	c.model = s.Model
	return nil
}

// ended exits with status 1, and without more words, if what was shown is broken.
func ended(err error) error {
	if errors.Is(err, look.ErrBroken) {
		os.Exit(1)
	}
	return err
}

type statusCmd struct{ lookCmd }

// Help is the text of `sightline status --help` besides the flags.
func (*statusCmd) Help() string {
	return "Exit status: 1 if something is broken: an error, a worker that is out, a Sightline that is not ready. " +
		"$SIGHTLINE_ADMIN names the admin pages too, and $SIGHTLINE_ADMIN_TOKEN is their token. " +
		"--admin svc/NAME goes through kubectl to all pods of a Service."
}

func (c *statusCmd) Run(ctx context.Context) error { return ended(look.Status(ctx, c.View)) }

type topCmd struct{ lookCmd }

func (c *topCmd) Run(ctx context.Context) error { return look.Top(ctx, c.View) }

type problemsCmd struct {
	Code string `arg:"" optional:"" names:"codes" help:"What this one means, such as SL0301, and whether it is so."`
	lookCmd
}

func (c *problemsCmd) Run(ctx context.Context) error {
	return ended(look.Problems(ctx, c.View, c.Code))
}

type workersCmd struct {
	Name string `arg:"" optional:"" names:"workers" help:"Everything about this one."`
	lookCmd
}

func (c *workersCmd) Run(ctx context.Context) error {
	return look.Workers(ctx, c.View, c.Name, c.model)
}

type decisionsCmd struct {
	lookCmd
	Follow   bool   `short:"f" help:"Go on with those that end."`
	Worker   string `placeholder:"NAME" names:"workers" help:"Only for this worker."`
	Failed   bool   `xor:"which" help:"Only what failed, was refused or left."`
	NotExact bool   `xor:"which" help:"Only what events do not prove to the end."`
	Slow     bool   `xor:"which" help:"Only the slowest twentieth to the first byte."`
	Lost     string `placeholder:"CAUSE" names:"causes" help:"Only with tokens not cached for it, such as evicted."`
	ID       string `name:"id" placeholder:"ID" help:"This one, with the workers that were compared."`
}

func (c *decisionsCmd) Run(ctx context.Context) error {
	filter := map[bool]string{c.Failed: "failed", c.NotExact: "inexact", c.Slow: "slow"}[true]
	return look.Decisions(ctx, c.View, look.Choice{Follow: c.Follow, Filter: filter, Lost: c.Lost, Model: c.model, Worker: c.Worker, ID: c.ID})
}

// namesCmd prints names for completion, or nothing if none can be had soon.
type namesCmd struct {
	Kind string `arg:"" enum:"workers,models,codes,causes"`
}

func (c *namesCmd) Run(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	for _, name := range look.Names(ctx, c.Kind) {
		fmt.Println(name)
	}
	return nil
}
