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

// askedEvents asks a worker where its ranks publish, once for all of them: an answer counts for askedFor.
type askedEvents struct {
	find  func(context.Context) ([]rules.EventSource, error)
	turn  chan struct{} // of one rank, which asks or takes what another has been told
	at    time.Time
	ranks []rules.EventSource
	err   error
}

const askedFor = time.Second

// newAskedEvents returns nil if workers of this class do not tell where they publish.
func (s *sources) newAskedEvents(addr string, r rules.Rules, ranks int) *askedEvents {
	host, _, err := net.SplitHostPort(addr)
	if r.FindEvents == nil || err != nil {
		return nil
	}
	client, said := rules.NewClient(askTime, s.as), false
	return &askedEvents{turn: make(chan struct{}, 1), find: func(ctx context.Context) ([]rules.EventSource, error) {
		list, err := r.FindEvents(ctx, client, addr, host, ranks)
		if n := len(list); n > max(1, ranks) && !said {
			said = true
			s.log.Error("the worker's data-parallel size is not its configured ranks", zap.String("worker", addr), zap.Int("dp_size", n),
				zap.Int("ranks", ranks))
		}
		return list, err
	}}
}

// source returns the source of a rank.
func (a *askedEvents) source(addr string, rank int) (*stream.Lookup, error) {
	host, _, err := net.SplitHostPort(addr)
	if a == nil || err != nil {
		return nil, fmt.Errorf("%w: %w", rules.ErrNotAsked, err)
	}
	return &stream.Lookup{Find: func(ctx context.Context) (stream.ZMQ, error) {
		e, err := a.ask(ctx, rank)
		if err != nil {
			return stream.ZMQ{}, err
		}
		return stream.ZMQ{Endpoint: e.Pub, ReplayEndpoint: e.Replay, Host: host}, nil
	}}, nil
}

func (a *askedEvents) ask(ctx context.Context, rank int) (e rules.EventSource, err error) {
	select {
	case a.turn <- struct{}{}:
	case <-ctx.Done():
		return e, ctx.Err()
	}
	defer func() { <-a.turn }()
	if time.Since(a.at) > askedFor {
		a.ranks, a.err = a.find(ctx)
		if ctx.Err() != nil {
			return e, ctx.Err()
		}
		a.at = time.Now()
	}
	switch err = a.err; {
	case err == nil && rank >= len(a.ranks):
		return e, fmt.Errorf("%w: the server has %d ranks (want ranks: %[2]d of the worker; rank %[3]d is none of them)", rules.ErrNotAsked,
			len(a.ranks), rank)
	case err == nil:
		return a.ranks[rank], nil
	case !errors.Is(err, rules.ErrNoEvents):
		err = fmt.Errorf("%w: %w", rules.ErrNotAsked, err)
	}
	return e, err
}
