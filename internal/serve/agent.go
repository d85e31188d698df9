package serve

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

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
	From      string // with Bind: a network that the engine may connect from; "": this machine alone
	Topic     string // only messages whose topic begins so
	Ranks     int    // data-parallel ranks; 0: none
	BlockSize int    // tokens a block; 0: as the engine says
	NATS      AgentNATS
	Publish   string // blocks: hashes only; tokens: token ids too
	LogLevel  string
}

// AgentNATS is where an agent publishes to, as flags.
type AgentNATS struct {
	bus.Access
	Prefix bus.Prefix `name:"nats-prefix" default:"sightline" help:"nats.prefix of the router's configuration."`
}

// Agent runs beside one worker until ctx ends: it listens to the worker's KV events and publishes them to NATS.
func Agent(ctx context.Context, c AgentOptions) error {
	log, err := newLog(c.LogLevel)
	if err != nil {
		return err
	}
	defer log.Sync()
	if err := c.checkNATS(); err != nil {
		return err
	}
	conn, err := c.NATS.Connect(bus.ConnectOptions{Name: "sightline agent " + c.Worker, Inbox: c.NATS.Prefix.AgentInbox(c.Worker), Log: log})
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
		p, err := bus.NewPublisher(bus.PublisherOptions{NATS: conn, Prefix: c.NATS.Prefix, Worker: c.Worker, Rank: rank, CountCopies: copies,
			Tokens: c.Publish == "tokens", Log: log})
		if err != nil {
			return err
		}
		o.Sink, o.Link = p, p.Link
		f := stream.Start(o)
		defer f.Close()
		go watch(ctx, f, log.With(zap.Int("rank", r)))
	}
	log.Info("publishing", zap.String("worker", c.Worker), zap.String("nats", conn.ConnectedUrlRedacted()))
	<-ctx.Done()
	return nil
}

// checkNATS says which flags cannot be, or which file.
func (c *AgentOptions) checkNATS() error {
	var errs []error
	c.NATS.Check(false, func(key, format string, args ...any) {
		flag := strings.TrimSuffix("--nats-"+strings.ReplaceAll(key, "_", "-"), "-url")
		errs = append(errs, fmt.Errorf(flag+": "+format, args...))
	})
	if err := c.NATS.Prefix.Check(); err != nil {
		errs = append(errs, fmt.Errorf("--nats-prefix: %w", err))
	}
	return errors.Join(errs...)
}

// feeds are the ranks' feeds but for their sinks.
func (c *AgentOptions) feeds() ([]stream.Options, error) {
	keep := c.Publish == "tokens"
	drain := trtllm.NewDrain(c.HTTP, c.Ranks)
	from, err := c.from()
	if err != nil {
		return nil, err
	}
	out := make([]stream.Options, max(1, c.Ranks))
	for r := range out {
		o := &out[r]
		o.BlockSize = c.BlockSize
		if c.HTTP != "" {
			hearDrain(o, drain, r, keep)
			continue
		}
		e := config.Events{ZMQ: c.ZMQ, Replay: c.Replay, Topic: c.Topic, Bind: c.Bind}
		if err := hearSockets(o, e, from, r, engine.RulesOf(c.Engine, "").Decoder(rules.Decoding{Keep: keep})); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// from is the network that From names, zero where it names none.
func (c *AgentOptions) from() (netip.Prefix, error) {
	switch {
	case c.From == "":
		return netip.Prefix{}, nil
	case !c.Bind:
		return netip.Prefix{}, errors.New("--from: given without --bind (want it where the engine's publisher connects to the agent)")
	}
	p, err := netip.ParsePrefix(c.From)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("--from: %q (want a network, such as 10.0.0.0/8)", c.From)
	}
	return p.Masked(), nil
}

// watchEvery is how often an agent looks for what its log should say.
const watchEvery = time.Second

// watch logs what becomes of a rank's connection to its engine, until ctx ends.
func watch(ctx context.Context, f *stream.Feed, log *zap.Logger) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	var before stream.Stats
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := f.Stats()
		switch live := now.Live(); {
		case live && !before.Live():
			log.Info("the engine is heard")
		case !live && before.Live():
			log.Warn("the engine is not heard", zap.String("error", now.LastError))
		}
		if n := now.Strangers - before.Strangers; n > 0 {
			log.Warn("connections from where the engine is not were refused (--from allows a network)", zap.Uint64("connections", n),
				zap.String("last", now.LastError))
		}
		before = now
	}
}
