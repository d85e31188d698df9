package dynamo

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sightline-router/sightline/indexer/zmq"
)

// Scope is the endpoint whose workers are meant.
type Scope struct{ Namespace, Component, Endpoint string }

// DialZMQ follows one publisher of the ZMQ plane until ctx ends. Frames: topic, publisher, sequence, frame.
func (p *Plane) DialZMQ(ctx context.Context, endpoint string) error {
	sub := zmq.Sub{Endpoint: endpoint, Topic: Topic}
	return sub.Run(ctx, func(m zmq.Message) {
		b, err := Unframe(m.Payload)
		if err != nil {
			p.refuse()
			return
		}
		p.Envelope(b)
	})
}

// SubscribeNATS follows the NATS plane (core NATS: what is published while nobody listens is gone): the endpoint's
// subject, and the component's, which builds before 1.6 used. End it by the connection's close.
func (p *Plane) SubscribeNATS(c *nats.Conn, s Scope) error {
	component := "namespace." + segment(s.Namespace) + ".component." + segment(s.Component)
	for _, subject := range []string{component + ".endpoint." + segment(s.Endpoint) + "." + Topic, component + "." + Topic} {
		if _, err := c.Subscribe(subject, func(m *nats.Msg) { p.Envelope(m.Data) }); err != nil {
			return fmt.Errorf("dynamo: subscribe to %s: %w", subject, err)
		}
	}
	return nil
}

// ConsumeJetStream follows the stream of a component of Dynamo before 1.6, from the oldest event that it still has, until
// ctx ends. While the stream is not there it is looked for again.
func (p *Plane) ConsumeJetStream(ctx context.Context, c *nats.Conn, s Scope) error {
	js, err := jetstream.New(c)
	if err != nil {
		return fmt.Errorf("dynamo: %w", err)
	}
	stream := Stream(s)
	for ctx.Err() == nil {
		cons, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverAllPolicy})
		if err == nil {
			var running jetstream.ConsumeContext
			if running, err = cons.Consume(func(m jetstream.Msg) { p.Bare(m.Data()) }); err == nil {
				select {
				case <-ctx.Done():
				case <-running.Closed():
				}
				running.Stop()
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return ctx.Err()
}

// Stream is the name that Dynamo before 1.6 gives a component's JetStream stream.
func Stream(s Scope) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, "namespace."+s.Namespace+".component."+s.Component+"."+Topic)
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
