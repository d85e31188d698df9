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

const description = "Sends each chat request, text and images, to the worker that already holds most of its KV cache. " +
	"Behind Envoy, as an external processor."

type cli struct {
	Init        initCmd        `cmd:"" help:"Write a first configuration from what running workers report about themselves."`
	Serve       serveCmd       `cmd:"" help:"Run the router: ext_proc, access log and health service for Envoy."`
	Agent       agentCmd       `cmd:"" help:"Run beside one worker: listen to its KV events and publish them to NATS."`
	Credentials credentialsCmd `cmd:"" help:"Create NATS keys for the router and each worker's agent, and the NATS server's file of users and permissions."`
	Explain     explainCmd     `cmd:"" help:"Show the result of each stage for requests: text, tokens, image hashes, block hashes."`
	Doctor      doctorCmd      `cmd:"" help:"Check the files, workers, Envoy, NATS and a running Sightline for whatever prevents cache hits."`
	Bundle      bundleCmd      `cmd:"" help:"Write a tar.gz for a bug report: configuration, state and checks, without secrets."`
	Envoy       envoyCmd       `cmd:"" help:"Print the envoy.yaml that fits a configuration, or find an Envoy binary."`
	Report      reportCmd      `cmd:"" help:"Report the effect of steering: steered requests compared with the unsteered share, and what the choice would have saved there."`
	Config      configCmd      `cmd:"" help:"Print what a configuration may contain."`
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
