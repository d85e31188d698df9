package serve

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/indexer/source/bus"
)

// CredentialsOptions are the arguments and flags of `sightline credentials`: for whom NATS users are made, and where.
type CredentialsOptions struct {
	Dir    string   `arg:"" help:"Where seeds and users.conf are written; existing files are kept."`
	Config string   `short:"c" type:"existingfile" help:"Sightline's configuration: its nats.prefix, and the workers with events.nats."`
	Worker []string `help:"Names of further workers; *: one agent that may publish for all of them."`
	Prefix string   `help:"nats.prefix, if no configuration is given."`
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
				fmt.Fprintf(out, "kubernetes.workers[%d]: a worker is named after its pod; name each with --worker, or give --worker '*'\n", i)
			}
		}
	}
	made, err := bus.WriteUsers(o.Dir, prefix, workers)
	for _, name := range made {
		fmt.Fprintln(out, "written:", filepath.Join(o.Dir, name))
	}
	return err
}
