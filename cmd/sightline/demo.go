package main

import (
	"context"
	"os"

	"github.com/sightline-router/sightline/internal/demo"
	"github.com/sightline-router/sightline/internal/testkit/lab"
	"github.com/sightline-router/sightline/internal/testkit/sim"
)

type demoCmd struct {
	ModelDir string `type:"existingdir" default:"examples/models/qwen2.5-vl" help:"Model directory (without weights)."`
	Stay     bool   `help:"Leave everything running and print a request to try."`
}

func (c *demoCmd) Run(ctx context.Context) error {
	bin, err := envoyBinary(ctx)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	prompts, err := lab.NewPrompts(c.ModelDir, sim.VLLM, lab.ModelName, 16)
	if err != nil {
		return err
	}
	return demo.Run(ctx, demo.Options{Stay: c.Stay, Out: os.Stdout,
		Options: lab.Options{Self: self, Envoy: bin, ModelDir: c.ModelDir, Prompts: prompts, Speed: 2, Blocks: 2048}})
}
