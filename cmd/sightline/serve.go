package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/sightline-router/sightline/internal/config"
	"github.com/sightline-router/sightline/internal/draft"
	"github.com/sightline-router/sightline/internal/serve"
)

type serveCmd struct {
	Config      string `short:"c" type:"existingfile" help:"Configuration file (YAML)."`
	PrintConfig bool   `help:"Print the effective configuration and exit."`
	Check       bool   `help:"Load everything, report errors, and exit."`
	pickerFlags
}

func (c *serveCmd) Run(ctx context.Context) error {
	cfg, err := config.Default(), error(nil)
	if c.Config != "" {
		cfg, err = config.Load(c.Config)
	} else if c.Pool == "" {
		err = errors.New("nothing to serve (want -c FILE, or --pool NAME of an InferencePool)")
	}
	if err == nil {
		err = c.apply(&cfg, c.Config != "")
	}
	if err != nil {
		return err
	}
	if c.PrintConfig {
		text, err := cfg.YAML()
		if err == nil {
			_, err = os.Stdout.Write(text)
		}
		return err
	}
	s, err := serve.Load(cfg)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Config, cfg.Hide(err))
	}
	defer s.Close()
	if c.Check {
		if err := s.Faults(); err != nil {
			return fmt.Errorf("%s: %w", c.Config, cfg.Hide(err))
		}
		fmt.Printf("%s: %d models, %d workers: valid\n", c.Config, len(cfg.Models), len(cfg.Workers))
		return nil
	}
	s.Fit, s.Ignored = draft.Fit, c.ignored()
	return cfg.Hide(s.Run(ctx))
}
