package main

import (
	"context"
	"os"

	"github.com/alecthomas/kong"

	"github.com/sightline-router/sightline/app/serve"
)

type agentCmd struct{ serve.AgentOptions }

// Help is the text of `sightline agent --help` besides the flags.
func (c *agentCmd) Help() string {
	return "With --zmq tcp://*:PORT the engine connects. --http alone drains TensorRT-LLM's events; beside --zmq it tells restarts. " +
		"--publish tokens puts prompts on NATS' disk. $SIGHTLINE_ADMIN_TOKEN opens /state; $SIGHTLINE_LOG_LEVEL is info."
}

// AfterApply takes the flag that other commands have too.
func (c *agentCmd) AfterApply(ctx *kong.Context) (err error) {
	c.Admin, err = of(ctx).page()
	return err
}

func (c *agentCmd) Run(ctx context.Context) error { return serve.Agent(ctx, c.AgentOptions) }

type credentialsCmd struct{ serve.CredentialsOptions }

// AfterApply takes the flag that other commands have too.
func (c *credentialsCmd) AfterApply(ctx *kong.Context) error { c.Config = of(ctx).Config; return nil }

func (c *credentialsCmd) Run() error { return serve.WriteCredentials(c.CredentialsOptions, os.Stdout) }
