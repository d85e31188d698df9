package serve

import (
	"fmt"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/internal/config"
)

// EnvoyYAML is the envoy.yaml for a configuration, with changes.
func EnvoyYAML(cfg config.Config, changes ...func(*envoy.Options) error) ([]byte, error) {
	o, err := envoyOptions(cfg)
	for _, change := range changes {
		if err == nil {
			err = change(&o)
		}
	}
	if err != nil {
		return nil, err
	}
	return envoy.Generate(o)
}

// envoyOptions are what a configuration says; the shipped example's workers where it names none.
func envoyOptions(cfg config.Config) (envoy.Options, error) {
	o := envoy.Default()
	o.Listen, o.Admin, o.Sightline, o.BodyLimit = cfg.Envoy.Listen, cfg.Envoy.Admin, cfg.Listen, int(cfg.BodyLimit)
	o.MessageTimeout, o.TokenUsage = cfg.Envoy.MessageTimeout, cfg.Envoy.TokenUsage
	if len(cfg.Workers)+len(cfg.Dynamo.Frontends) > 0 {
		o.Workers = append([]string(nil), cfg.Dynamo.Frontends...)
		for _, w := range cfg.Workers {
			o.Workers = append(o.Workers, w.Addr)
		}
	}
	for i, text := range cfg.Envoy.Workers {
		r, err := config.ParseRange(text)
		if err != nil {
			return o, fmt.Errorf("envoy.worker_networks[%d]: %w", i, err)
		}
		o.Allow = append(o.Allow, envoy.Range{Prefix: r.Prefix, FirstPort: r.First, LastPort: r.Last})
	}
	for _, p := range cfg.Envoy.Pools {
		pool := envoy.Pool{Name: p.Model, Path: p.Path, Host: p.Host, Header: p.Header}
		for _, w := range cfg.Workers {
			if w.Model == p.Model {
				pool.Workers = append(pool.Workers, w.Addr)
			}
		}
		o.Pools = append(o.Pools, pool)
	}
	o.WorkerTLS, o.SightlineTLS = envoyTLS(cfg.Envoy.WorkerTLS), envoyTLS(cfg.Envoy.SightlineTLS)
	return o, nil
}

func envoyTLS(t config.PeerTLS) *envoy.TLS {
	if t.CA == "" {
		return nil
	}
	return &envoy.TLS{CA: t.CA, Cert: t.Cert, Key: t.Key, Names: t.Names}
}
