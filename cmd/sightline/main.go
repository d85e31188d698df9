// Command sightline routes multimodal chat requests, behind Envoy, to the worker that holds most of their KV cache.
//
// Each subcommand has a file of its own; this one holds the program's flags and dispatches to them.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // for time_zone, in images without a zone database

	"github.com/alecthomas/kong"

	"github.com/sightline-router/sightline/internal/buildinfo"
)

type cli struct {
	Init        initCmd        `cmd:"" help:"Write a first configuration from what running workers report about themselves."`
	Calibrate   calibrateCmd   `cmd:"" help:"Measure how fast the workers of a configuration prefill, and what an image costs there."`
	Serve       serveCmd       `cmd:"" help:"Run the router: ext_proc, access log and health service for Envoy."`
	Agent       agentCmd       `cmd:"" help:"Run beside one worker: listen to its KV events and publish them to NATS."`
	Credentials credentialsCmd `cmd:"" help:"Create NATS keys for the router and each worker's agent, and the NATS server's file of users and permissions."`
	Explain     explainCmd     `cmd:"" help:"Show the result of each stage for requests: text, tokens, image hashes, block hashes."`
	Doctor      doctorCmd      `cmd:"" help:"Check the files, workers, Envoy, NATS and a running Sightline for whatever prevents cache hits."`
	Bundle      bundleCmd      `cmd:"" help:"Write a tar.gz for a bug report: configuration, state and checks, without secrets."`
	Envoy       envoyCmd       `cmd:"" help:"Print the envoy.yaml that fits a configuration, or find an Envoy binary."`
	EPP         eppCmd         `cmd:"" name:"epp-conformance" help:"Test an endpoint picker against the Gateway API's endpoint-picker protocol."`
	Report      reportCmd      `cmd:"" help:"Report the effect of steering: steered requests compared with the unsteered share, and what the choice would have saved there."`
	Replay      replayCmd      `cmd:"" help:"Replay a decision log offline: as recorded, with another configuration, and with round robin."`
	Demo        demoCmd        `cmd:"" help:"Run a demonstration on this machine: a real Envoy, three simulated workers, a mixed load."`
	Bench       benchCmd       `cmd:"" help:"Benchmark a running Envoy: latency and cache hits under synthetic conversations or a trace, with and without Sightline."`
	Sim         simCmd         `cmd:"" help:"Compare the router's choice with other routers' rules on a simulated fleet."`
	WorkerSim   workerSimCmd   `cmd:"" hidden:"" help:"Run a simulated worker: an OpenAI-style server with an engine's cache and KV events."`
	Config      configCmd      `cmd:"" help:"Print what a configuration may contain."`
	Completion  completionCmd  `cmd:"" help:"Print the shell completion script for sightline's commands and flags."`
	Version     versionCmd     `cmd:"" help:"Print the version, and what this binary was built from."`

	ShowVersion kong.VersionFlag `name:"version" help:"Print the version and exit."`
}

type versionCmd struct {
	JSON bool `help:"Print one JSON object: version, commit, dirty, commit_time, go, platform, envoy_api."`
}

func (c *versionCmd) Run() error {
	if c.JSON {
		return json.NewEncoder(os.Stdout).Encode(buildinfo.Read())
	}
	_, err := fmt.Println(buildinfo.Read())
	return err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	var c cli
	k := kong.Parse(&c, kong.Name("sightline"), kong.UsageOnError(), kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Vars{"version": buildinfo.Read().String()},
		kong.Description("Sends each chat request, text and images, to the worker that already holds most of its KV cache. Behind Envoy, as an external processor."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 110}))
	if err := k.Run(); err != nil {
		fmt.Fprintf(os.Stderr, "sightline: %v\n", err)
		os.Exit(1)
	}
}
