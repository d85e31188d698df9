package serve

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/indexer/source/bus"
)

// CredentialsOptions are the arguments and flags of `sightline credentials`: for whom NATS users are made, and where.
type CredentialsOptions struct {
	Dir    string   `arg:"" help:"Where seeds and users.conf are written; existing files are kept."`
	Config string   `kong:"-"` // the configuration, for its workers with events.nats
	Worker []string `placeholder:"NAME" help:"Names of further workers; *: one agent that may publish for all."`
}

// WriteCredentials creates a NATS user for the routers and for each worker's agent, and writes to out what it created.
func WriteCredentials(o CredentialsOptions, out io.Writer) error {
	workers := o.Worker
	if o.Config != "" {
		cfg, err := config.Load(o.Config)
		if err != nil {
			return err
		}
		for _, w := range cfg.Workers {
			if w.Events.NATS {
				workers = append(workers, w.Name)
			}
		}
		for i, g := range cfg.Kubernetes.Workers {
			if g.Events.NATS {
				fmt.Fprintf(out, "kubernetes.workers[%d]: a worker is named after its pod; name each with --worker, or give --worker '*'\n", i)
			}
		}
	}
	made, err := bus.WriteUsers(o.Dir, workers)
	for _, name := range made {
		fmt.Fprintln(out, "written:", filepath.Join(o.Dir, name))
	}
	return err
}
