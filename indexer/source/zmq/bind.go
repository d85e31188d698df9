package zmq

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/internal/sockets"
)

// maxPublishers bounds the connections to a socket that we bind: one is read, others are greeted.
const maxPublishers = 16

// runBound listens for a publisher that connects to us, as vLLM's and SGLang's do if their endpoint names another host. An address
// belongs to one worker: of several publishers that From allows only the newest is read, since after a restart it is the same
// worker. A wildcard listens on IPv4 and IPv6.
func (s *Sub) runBound(ctx context.Context, network, address string, each func(Message)) error {
	if at, err := netip.ParseAddrPort(address); err == nil && at.Addr().IsUnspecified() {
		address = fmt.Sprint(":", at.Port())
	}
	lis, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	lis = sockets.Limit(lis, maxPublishers, nil)
	defer context.AfterFunc(ctx, func() { lis.Close() })()
	defer lis.Close()
	var (
		readers sync.WaitGroup
		turn    sync.Mutex // held by the connection that is read
		mu      sync.Mutex
		current *conn
	)
	defer readers.Wait()
	for {
		nc, err := lis.Accept()
		if sockets.Exhausted(err) { // the current connection stays
			time.Sleep(minWait)
			continue
		}
		if err != nil {
			return err
		}
		if a, ok := s.allowed(nc); !ok {
			nc.Close()
			if s.Refused != nil {
				s.Refused(a)
			}
			continue
		}
		readers.Go(func() {
			greet, cancel := context.WithTimeout(ctx, handshakeTime)
			defer cancel()
			var c *conn
			err := guard.Call(func() (err error) { c, err = open(greet, nc, "SUB", "PUB", "XPUB"); return err })
			if err != nil { // not a publisher: the current connection stays
				nc.Close()
				return
			}
			mu.Lock()
			if current != nil {
				current.Close()
			}
			current = c
			mu.Unlock()
			turn.Lock()
			defer turn.Unlock()
			err = guard.Call(func() error { return s.read(ctx, c, each) })
			if s.Down != nil && ctx.Err() == nil {
				s.Down(err)
			}
		})
	}
}

// allowed reports whether a peer is where From says, and returns its address. A peer on this machine that dials an address of
// this machine comes from that address.
func (s *Sub) allowed(nc net.Conn) (netip.Addr, bool) {
	at := func(a net.Addr) netip.Addr {
		tcp, _ := a.(*net.TCPAddr)
		return tcp.AddrPort().Addr().Unmap().WithZone("") // zero for other than TCP addresses
	}
	peer := at(nc.RemoteAddr())
	switch {
	case !peer.IsValid(): // a socket in the file system
		return peer, true
	case s.From.IsValid():
		return peer, s.From.Contains(peer)
	}
	return peer, peer.IsLoopback() || peer == at(nc.LocalAddr())
}
