package main

import (
	"os"

	"github.com/sightline-router/sightline/internal/serve"
)

// credentialsCmd has the fields of serve.CredentialsOptions, as arguments and flags.
type credentialsCmd struct {
	Dir    string   `arg:"" help:"Where seeds and users.conf are written; what is there stays."`
	Config string   `short:"c" type:"existingfile" help:"Sightline's configuration: its nats.prefix, and the workers with events.nats."`
	Worker []string `help:"Names of further workers; * for an agent that may publish for every one."`
	Prefix string   `help:"nats.prefix, where no configuration is given."`
}

func (c *credentialsCmd) Run() error {
	return serve.WriteCredentials(serve.CredentialsOptions(*c), os.Stdout)
}
