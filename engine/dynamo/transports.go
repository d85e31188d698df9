package dynamo

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/sightline-router/sightline/indexer/source/zmq"
	"github.com/sightline-router/sightline/internal/fair"
)

// Scope names the endpoint whose workers are followed.
type Scope struct{ Namespace, Component, Endpoint string }

// DialZMQ follows one publisher of the ZMQ plane until ctx ends. Frames: topic, publisher, sequence, frame. When the connection is
// lost, it marks the worker-ranks whose events came over it as down.
func (p *Plane) DialZMQ(ctx context.Context, endpoint string) error {
	heard := map[*rank]bool{} // usually one
	p.mu.Lock()
	if p.received == nil {
		p.received = fair.Shared(allReceived, 1<<14)
	}
	room := fair.Hold{Room: p.received, For: fair.ClientOf(endpoint)}
	p.mu.Unlock()
	sub := zmq.Sub{Room: room, Endpoint: endpoint, Topic: topic, Up: func() { p.link(heard, nil) },
		Down:      func(err error) { p.link(heard, err) },
		Malformed: func(form string) { p.noteUnreadable(endpoint, errors.New(form)) }}
	return sub.Run(ctx, func(m zmq.Message) {
		b, err := unframe(m.Payload)
		if err != nil {
			p.noteUnreadable(endpoint, err)
			return
		}
		if r := p.receive(endpoint, b); r != nil {
			heard[r] = true
		}
	})
}

// SubscribeNATS subscribes to the NATS plane: the endpoint's subject, and the component's. It uses core NATS, so messages published
// while nothing listens are lost. It returns when the connection is closed.
func (p *Plane) SubscribeNATS(c *nats.Conn, s Scope) error {
	component := "namespace." + segment(s.Namespace) + ".component." + segment(s.Component)
	for _, subject := range []string{component + ".endpoint." + segment(s.Endpoint) + "." + topic, component + "." + topic} {
		if _, err := c.Subscribe(subject, func(m *nats.Msg) { p.receive(m.Subject, m.Data) }); err != nil {
			return fmt.Errorf("dynamo: subscribe to %s: %w", subject, err)
		}
	}
	go p.watch(c)
	return nil
}

// watch marks all feeds down and up with the connection to NATS, until it is closed.
func (p *Plane) watch(c *nats.Conn) {
	changes := c.StatusChanged(nats.RECONNECTING, nats.CONNECTED, nats.CLOSED)
	defer c.RemoveStatusListener(changes)
	for s := range changes {
		switch s {
		case nats.CLOSED:
			return
		case nats.RECONNECTING:
			p.link(nil, errors.New("NATS cannot be reached"))
		default:
			p.link(nil, nil)
		}
	}
}

// segment percent-encodes a name except for letters, digits, - and _, as Dynamo does in subjects.
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
