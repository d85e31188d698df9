package bus

import (
	"cmp"
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/mmhash/block"
)

// LinkOptions say where NATS is: at Access.URL, or an embedded server at Listen.
type LinkOptions struct {
	Access Access
	Server
	Refused func() // see ConnectOptions
	Log     *zap.Logger

	Secret      *block.Secret // see Listener
	FixedSecret bool
	Replaced    func()
}

// Server is an embedded server. Config's users restrict access; without one, Listen must be a loopback address.
type Server struct {
	Listen string // host:port; port 0 takes a free one
	// Config is a nats-server configuration, read first: users and their permissions, TLS, limits, the streams' folder (without one, a new
	// one is made and removed at the end).
	Config string
}

// Link is a router's connection to the agents: NATS, the stream, and one Listener for all workers. The caller must Close it.
type Link struct {
	Listener

	failing Failing
	server  *embedded // nil if NATS is another process
	stop    context.CancelFunc
	done    chan struct{}
}

// StartLink connects and listens in the background.
func StartLink(o LinkOptions) (*Link, error) {
	l := &Link{done: make(chan struct{}), Listener: Listener{Log: o.Log,
		Secret: o.Secret, FixedSecret: o.FixedSecret, Replaced: o.Replaced}}
	c := ConnectOptions{Name: "sightline", Inbox: RouterInbox, Log: o.Log, Refused: o.Refused, Failing: &l.failing}
	var err error
	if o.Listen != "" {
		l.server, err = o.Server.start(o.Log)
		if err != nil {
			return nil, err
		}
		c.server = l.server
	}
	l.NATS, err = o.Access.Connect(c)
	if err != nil {
		l.server.close()
		return nil, fmt.Errorf("nats.%w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	go func() {
		defer close(l.done)
		_ = l.Run(ctx) // returns only when ctx ends
	}()
	return l, nil
}

// Away returns why there is no connection to a NATS server that can be used; "": there is one. A nil Link is not away.
func (l *Link) Away() string {
	if l == nil {
		return ""
	}
	if l.NATS.IsConnected() {
		if err := CheckServer(l.NATS); err != nil {
			return err.Error()
		}
		return ""
	}
	why, _ := l.failing.Why()
	return cmp.Or(why, "no server has answered yet")
}

// Close ends everything. A nil Link does nothing.
func (l *Link) Close() {
	if l == nil {
		return
	}
	l.stop()
	<-l.done
	l.NATS.Close()
	l.server.close()
}
