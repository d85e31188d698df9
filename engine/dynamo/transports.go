package dynamo

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/sightline-router/sightline/indexer/source/zmq"
)

// Scope is the endpoint whose workers are meant.
type Scope struct{ Namespace, Component, Endpoint string }

// DialZMQ follows one publisher of the ZMQ plane until ctx ends. Frames: topic, publisher, sequence, frame. Which worker-ranks
// it speaks for only its events tell: those have lost their stream when it goes.
func (p *Plane) DialZMQ(ctx context.Context, endpoint string) error {
	heard := map[*rank]bool{} // one publisher, one rank; more than mostRanks there are not
	sub := zmq.Sub{Endpoint: endpoint, Topic: Topic, Up: func() { p.link(heard, nil) }, Down: func(err error) { p.link(heard, err) }}
	return sub.Run(ctx, func(m zmq.Message) {
		if b, err := Unframe(m.Payload); err == nil {
			if r := p.envelope(b); r != nil {
				heard[r] = true
			}
		}
	})
}

// SubscribeNATS follows the NATS plane (core NATS: what is published while nobody listens is gone): the endpoint's
// subject, and the component's. End it by the connection's close.
func (p *Plane) SubscribeNATS(c *nats.Conn, s Scope) error {
	component := "namespace." + segment(s.Namespace) + ".component." + segment(s.Component)
	for _, subject := range []string{component + ".endpoint." + segment(s.Endpoint) + "." + Topic, component + "." + Topic} {
		if _, err := c.Subscribe(subject, func(m *nats.Msg) { p.envelope(m.Data) }); err != nil {
			return fmt.Errorf("dynamo: subscribe to %s: %w", subject, err)
		}
	}
	go p.watch(c)
	return nil
}

// watch tells all feeds when the connection to NATS goes and comes, until it is closed.
func (p *Plane) watch(c *nats.Conn) {
	changes := c.StatusChanged(nats.RECONNECTING, nats.CONNECTED, nats.CLOSED)
	defer c.RemoveStatusListener(changes)
	for s := range changes {
		switch s {
		case nats.CLOSED:
			return
		case nats.RECONNECTING:
			p.link(nil, errors.New("NATS is away"))
		default:
			p.link(nil, nil)
		}
	}
}

// segment percent-encodes a name outside of letters, digits, - and _, as Dynamo does in subjects.
func segment(name string) string {
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
