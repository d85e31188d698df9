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
	Init        initCmd        `cmd:"" help:"Write a first configuration from what running workers say of themselves."`
	Calibrate   calibrateCmd   `cmd:"" help:"Measure how fast the workers of a configuration prefill, and what an image costs there."`
	Serve       serveCmd       `cmd:"" help:"Run the router: ext_proc, access log and health service for Envoy."`
	Agent       agentCmd       `cmd:"" help:"Run beside one worker: listen to its KV events and publish them to NATS."`
	Credentials credentialsCmd `cmd:"" help:"Make the keys by which a NATS server knows the router and each worker's agent, and its file of users and permissions."`
	Explain     explainCmd     `cmd:"" help:"Show what each stage makes of requests: text, tokens, image names, block hashes."`
	Doctor      doctorCmd      `cmd:"" help:"Look for what keeps requests from hits: in the files, at workers, Envoy, NATS and a running Sightline."`
	Bundle      bundleCmd      `cmd:"" help:"Write a tar.gz for a bug report: configuration, state and checks, without secrets."`
	Envoy       envoyCmd       `cmd:"" help:"Print the envoy.yaml that fits a configuration, or find an Envoy binary."`
	EPP         eppCmd         `cmd:"" name:"epp-conformance" help:"Ask an endpoint picker the cases of Gateway API's endpoint-picker protocol."`
	Report      reportCmd      `cmd:"" help:"Print the effect of steering: requests steered against requests left alone, and what the choice would have had."`
	Replay      replayCmd      `cmd:"" help:"Play a decision log again, offline: as it was, as another configuration would have it, and by round robin."`
	Demo        demoCmd        `cmd:"" help:"Run a demonstration on this machine: a real Envoy, three simulated workers, a mixed load."`
	Bench       benchCmd       `cmd:"" help:"Measure a running Envoy: times and cache hits under conversations of a shape, or a trace, with and without Sightline."`
	Sim         simCmd         `cmd:"" help:"Compare the router's choice with the rules of other routers, on one simulated fleet."`
	WorkerSim   workerSimCmd   `cmd:"" hidden:"" help:"Run a simulated worker: an OpenAI-style server with an engine's cache and KV events."`
	Config      configCmd      `cmd:"" help:"What a configuration may hold."`
	Completion  completionCmd  `cmd:"" help:"Print what makes a shell complete sightline's commands and flags."`
	Version     versionCmd     `cmd:"" help:"Print the version, and what this binary was built from."`

	ShowVersion kong.VersionFlag `name:"version" help:"Print the version and exit."`
}

type versionCmd struct {
	JSON bool `help:"As one JSON object: version, commit, dirty, commit_time, go, platform, envoy_api."`
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
