package main

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/engine/trtllm"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/config"
)

type agentCmd struct {
	Worker    string `required:"" help:"The worker's name in the router's configuration."`
	Engine    string `enum:"vllm,sglang,trtllm" default:"vllm" help:"vllm, sglang or trtllm: whose events these are."`
	ZMQ       string `name:"zmq" xor:"from" required:"" help:"The engine's PUB socket, such as tcp://127.0.0.1:5557; rank r is at port + r."`
	HTTP      string `name:"http" xor:"from" required:"" help:"TensorRT-LLM's server, such as http://127.0.0.1:8000, whose /kv_cache_events is drained: nobody else may."`
	Replay    string `help:"The engine's replay socket, such as tcp://127.0.0.1:5558."`
	Bind      bool   `help:"Listen at --zmq for an engine whose publisher connects."`
	Topic     string `help:"Only messages whose topic begins so."`
	Ranks     int    `help:"Data-parallel ranks; 0: none."`
	BlockSize int    `help:"Tokens a block; 0: as the engine says."`
	NATS      string `name:"nats" required:"" help:"NATS server, such as nats://10.0.0.4:4222."`
	Publish   string `enum:"blocks,tokens" default:"blocks" help:"blocks: hashes only; tokens: token ids too, for audits (that puts prompts on the NATS server's disk)."`
	LogLevel  string `default:"info" help:"debug, info, warn or error."`
}

func (c *agentCmd) Run(ctx context.Context) error {
	log, err := newLog(c.LogLevel)
	if err != nil {
		return err
	}
	defer log.Sync()
	conn, err := bus.Connect(c.NATS, "sightline agent "+c.Worker, log)
	if err != nil {
		return fmt.Errorf("nats: %w", err)
	}
	defer conn.Close()
	if c.HTTP != "" {
		c.Engine = "trtllm"
	}
	feeds, err := c.feeds()
	if err != nil {
		return err
	}
	for r, o := range feeds {
		rank := r
		if c.Ranks == 0 {
			rank = -1
		}
		p, err := bus.NewPublisher(bus.PublisherOptions{NATS: conn, Worker: c.Worker, Rank: rank, CountCopies: countsCopies(c.Engine), Tokens: c.Publish == "tokens", Log: log})
		if err != nil {
			return err
		}
		o.Sink, o.Link = p, p.Link
		defer stream.Start(o).Close()
	}
	log.Info("publishing", zap.String("worker", c.Worker), zap.String("nats", conn.ConnectedUrlRedacted()))
	<-ctx.Done()
	return nil
}

// feeds are the ranks' feeds but for their sinks.
func (c *agentCmd) feeds() ([]stream.Options, error) {
	keep := c.Publish == "tokens"
	var out []stream.Options
	if c.HTTP != "" {
		drain := trtllm.NewDrain(c.HTTP, c.Ranks)
		for r := range max(1, c.Ranks) {
			out = append(out, drainOptions(drain, r, c.BlockSize, keep))
		}
		return out, nil
	}
	for r := range max(1, c.Ranks) {
		src, err := zmqSource(config.Events{ZMQ: c.ZMQ, Replay: c.Replay, Topic: c.Topic, Bind: c.Bind}, r)
		if err != nil {
			return nil, err
		}
		out = append(out, stream.Options{Source: src, Decoder: decoderOf(c.Engine, keep), BlockSize: c.BlockSize, Idle: idleProbe(src)})
	}
	return out, nil
}
