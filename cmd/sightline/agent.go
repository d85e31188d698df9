package main

import (
	"context"

	"github.com/sightline-router/sightline/internal/serve"
)

// agentCmd has the fields of serve.AgentOptions, as flags.
type agentCmd struct {
	Worker    string `required:"" help:"The worker's name in the router's configuration."`
	Engine    string `enum:"vllm,sglang,trtllm" default:"vllm" help:"vllm, sglang or trtllm: whose events these are."`
	ZMQ       string `name:"zmq" xor:"from" required:"" help:"The engine's PUB socket, such as tcp://127.0.0.1:5557; rank r is at port + r."`
	HTTP      string `name:"http" xor:"from" required:"" help:"TensorRT-LLM's server, such as http://127.0.0.1:8000, whose /kv_cache_events is drained: nobody else may."`
	Replay    string `help:"The engine's replay socket, such as tcp://127.0.0.1:5558."`
	Bind      bool   `help:"Listen at --zmq for an engine whose publisher connects."`
	From      string `help:"With --bind: where the engine may connect from, such as 10.0.0.0/8; else only this machine or pod."`
	Topic     string `help:"Only messages whose topic begins so."`
	Ranks     int    `help:"Data-parallel ranks; 0: none."`
	BlockSize int    `help:"Tokens a block; 0: as the engine says."`
	Metrics   string `placeholder:"URL" help:"The engine's metrics page, such as http://127.0.0.1:8000/metrics: its process_start_time_seconds tells an agent that starts whether the engine is still the same, where it has no replay socket."`

	NATS serve.AgentNATS `embed:""`

	Publish    string `enum:"blocks,tokens" default:"blocks" help:"blocks: hashes only; tokens: token ids too, for audits (that puts prompts on the NATS server's disk)."`
	State      string `placeholder:"FILE" help:"Keep what the worker holds in a file as well, for when NATS loses it."`
	Admin      string `placeholder:"HOST:PORT" help:"Serve /metrics, /readyz, /healthz and /state there, such as 127.0.0.1:9904; /state to loopback alone, or with the token in SIGHTLINE_ADMIN_TOKEN."`
	AdminToken string `env:"SIGHTLINE_ADMIN_TOKEN" hidden:"" help:"Opens /state beyond loopback."`
	LogLevel   string `default:"info" help:"debug, info, warn or error."`
}

func (c *agentCmd) Run(ctx context.Context) error { return serve.Agent(ctx, serve.AgentOptions(*c)) }
