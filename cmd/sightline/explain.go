package main

import (
	"context"

	"github.com/sightline-router/sightline/app/explain"
)

type explainCmd struct{ explain.Options }

func (c *explainCmd) Run(ctx context.Context) error { return explain.Run(ctx, c.Options) }
