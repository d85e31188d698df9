// Command sightline routes multimodal chat requests, behind Envoy, to the worker that holds most of their KV cache.
//
// Each subcommand has a file of its own; this one lists them. What production does not run is in cmd/sightline-lab.
package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/sightline-router/sightline/app/look"
	"github.com/sightline-router/sightline/app/program"
)

const description = "Sends each chat request to the worker that holds most of its KV cache."

type cli struct {
	Init        initCmd        `cmd:"" group:"Run" help:"Write a first configuration from what workers report."`
	Serve       serveCmd       `cmd:"" group:"Run" help:"Run the router that Envoy asks."`
	Envoy       envoyCmd       `cmd:"" group:"Run" help:"Print Envoy's configuration, or check and change yours."`
	Agent       agentCmd       `cmd:"" group:"Run" help:"Publish one worker's KV events to NATS."`
	Credentials credentialsCmd `cmd:"" group:"Run" help:"Create NATS keys for the router and agents."`
	Status      statusCmd      `cmd:"" group:"Look" help:"What is broken, what requests get, and how workers are."`
	Top         topCmd         `cmd:"" group:"Look" help:"The same with all workers, live."`
	Decisions   decisionsCmd   `cmd:"" group:"Look" help:"The last requests: where they went, what was lost, why."`
	Workers     workersCmd     `cmd:"" group:"Look" help:"The workers, worst first, or all that is known of one."`
	Problems    problemsCmd    `cmd:"" group:"Look" help:"What is wrong now, and what to do; what a code means."`
	Doctor      doctorCmd      `cmd:"" group:"Find" help:"Find whatever prevents cache hits."`
	Explain     explainCmd     `cmd:"" group:"Find" help:"How requests are read, or where they go and why."`
	Report      reportCmd      `cmd:"" group:"Find" help:"What prompts lost; what steering or more workers bring."`
	Bundle      bundleCmd      `cmd:"" group:"Find" help:"Write a tar.gz for a bug report, without secrets."`
	Cordon      cordonCmd      `cmd:"" group:"Move" help:"Send a worker only what it alone holds."`
	Drain       drainCmd       `cmd:"" group:"Move" help:"Send it nothing more, and wait until it is empty."`
	Uncordon    uncordonCmd    `cmd:"" group:"Move" help:"Send it requests again."`
	Config      configCmd      `cmd:"" group:"Print" help:"Print what a configuration may contain."`
	Names       namesCmd       `cmd:"" hidden:"" help:"Print what completion offers."`
	program.Commands
	shared
}

// shared are the flags that several commands have, by the tag for. It is the admin page that is asked, or served.
type shared struct {
	Config    string   `short:"c" placeholder:"FILE" help:"Sightline's configuration." for:"serve envoy credentials doctor explain bundle Look Move"`
	Admin     []string `placeholder:"URL" help:"Its admin page; for looking also several." for:"serve agent doctor explain report Look Move"`
	Namespace string   `aliases:"pool-namespace" placeholder:"NAME" help:"Of Kubernetes, or Dynamo." for:"init serve Look Move"`
	Model     string   `placeholder:"NAME" names:"models" help:"Only this model." for:"explain report decisions workers"`
	Output    string   `short:"o" placeholder:"FORMAT" help:"json, yaml, wide or table." for:"Look doctor explain report"`
	Watch     bool     `short:"w" help:"Again and again, until interrupted." for:"Look"`
}

// of returns the flags that the command line has of those that are shared.
func of(ctx *kong.Context) *shared { return &ctx.Model.Target.Addr().Interface().(*cli).shared }

// AfterApply refuses shared flags at commands that have none of them.
func (*cli) AfterApply(ctx *kong.Context) error { return program.Unshared(ctx) }

// json reports whether JSON is wanted, of commands that print it or text.
func (s *shared) json() (bool, error) {
	if s.Output != "" && s.Output != "table" && s.Output != "json" {
		return false, fmt.Errorf("-o %s: want json or table", s.Output)
	}
	return s.Output == "json", nil
}

// page returns the one admin page that is named; "": none is.
func (s *shared) page() (string, error) {
	if len(s.Admin) > 1 {
		return "", fmt.Errorf("--admin %s: want one address", strings.Join(s.Admin, ","))
	}
	for _, one := range s.Admin {
		if strings.HasPrefix(one, "svc/") {
			return "", fmt.Errorf("--admin %s: want an address (status, top, workers, decisions, problems and orders go to a Service)", one)
		}
	}
	return strings.Join(s.Admin, ""), nil
}

// asked returns the one admin page to ask, and its token; "": that in the environment.
func (s *shared) asked() (page, token string, err error) {
	if of := os.Getenv(look.AddressVariable); len(s.Admin) == 0 && strings.Contains(of, "svc/") {
		return "", "", fmt.Errorf("%s=%s: want an address here (give --admin URL)", look.AddressVariable, of)
	}
	q, end, err := s.from().One(context.Background())
	if err != nil {
		return "", "", err
	}
	end()
	return q.Base, q.Token, nil
}

// from returns what to ask.
func (s *shared) from() look.From {
	return look.From{Config: s.Config, Admin: s.Admin, Namespace: s.Namespace}
}

// moved lists the commands that are sightline-lab's since this release. The next release may forget them.
var moved = []string{"bench", "demo", "epp-conformance", "replay", "sim", "worker-sim"}

func main() {
	os.Args = append(os.Args[:1], asPicker(os.Args[1:])...)
	if len(os.Args) > 1 && slices.Contains(moved, os.Args[1]) {
		fmt.Fprintf(os.Stderr, "sightline: sightline %[1]s is now sightline-lab %[1]s\n", os.Args[1])
		os.Exit(1)
	}
	program.Main("sightline", description, &cli{})
}
