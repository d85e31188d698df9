package serve

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"

	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/internal/config"
)

// CredentialsOptions say for whom NATS users are created, and where.
type CredentialsOptions struct {
	Dir    string
	Config string // a configuration file; "": none
	Worker []string
	Prefix string
}

// WriteCredentials creates a NATS user for the routers and for each worker's agent, and writes to out what it created.
func WriteCredentials(o CredentialsOptions, out io.Writer) error {
	prefix, workers := bus.Prefix(o.Prefix), o.Worker
	if o.Config != "" {
		cfg, err := config.Load(o.Config)
		if err != nil {
			return err
		}
		prefix = cmp.Or(prefix, cfg.NATS.Prefix)
		for _, w := range cfg.Workers {
			if w.Events.NATS {
				workers = append(workers, w.Name)
			}
		}
		for i, g := range cfg.Kubernetes.Workers {
			if g.Events.NATS {
				fmt.Fprintf(out, "kubernetes.workers[%d]: a worker is called as its pod; name each with --worker, or give --worker '*'\n", i)
			}
		}
	}
	made, err := bus.WriteUsers(o.Dir, prefix, workers)
	for _, name := range made {
		fmt.Fprintln(out, "written:", filepath.Join(o.Dir, name))
	}
	return err
}
