package main

import (
	"context"
	"time"

	"github.com/sightline-router/sightline/internal/explain"
)

// explainCmd has the fields of explain.Options, as flags.
type explainCmd struct {
	File string `arg:"" optional:"" default:"-" help:"File with one request a line, or - for standard input: the body, or {\"id\", \"endpoint\", \"headers\", \"request\"}."`

	ModelDir      string    `type:"existingdir" xor:"from" help:"Model directory (without weights)."`
	Config        string    `short:"c" type:"existingfile" xor:"from" help:"Sightline's configuration; with --model."`
	Model         string    `help:"Name of one of the configuration's models; default: its only one."`
	Engine        string    `enum:"vllm,sglang,trtllm," default:"" help:"vllm, sglang or trtllm."`
	EngineVersion string    `help:"The engine's release, such as 0.32.0."`
	EngineModel   string    `help:"The engine's own --model argument, part of vLLM's image names."`
	BlockSize     int       `help:"Tokens a KV block."`
	MediaAllow    []string  `sep:"none" help:"Private network that image URLs may point to, as CIDR; all are refused otherwise. Repeatable."`
	Set           []string  `sep:"none" help:"key=value for any other key of a model's configuration. Repeatable."`
	Now           time.Time `help:"Date that templates print, such as 2026-11-21T00:00:00Z; default: now."`
	JSONL         bool      `name:"jsonl" aliases:"json" help:"One JSON object a line."`

	Class  string `help:"One of the model's classes in the configuration; default: the model's own keys."`
	Index  string `xor:"from" help:"Instead of requests, print what is held by a worker: a running Sightline's admin address such as http://127.0.0.1:9903, or a file with what its /index gave."`
	Worker string `help:"With --index: the worker's name."`
	Rank   int    `help:"With --index: the worker's data-parallel rank."`

	Admin string `xor:"from" placeholder:"URL" help:"Where a running Sightline would send the requests, and why: its admin address, such as http://127.0.0.1:9903."`
	ID    string `help:"With --admin: a past decision, by its id: what was known, and what became of it."`
	Token string `env:"SIGHTLINE_ADMIN_TOKEN" help:"With --admin or --index: the running Sightline's admin_token."`
}

func (c *explainCmd) Run(ctx context.Context) error { return explain.Run(ctx, explain.Options(*c)) }
