package main

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/sightline-router/sightline/app/admin"
)

// orderCmd is an order for a worker of a running Sightline.
type orderCmd struct {
	Worker string `arg:"" help:"Its name."`
}

func (orderCmd) Help() string {
	return "The admin page is that of $SIGHTLINE_ADMIN (default: http://127.0.0.1:9903), and wants $SIGHTLINE_ADMIN_TOKEN."
}

func (c orderCmd) give(ctx context.Context, order string, wait time.Duration) error {
	return admin.AskOrder(ctx, cmp.Or(os.Getenv("SIGHTLINE_ADMIN"), "http://127.0.0.1:9903"), order, c.Worker, wait, os.Stdout)
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
