package extproc

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/peer"

	"github.com/sightline-router/sightline/internal/sockets"
	"github.com/sightline-router/sightline/router"
)

// numberedListener numbers Envoy's connections, so that the end of a connection ends the requests asked over it: an Envoy that dies takes
// its requests with it. The number is part of the remote address, which gRPC provides with each stream.
type numberedListener struct {
	net.Listener
	server *Server
}

func (l *numberedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, remote: &remote{Addr: c.RemoteAddr(), raw: c, number: l.server.sources.Add(1)}, server: l.server}, nil
}

type conn struct {
	net.Conn
	remote *remote
	server *Server
	read   bool // the first bytes
	once   sync.Once
}

// Read notes a TLS handshake where none is expected: gRPC only closes such a connection.
func (c *conn) Read(b []byte) (n int, err error) {
	n, err = c.Conn.Read(b)
	if !c.read && n > 0 {
		c.read = true
		if c.server.opt.TLS == nil && b[0] == 0x16 { // the type of a handshake's record; HTTP/2 begins with "PRI"
			c.server.refusedCall(c.remote, "connections", "TLS, and listen has none (tls)")
		}
	}
	return n, err
}

type remote struct {
	net.Addr
	raw    net.Conn
	number uint64
	// A decision was requested or reported on. The end of other connections, such as health checks', is ignored.
	asked atomic.Bool
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

// connection returns the number of the connection over which a decision is requested or reported on; 0: not known. From then on
// the connection's end is reported.
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

// keep has the connection of a stream closed last if there are too many.
func keep(ctx context.Context) {
	if p, ok := peer.FromContext(ctx); ok {
		if r, ok := p.Addr.(*remote); ok {
			sockets.Keep(r.raw)
		}
	}
}
