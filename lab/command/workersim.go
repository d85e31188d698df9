package command

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
	"github.com/sightline-router/sightline/lab/vllmcache"
)

// workerSimCmd runs a simulated worker, for the examples and for experiments.
type workerSimCmd struct {
	Engine        string        `enum:"vllm,sglang,trtllm,trtllm-zmq,standalone" default:"vllm" help:"vllm, sglang, trtllm (events drained over HTTP), trtllm-zmq, or standalone (a worker of NVIDIA's standalone router example)."`
	ModelDir      string        `type:"existingdir" required:"" help:"Model directory (without weights)."`
	ServedName    string        `default:"sim-vl" help:"What requests call the model."`
	EngineModel   string        `help:"The --model argument to act as; default: the served name."`
	EngineVersion string        `default:"0.32.0" help:"The vLLM release to act as, 0.23 to 0.33; of SGLang 0.5.20, else 0.5.23."`
	Listen        string        `default:"127.0.0.1:8001" help:"HTTP address."`
	Events        string        `default:"127.0.0.1:5557" help:"ZeroMQ PUB address of rank 0; rank r is at port + r."`
	Load          string        `default:"127.0.0.1:5757" help:"Where a standalone worker publishes its load."`
	Fingerprint   string        `name:"processor-fingerprint" help:"SGLang: fingerprint of its image processor, sha256: and 64 hex digits."`
	Replay        string        `default:"127.0.0.1:5657" help:"ZeroMQ replay address of rank 0."`
	BlockSize     int           `default:"16" help:"Tokens per KV block."`
	Blocks        int           `default:"4096" help:"Blocks in the cache."`
	StepTokens    int           `default:"8192" help:"Most tokens that a step computes, of prompts and answers together (vLLM's --max-num-batched-tokens): longer prompts come in chunks. 0: no limit."`
	Groups        string        `help:"KV cache groups of a hybrid model, such as full:16,window:16:1024: kind (full, window, chunk, state), tokens of a block, of the window or chunk. Default: full attention alone."`
	Retention     int           `default:"0" help:"vLLM's --prefix-cache-retention-interval; -1: windows and states keep everything."`
	Ranks         int           `default:"1" help:"Data-parallel ranks."`
	Speaks        string        `enum:"http,tls,http2" default:"http" help:"What the HTTP port speaks: http, tls, or http2 alone."`
	Adapter       []string      `placeholder:"NAME=PATH" help:"A LoRA adapter that it serves. Repeatable."`
	NoEvents      bool          `help:"As started without flags: no KV events, no cached tokens in answers."`
	EventsLate    time.Duration `default:"0" help:"How long its KV events are on their way."`
	NoPrefixCache bool          `help:"As started with --no-enable-prefix-caching."`
	HashSeed      string        `help:"PYTHONHASHSEED."`
	Fault         string        `default:"healthy" help:"How requests to generate fail: refuse (503), unauthorized (401), error-page (502 with a page of HTML, as of a proxy), hang, die-after-first-byte. While it runs: curl -X POST 'localhost:8001/sim/fault?mode=hang', or '/sim/slow?by=5'."`
	FaultAfter    int           `default:"0" help:"It fails only after this number of requests."`
	Deaf          bool          `help:"It fails for every path, /health and /v1/models too."`
	Speed         float64       `default:"1" help:"Speed relative to a 7B model on one large GPU; 0: no delay at all."`
}

func (c *workerSimCmd) Run(ctx context.Context) error {
	name := cmp.Or(c.EngineModel, c.ServedName)
	var groups []vllmcache.Group
	if c.Groups != "" {
		var err error
		groups, err = vllmcache.ParseGroups(c.Groups)
		if err != nil {
			return fmt.Errorf("--groups: %w", err)
		}
	}
	fault, err := sim.ParseFault(c.Fault)
	if err != nil {
		return fmt.Errorf("--fault: %w", err)
	}
	if c.Deaf {
		fault |= sim.Deaf
	}
	var adapters []sim.Adapter
	for _, given := range c.Adapter {
		name, path, ok := strings.Cut(given, "=")
		if !ok || name == "" {
			return fmt.Errorf("--adapter %q (want NAME=PATH)", given)
		}
		adapters = append(adapters, sim.Adapter{Name: name, Path: path})
	}
	return lab.RunWorker(ctx, c.ModelDir, sim.Config{Engine: sim.Engine(c.Engine), Model: name, ServedName: c.ServedName,
		Version: c.EngineVersion,
		Listen:  c.Listen, Events: c.Events, Replay: c.Replay, Load: c.Load, Fingerprint: c.Fingerprint,
		Speaks: c.Speaks, Adapters: adapters, Bare: c.NoEvents, EventsLate: c.EventsLate, NoPrefixCache: c.NoPrefixCache, HashSeed: c.HashSeed,
		Fault: fault, FaultAfter: c.FaultAfter,
		Groups: groups, Retention: c.Retention, StepTokens: c.StepTokens,
		BlockSize: c.BlockSize, Blocks: c.Blocks, Ranks: c.Ranks, Speed: c.Speed})
}
