package main

import (
	"context"
	"os"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sightline-router/sightline/app/admin"
	"github.com/sightline-router/sightline/app/look"
	"github.com/sightline-router/sightline/internal/printable"
)

// orderCmd is an order for a worker of a running Sightline. Its replicas hear of it.
type orderCmd struct {
	Worker string `arg:"" names:"workers" help:"Its name."`
	from   look.From
}

// AfterApply takes the flags that other commands have too.
func (c *orderCmd) AfterApply(ctx *kong.Context) error { c.from = of(ctx).from(); return nil }

// Help is the text besides the flags.
func (orderCmd) Help() string {
	return "It wants the admin_token: of -c, or $SIGHTLINE_ADMIN_TOKEN. $SIGHTLINE_ADMIN names the admin page too."
}

func (c orderCmd) give(ctx context.Context, order string, wait time.Duration) error {
	q, end, err := c.from.One(ctx)
	if err != nil {
		return err
	}
	defer end()
	return admin.AskOrder(ctx, q, order, c.Worker, wait, printable.Writer(os.Stdout))
}

type cordonCmd struct{ orderCmd }

func (c *cordonCmd) Run(ctx context.Context) error { return c.give(ctx, "cordon", 0) }

type uncordonCmd struct{ orderCmd }

func (c *uncordonCmd) Run(ctx context.Context) error { return c.give(ctx, "uncordon", 0) }

type drainCmd struct {
	orderCmd
	Timeout time.Duration `default:"10m" help:"How long to wait for its last request; 0s: not at all."`
}

func (c *drainCmd) Run(ctx context.Context) error { return c.give(ctx, "drain", c.Timeout) }
