package serve

import (
	"context"
	"fmt"
	"net/netip"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/engine/trtllm"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/config"
)

// AgentOptions say whose events are published where.
type AgentOptions struct {
	Worker    string // its name in the router's configuration
	Engine    string // vllm, sglang or trtllm: whose events these are
	ZMQ       string // the engine's PUB socket; rank r is at port + r
	HTTP      string // or TensorRT-LLM's server, whose /kv_cache_events is drained
	Replay    string // the engine's replay socket
	Bind      bool   // listen at ZMQ for an engine whose publisher connects
	Topic     string // only messages whose topic begins so
	Ranks     int    // data-parallel ranks; 0: none
	BlockSize int    // tokens a block; 0: as the engine says
	NATS      string // server
	Publish   string // blocks: hashes only; tokens: token ids too
	LogLevel  string
}

// Agent runs beside one worker until ctx ends: it listens to the worker's KV events and publishes them to NATS.
func Agent(ctx context.Context, c AgentOptions) error {
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
	feeds, err := c.feeds()
	if err != nil {
		return err
	}
	copies := c.HTTP == "" && engine.RulesOf(c.Engine, "").CountsCopies
	for r, o := range feeds {
		rank := r
		if c.Ranks == 0 {
			rank = -1
		}
		p, err := bus.NewPublisher(bus.PublisherOptions{NATS: conn, Worker: c.Worker, Rank: rank, CountCopies: copies,
			Tokens: c.Publish == "tokens", Log: log})
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
func (c *AgentOptions) feeds() ([]stream.Options, error) {
	keep := c.Publish == "tokens"
	drain := trtllm.NewDrain(c.HTTP, c.Ranks)
	out := make([]stream.Options, max(1, c.Ranks))
	for r := range out {
		o := &out[r]
		o.BlockSize = c.BlockSize
		if c.HTTP != "" {
			hearDrain(o, drain, r, keep)
			continue
		}
		e := config.Events{ZMQ: c.ZMQ, Replay: c.Replay, Topic: c.Topic, Bind: c.Bind}
		if err := hearSockets(o, e, netip.Prefix{}, r, engine.RulesOf(c.Engine, "").Decoder(rules.Decoding{Keep: keep})); err != nil {
			return nil, err
		}
	}
	return out, nil
}
