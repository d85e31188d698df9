package bus

import (
	"errors"

	"github.com/nats-io/nats.go"
)

// Peers carries messages between routers: each says what is for all at its own subject, what is for one below that. Core NATS, no
// stream: what is not heard at once is not worth keeping.
type Peers struct {
	conn    *nats.Conn
	subject string
}

// errAway: the client would keep what is sent, and send it when it is out of date.
var errAway = errors.New("NATS is away")

// Peers joins the other routers under a name, which is one part of a subject. take gets what the others send to all and to this one,
// its own too, one message after another; it may keep none of it.
func (l *Link) Peers(own string, take func(message []byte)) (*Peers, error) {
	p := &Peers{l.NATS, l.Prefix.peers()}
	hear := func(m *nats.Msg) { take(m.Data) }
	if _, err := l.NATS.Subscribe(p.subject+"*", hear); err != nil {
		return nil, err
	}
	if _, err := l.NATS.Subscribe(p.subject+"*."+own, hear); err != nil {
		return nil, err
	}
	p.subject += own
	return p, nil
}

// Send sends to a router, to all for "".
func (p *Peers) Send(to string, message []byte) error {
	if !p.conn.IsConnected() {
		return errAway
	}
	if to != "" {
		return p.conn.Publish(p.subject+"."+to, message)
	}
	return p.conn.Publish(p.subject, message)
}
