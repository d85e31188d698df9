package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer/feed"
	"github.com/sightline-router/sightline/indexer/sglang"
	"github.com/sightline-router/sightline/indexer/trtllm"
	"github.com/sightline-router/sightline/internal/config"
	"github.com/sightline-router/sightline/mmhash"
)

// decoder reads what a worker publishes. The pads in SGLang's events go to the model, which finds out by them how its
// pictures are named.
func (s *sources) decoder(wc *config.Worker) feed.Decoder {
	class, _ := s.cfg.ClassOf(wc)
	d := decoderOf(class.Engine, s.keep)
	if trt, ok := d.(*trtllm.Decoder); ok {
		trt.Standalone = wc.Events.Load != ""
	}
	if sg, ok := d.(*sglang.Decoder); ok {
		for i := range s.models {
			if m := &s.models[i]; m.Name == wc.Model {
				sg.Pad = m.Class(wc.Class).Prompts.SawPad
			}
		}
	}
	return d
}

// sglangSource finds a worker's sockets by asking it, again and again until it answers, and then is a pair of them.
type sglangSource struct {
	addr string // of its HTTP server
	rank int
	log  *zap.Logger
	// As configured.
	ranks, blockSize int

	mu    sync.Mutex
	found feed.ZMQ
}

const (
	askTime  = 5 * time.Second
	askAgain = 2 * time.Second
)

// Run implements feed.Source.
func (s *sglangSource) Run(ctx context.Context, f *feed.Feed) error {
	host, _, err := net.SplitHostPort(s.addr)
	if err != nil {
		return err
	}
	client := &http.Client{Timeout: askTime}
	defer client.CloseIdleConnections()
	for {
		info, err := sglang.Ask(ctx, client, s.addr)
		if err == nil {
			s.compare(info)
			z := feed.ZMQ{Topic: info.Topic}
			z.Endpoint, z.Replayed = info.Endpoints(host, s.rank)
			s.mu.Lock()
			s.found = z
			s.mu.Unlock()
			return z.Run(ctx, f)
		}
		f.Down(err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(askAgain):
		}
	}
}

// compare names what the worker says of itself and the configuration says otherwise.
func (s *sglangSource) compare(info sglang.ServerInfo) {
	if s.rank != 0 {
		return
	}
	if info.BlockSize > 0 && info.BlockSize != s.blockSize {
		s.log.Error("the worker's page size is not the model's block_size: none of its events will match",
			zap.String("worker", s.addr), zap.Int("page_size", info.BlockSize), zap.Int("block_size", s.blockSize))
	}
	if info.Ranks > 1 && info.Ranks != s.ranks {
		s.log.Error("the worker's data-parallel size is not its configured ranks",
			zap.String("worker", s.addr), zap.Int("dp_size", info.Ranks), zap.Int("ranks", s.ranks))
	}
}

// Replay implements feed.Source.
func (s *sglangSource) Replay(ctx context.Context, from uint64, each func(feed.Message) error) error {
	s.mu.Lock()
	z := s.found
	s.mu.Unlock()
	if z.Endpoint == "" {
		return errors.ErrUnsupported
	}
	return z.Replay(ctx, from, each)
}

// logPinned tells of fingerprints found, so that they can be configured.
func logPinned(media *mmhash.Media, log *zap.Logger) {
	media.Pinned = func(model, fingerprint string) {
		log.Info("images of this model are named by its workers' rule from now on", zap.String("model", model), zap.String("processor_fingerprint", fingerprint))
	}
}
