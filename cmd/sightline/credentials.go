package main

import (
	"os"

	"github.com/alecthomas/kong"

	"github.com/sightline-router/sightline/app/serve"
)

type credentialsCmd struct{ serve.CredentialsOptions }

// AfterApply takes the flag that other commands have too.
func (c *credentialsCmd) AfterApply(ctx *kong.Context) error { c.Config = of(ctx).Config; return nil }

func (c *credentialsCmd) Run() error { return serve.WriteCredentials(c.CredentialsOptions, os.Stdout) }
