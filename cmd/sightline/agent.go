package main

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer/bus"
	"github.com/sightline-router/sightline/indexer/feed"
	"github.com/sightline-router/sightline/indexer/vllm"
	"github.com/sightline-router/sightline/internal/config"
)

type agentCmd struct {
	Worker    string `required:"" help:"The worker's name in the router's configuration."`
	ZMQ       string `name:"zmq" required:"" help:"The engine's PUB socket, such as tcp://127.0.0.1:5557; rank r is at port + r."`
	Replay    string `help:"The engine's replay socket, such as tcp://127.0.0.1:5558."`
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
	conn, err := connectNATS(c.NATS, "sightline agent "+c.Worker, log)
	if err != nil {
		return fmt.Errorf("nats: %w", err)
	}
	defer conn.Close()
	for { // the stream must be there before anything can be published
		err := ensureStream(conn)
		if err == nil {
			break
		}
		log.Warn("the stream cannot be made yet", zap.Error(err))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
	for r := range max(1, c.Ranks) {
		src, err := zmqSource(config.Events{ZMQ: c.ZMQ, Replay: c.Replay, Topic: c.Topic}, r)
		if err != nil {
			return err
		}
		rank := r
		if c.Ranks == 0 {
			rank = -1
		}
		pub, err := bus.NewPublisher(bus.PublisherOptions{NATS: conn, Worker: c.Worker, Rank: rank, CountCopies: true, Tokens: c.Publish == "tokens"})
		if err != nil {
			return err
		}
		f := feed.Start(feed.Options{Source: src, Decoder: &vllm.Decoder{Keep: c.Publish == "tokens"}, Sink: pub, BlockSize: c.BlockSize, Idle: idleProbe(src)})
		defer f.Close()
	}
	log.Info("publishing", zap.String("worker", c.Worker), zap.String("nats", conn.ConnectedUrlRedacted()))
	<-ctx.Done()
	return nil
}
