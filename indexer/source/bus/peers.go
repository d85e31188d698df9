package bus

import (
	"errors"

	"github.com/nats-io/nats.go"
)

// Peers carries messages between routers: each publishes messages for all at its own subject, and messages for one router below
// that. It uses core NATS without a stream: a message that is not received at once is not worth keeping.
type Peers struct {
	conn    *nats.Conn
	subject string
}

// errUnreachable: the client would keep the message and send it when it is outdated.
var errUnreachable = errors.New("NATS cannot be reached")

// Peers joins the other routers under the name own, which is one token of a subject. take gets the messages that others send to
// all and to this one, and this one's own to all, one after another; it must not keep them.
func (l *Link) Peers(own string, take func(message []byte)) (*Peers, error) {
	p := &Peers{l.NATS, l.Prefix.peers()}
	hear := func(m *nats.Msg) {
		if len(m.Header) == 0 { // with any, it is an answer of the NATS server's, with a message that an agent has stored
			take(m.Data)
		}
	}
	for _, subject := range []string{p.subject + "*", p.subject + "*." + own} {
		sub, err := l.NATS.Subscribe(subject, hear)
		if err == nil {
			err = sub.SetPendingLimits(peersWaiting, peerBytes)
		}
		if err != nil {
			return nil, err
		}
	}
	p.subject += own
	return p, nil
}

// Send sends to a router, or to all for "".
func (p *Peers) Send(to string, message []byte) error {
	if !p.conn.IsConnected() {
		return errUnreachable
	}
	if to != "" {
		return p.conn.Publish(p.subject+"."+to, message)
	}
	return p.conn.Publish(p.subject, message)
}
