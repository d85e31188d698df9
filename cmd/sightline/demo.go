package main

import (
	"context"
	"os"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/internal/demo"
)

type demoCmd struct {
	ModelDir string `type:"existingdir" default:"examples/models/qwen2.5-vl" help:"Model directory (without weights)."`
	Stay     bool   `help:"Leave everything running and print a request to try."`
}

func (c *demoCmd) Run(ctx context.Context) error {
	bin, err := envoy.Binary(ctx, "", fetching)
	if err != nil {
		return err
	}
	return demo.Run(ctx, demo.Options{Envoy: bin, ModelDir: c.ModelDir, Stay: c.Stay, Color: colored(os.Stdout), Out: os.Stdout})
}

// colored reports whether output to f is seen on a terminal whose user wants colours.
func colored(f *os.File) bool {
	i, err := f.Stat()
	return err == nil && i.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == ""
}
