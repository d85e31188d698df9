package main

import (
	"os"

	"github.com/sightline-router/sightline/app/serve"
)

type credentialsCmd struct{ serve.CredentialsOptions }

func (c *credentialsCmd) Run() error { return serve.WriteCredentials(c.CredentialsOptions, os.Stdout) }
