package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer/stream"
)

// askTime limits one query to a worker.
const askTime = 5 * time.Second

// lookupSource returns the source of a rank whose worker reports where it publishes.
func (s *sources) lookupSource(addr string, r rules.Rules, rank, ranks int) (*stream.Lookup, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	client := rules.NewClient(askTime, s.as)
	var last rules.EventSource
	return &stream.Lookup{Find: func(ctx context.Context) (stream.ZMQ, error) {
		e, err := r.FindEvents(ctx, client, addr, host, rank)
		if err != nil && !errors.Is(err, rules.ErrNoEvents) {
			err = fmt.Errorf("%w: %w", rules.ErrNotAsked, err)
		}
		if err != nil {
			return stream.ZMQ{}, err
		}
		if e != last && rank == 0 && e.Ranks > 1 && e.Ranks != ranks {
			s.log.Error("the worker's data-parallel size is not its configured ranks",
				zap.String("worker", addr), zap.Int("dp_size", e.Ranks), zap.Int("ranks", ranks))
		}
		last = e
		return stream.ZMQ{Endpoint: e.Pub, ReplayEndpoint: e.Replay, Topic: e.Topic, Host: host}, nil
	}}, nil
}
