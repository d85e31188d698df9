package serve

import (
	"context"
	"fmt"

	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/peers"
)

// replicas is the end of the line to the other Sightlines; nil: there is no line.
type replicas struct {
	*peers.Exchange
	own  string
	stop context.CancelFunc
	done chan struct{}
}

func (s *Server) replicas() *replicas {
	if !s.cfg.NATS.Given() {
		return nil
	}
	own := peers.Instance()
	return &replicas{Exchange: peers.New(own, s.log, s.metrics), own: own, done: make(chan struct{})}
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

func (p *replicas) forward() func(string, router.Outcome) bool {
	if p == nil {
		return nil
	}
	return p.Forward
}

// start joins the others. Close it.
func (p *replicas) start(ctx context.Context, r *running, srv *extproc.Server) error {
	if p == nil {
		return nil
	}
	p.Start(r.router, srv.Reported)
	line, err := r.sources.nats.Peers(p.own, p.Take)
	if err != nil {
		return fmt.Errorf("nats: %w", err)
	}
	ctx, p.stop = context.WithCancel(ctx)
	go func() {
		defer close(p.done)
		p.Run(ctx, line)
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
