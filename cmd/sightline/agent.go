package main

import (
	"context"

	"github.com/sightline-router/sightline/app/serve"
)

type agentCmd struct{ serve.AgentOptions }

func (c *agentCmd) Run(ctx context.Context) error { return serve.Agent(ctx, c.AgentOptions) }
