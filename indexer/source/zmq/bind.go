package zmq

import (
	"context"
	"net"
	"sync"

	"github.com/sightline-router/sightline/internal/guard"
)

// bound listens for a publisher that connects, as vLLM's and SGLang's do where their endpoint is another's host, and takes
// what it sends. One worker, one address: of several publishers the youngest is heard, which is the same one come back.
func (s *Sub) bound(ctx context.Context, network, address string, each func(Message)) error {
	lis, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { lis.Close() })()
	defer lis.Close()
	var (
		readers sync.WaitGroup
		turn    sync.Mutex // held by the one that reads
		mu      sync.Mutex
		current *conn
	)
	defer readers.Wait()
	for {
		nc, err := lis.Accept()
		if err != nil {
			return err
		}
		readers.Go(func() {
			greet, cancel := context.WithTimeout(ctx, handshakeTime)
			defer cancel()
			var c *conn
			err := guard.Call(func() (err error) { c, err = open(greet, nc, "SUB", "PUB", "XPUB"); return err })
			if err != nil { // a stranger changes nothing
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
