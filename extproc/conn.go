package extproc

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/peer"

	"github.com/sightline-router/sightline/router"
)

// numbered numbers Envoy's connections, so that the end of one is known to be the end of what was asked over it: an Envoy
// that dies takes its requests with it. The number travels as part of the remote address, which gRPC shows with each stream.
type numbered struct {
	net.Listener
	server *Server
}

func (l *numbered) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, remote: &remote{Addr: c.RemoteAddr(), number: l.server.sources.Add(1)}, server: l.server}, nil
}

type conn struct {
	net.Conn
	remote *remote
	server *Server
	once   sync.Once
}

type remote struct {
	net.Addr
	number uint64
	asked  atomic.Bool // a decision was asked for, or told of; the end of other connections, such as health checks', is not told
}

func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		if c.remote.asked.Load() {
			c.server.observeSafely(router.Outcome{Phase: router.Lost, Source: c.remote.number})
		}
	})
	return err
}

// connection is the number of the connection over which a decision is asked for, or told of; 0: not known. From here on its
// end is told.
func connection(ctx context.Context) uint64 {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return 0
	}
	r, ok := p.Addr.(*remote)
	if !ok {
		return 0
	}
	r.asked.Store(true)
	return r.number
}
