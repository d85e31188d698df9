package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/generate"
	"github.com/sightline-router/sightline/app/serve"
	"github.com/sightline-router/sightline/internal/secure"
)

// fleetFlags say what is served: a configuration, or running workers.
type fleetFlags struct {
	Config string   `kong:"-"`
	Worker []string `placeholder:"HOST:PORT" help:"Or: a running worker. Repeatable."`
	Listen string   `placeholder:"HOST:PORT" help:"Where Envoy asks; default: 127.0.0.1:9002."`
	CA     string   `name:"ca" type:"existingfile" placeholder:"FILE" help:"PEM file of the workers' authority."`
}

// options returns what to ask the workers by; admin is where the page is, "" for the default, keyFile has their key.
func (f *fleetFlags) options(admin, keyFile string) (generate.Options, error) {
	switch {
	case f.Config != "" && len(f.Worker) > 0:
		return generate.Options{}, errors.New("-c and --worker are both given (want --worker for each running worker, or a configuration " +
			"that lists them)")
	case len(f.Worker) == 0 && f.Listen+keyFile+f.CA+admin != "":
		return generate.Options{}, errors.New("--listen, --admin, --api-key-file and --ca belong to --worker (a configuration has keys for them)")
	}
	return generate.Options{Workers: f.Worker, Listen: f.Listen, Admin: admin, Access: secure.Peer{CA: f.CA, APIKeyFile: keyFile}}, nil
}

type serveCmd struct {
	fleetFlags
	Admin       string `kong:"-"` // where the page is; "": 127.0.0.1:9903
	APIKeyFile  string `type:"existingfile" placeholder:"FILE" help:"The workers' --api-key."`
	PrintConfig bool   `help:"Print the configuration (of --worker: init's), and exit."`
	Check       bool   `help:"Load everything, report errors, and exit."`
	pickerFlags

	draft []byte // what is printed of workers
}

// Help is the text of `sightline serve --help` besides the flags.
func (c *serveCmd) Help() string {
	return "With --worker (and --listen, --ca, --admin, --api-key-file) or --pool no file is needed: workers say what they serve. " +
		"--pool takes the flags of other endpoint pickers too (docs/envoy.md)."
}

// AfterApply takes the flags that other commands have too.
func (c *serveCmd) AfterApply(ctx *kong.Context) (err error) {
	s := of(ctx)
	c.Config, c.Namespace = s.Config, s.Namespace
	c.Admin, err = s.page()
	return err
}

func (c *serveCmd) Run(ctx context.Context) error {
	cfg, given, err := c.configuration(ctx, os.Stdout)
	switch {
	case err != nil:
		return err
	case c.PrintConfig:
		text := c.draft
		if text == nil {
			text, err = cfg.YAML()
		}
		if err == nil {
			_, err = os.Stdout.Write(text)
		}
		return err
	}
	from := c.Config
	switch {
	case len(c.Worker) > 0:
		from = "--worker"
	case from == "":
		from = "--pool"
	}
	s, err := serve.Load(cfg)
	if err != nil {
		return fmt.Errorf("%s: %w", from, cfg.Hide(err))
	}
	defer s.Close()
	if c.Check {
		if err := s.Faults(); err != nil {
			return fmt.Errorf("%s: %w", from, cfg.Hide(err))
		}
		fmt.Printf("%s: %d models, %d workers: valid\n", from, len(cfg.Models), len(cfg.Workers))
		return nil
	}
	s.Fit, s.Ignored, s.Given = generate.Fit, c.ignored(), given
	return cfg.Hide(s.Run(ctx))
}

// configuration returns the one of the file or of the pool, or the workers that are given instead.
func (c *serveCmd) configuration(ctx context.Context, say io.Writer) (cfg config.Config, given *serve.Asking, err error) {
	o, err := c.options(c.Admin, c.APIKeyFile)
	switch {
	case err != nil:
		return cfg, nil, err
	case len(c.Worker) > 0 && c.Pool != "":
		return cfg, nil, errors.New("--worker and --pool are both given (want one of them: the pool's pods are its workers)")
	case len(c.Worker) > 0 && (c.PrintConfig || c.Check):
		o.Canary = c.PrintConfig // as init does
		cfg, c.draft, err = generate.Ask(ctx, o, os.Stderr)
	case len(c.Worker) > 0:
		cfg, given, err = generate.Given(o, say)
	case c.Config != "":
		cfg, err = config.Load(c.Config)
	case c.Pool != "":
		cfg = config.Default()
	default:
		err = errors.New("nothing to serve (want --worker HOST:PORT for each running worker, -c FILE, or --pool NAME of an InferencePool)")
	}
	if err == nil {
		err = c.apply(&cfg, c.Config != "")
	}
	return cfg, given, err
}
