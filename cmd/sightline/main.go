// Command sightline routes multimodal chat requests, behind Envoy, to the worker that holds most of their KV cache.
//
// Each subcommand has a file of its own; this one lists them. What production does not run is in cmd/sightline-lab.
package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/sightline-router/sightline/app/program"
)

const description = "Sends each chat request to the worker that holds most of its KV cache."

type cli struct {
	Init        initCmd        `cmd:"" group:"Run" help:"Write a first configuration from what running workers report."`
	Serve       serveCmd       `cmd:"" group:"Run" help:"Run the router that Envoy asks."`
	Envoy       envoyCmd       `cmd:"" group:"Run" help:"Print Envoy's configuration, or check and change yours."`
	Agent       agentCmd       `cmd:"" group:"Run" help:"Publish one worker's KV events to NATS."`
	Credentials credentialsCmd `cmd:"" group:"Run" help:"Create NATS keys for the router and agents, and users.conf."`
	Doctor      doctorCmd      `cmd:"" group:"Look" help:"Find whatever prevents cache hits."`
	Explain     explainCmd     `cmd:"" group:"Look" help:"Show how requests are read, or where they go and why."`
	Report      reportCmd      `cmd:"" group:"Look" help:"Compare steered requests with the unsteered share."`
	Bundle      bundleCmd      `cmd:"" group:"Look" help:"Write a tar.gz for a bug report, without secrets."`
	Cordon      cordonCmd      `cmd:"" group:"Look" help:"Send a worker only what it alone holds."`
	Drain       drainCmd       `cmd:"" group:"Look" help:"Send a worker nothing more, and wait until it is empty."`
	Uncordon    uncordonCmd    `cmd:"" group:"Look" help:"Send a worker requests again."`
	Config      configCmd      `cmd:"" group:"Run" help:"Print what a configuration may contain."`
	program.Commands
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
