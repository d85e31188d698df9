package serve

import (
	"context"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/engine/sglang"
	"github.com/sightline-router/sightline/engine/vllm"
	"github.com/sightline-router/sightline/indexer/stream"
)

// askTime bounds one question to a worker.
const askTime = 5 * time.Second

// asked is the source of a rank whose worker says itself where it publishes.
func (s *sources) asked(addr, engine string, rank, ranks, blockSize int) (*stream.Lookup, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Timeout: askTime, Transport: &http.Transport{DisableKeepAlives: true}}
	if engine == "vllm" {
		return &stream.Lookup{Find: func(ctx context.Context) (stream.ZMQ, error) {
			e, err := vllm.FetchEventSource(ctx, client, addr, host, rank)
			return stream.ZMQ{Endpoint: e.Pub, ReplayEndpoint: e.Replay, Topic: e.Topic}, err
		}}, nil
	}
	var last sglang.ServerInfo
	return &stream.Lookup{Find: func(ctx context.Context) (stream.ZMQ, error) {
		info, err := sglang.FetchServerInfo(ctx, client, addr)
		if err != nil {
			return stream.ZMQ{}, err
		}
		if info != last && rank == 0 {
			s.compare(addr, info, ranks, blockSize)
		}
		last = info
		z := stream.ZMQ{Topic: info.Topic}
		z.Endpoint, z.ReplayEndpoint = info.Endpoints(host, rank)
		return z, nil
	}}, nil
}

// compare names what an SGLang worker says of itself and the configuration says otherwise.
func (s *sources) compare(addr string, info sglang.ServerInfo, ranks, blockSize int) {
	if info.BlockSize > 0 && info.BlockSize != blockSize {
		s.log.Error("the worker's page size is not the model's block_size: none of its events will match",
			zap.String("worker", addr), zap.Int("page_size", info.BlockSize), zap.Int("block_size", blockSize))
	}
	if info.Ranks > 1 && info.Ranks != ranks {
		s.log.Error("the worker's data-parallel size is not its configured ranks",
			zap.String("worker", addr), zap.Int("dp_size", info.Ranks), zap.Int("ranks", ranks))
	}
}
