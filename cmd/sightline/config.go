package main

import (
	"fmt"

	"github.com/sightline-router/sightline/app/config"
)

type configCmd struct {
	Schema schemaCmd `cmd:"" help:"Print the JSON Schema of the configuration, for editors."`
}

type schemaCmd struct{}

func (schemaCmd) Run() error {
	_, err := fmt.Print(config.Schema)
	return err
}
