package stream

import (
	"context"
	"errors"
	"net/netip"

	"github.com/sightline-router/sightline/indexer/source/zmq"
	"github.com/sightline-router/sightline/internal/fair"
)

// ZMQ is the PUB socket of a worker's rank and its replay socket, if any. Endpoints are as zmq.Address returns them.
type ZMQ struct {
	Endpoint       string
	ReplayEndpoint string       // "": the worker has none
	Bind           bool         // listen at Endpoint for the worker
	From           netip.Prefix // with Bind: where it connects from; zero: this machine
	Host           string       // if set, the only host that is dialled: the endpoints are the worker's own claim
	Replayed       fair.Hold    // for large messages of a replay
}

// Run implements Source.
func (z ZMQ) Run(ctx context.Context, f *Feed) error {
	err := z.check(z.Endpoint)
	if err != nil {
		return err
	}
	sub := zmq.Sub{Endpoint: z.Endpoint, Bind: z.Bind, From: z.From, Refused: f.refused,
		Up: f.Up, Down: f.Down, Malformed: f.Malformed, Room: f.Received()}
	return sub.Run(ctx, func(m zmq.Message) { f.Offer(Message{Seq: m.Seq, Payload: m.Payload}) })
}

// Replay implements Source.
func (z ZMQ) Replay(ctx context.Context, from uint64, each func(Message) error) error {
	if z.ReplayEndpoint == "" {
		return errors.ErrUnsupported
	}
	err := z.check(z.ReplayEndpoint)
	if err != nil {
		return err
	}
	return zmq.Replay(ctx, z.ReplayEndpoint, from, z.Replayed, func(m zmq.Message) error {
		return each(Message{Seq: m.Seq, Payload: m.Payload})
	})
}

func (z ZMQ) check(endpoint string) error {
	if z.Host == "" {
		return nil
	}
	return zmq.CheckClaimed(endpoint, z.Host)
}
