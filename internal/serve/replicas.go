package serve

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/peers"
)

// replicas is the end of the line to the other Sightlines; nil: there is no line.
type replicas struct {
	*peers.Exchange
	direct *peers.Direct // nil: by NATS alone
	own    string
	stop   context.CancelFunc
	done   chan struct{}
}

func (s *Server) replicas() *replicas {
	direct := len(s.cfg.Replicas.All(s.cfg.Envoy.Sightlines)) > 0
	if !s.cfg.NATS.Given() && !direct {
		return nil
	}
	own := peers.Instance()
	p := &replicas{Exchange: peers.New(own, s.log, s.metrics), own: own, done: make(chan struct{})}
	if direct {
		p.direct = peers.NewDirect(own, p.Take, s.log)
	}
	return p
}

func (p *replicas) instance() string {
	if p == nil {
		return ""
	}
	return p.own
}

func (p *replicas) share() func(*router.Shared) {
	if p == nil {
		return nil
	}
	return p.Share
}

func (p *replicas) askHolders() func(context.Context, []uint64) ([]router.Holder, bool) {
	if p == nil {
		return nil
	}
	return p.AskHolders
}

func (p *replicas) forward() func(string, router.Outcome) bool {
	if p == nil {
		return nil
	}
	return p.Forward
}

// heard is admin.State.Others.
func (p *replicas) heard() func() (int, time.Duration) {
	if p == nil {
		return nil
	}
	return p.Heard
}

// services registers what other replicas call.
func (p *replicas) services() func(grpc.ServiceRegistrar) {
	if p == nil || p.direct == nil {
		return nil
	}
	return p.direct.Register
}

// start joins the others. Close it.
func (p *replicas) start(ctx context.Context, r *running, srv *extproc.Server) error {
	if p == nil {
		return nil
	}
	p.Start(r.router, srv.Reported)
	access, err := r.cfg.Replicas.Access.Open(r.log)
	if err != nil {
		return fmt.Errorf("replicas: %w", err)
	}
	var lines []peers.Line
	if r.sources.nats != nil {
		bus, err := r.sources.nats.Peers(p.own, p.Take)
		if err != nil {
			return fmt.Errorf("nats: %w", err)
		}
		lines = append(lines, bus)
	}
	if p.direct != nil {
		lines = append(lines, p.direct)
	}
	ctx, p.stop = context.WithCancel(ctx)
	go func() {
		defer close(p.done)
		streams, end := context.WithCancel(context.WithoutCancel(ctx)) // until the good-bye is sent
		var all sync.WaitGroup
		if p.direct != nil {
			all.Go(func() {
				select {
				case <-srv.Stopping():
				case <-streams.Done():
				}
				p.direct.End()
			})
			all.Go(func() { p.direct.Run(streams, r.cfg.Replicas.All(r.cfg.Envoy.Sightlines), access) })
		}
		p.Run(ctx, lines...)
		end()
		all.Wait()
	}()
	return nil
}

// close says good-bye.
func (p *replicas) close() {
	if p != nil {
		p.stop()
		<-p.done
	}
}
