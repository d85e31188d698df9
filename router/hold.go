package router

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A fleet that is replaced, or that comes up from nothing, has no worker for moments. With Options.Hold a request that was
// read as far as its model waits that long for one; where none comes, or as many wait as may, its client is told to come again.

const (
	mostHeld  = 1024                  // that wait at once; their bodies count among the bytes that may be here
	lookAgain = 50 * time.Millisecond // between looks for a worker
)

// waiters are who waits for a worker.
type waiters struct {
	now   atomic.Int64
	total *prometheus.CounterVec // outcome
}

// Words of sightline_requests_held_total.
const (
	heldServed = "served"
	heldNone   = "none came"
	heldLeft   = "client left"
	heldFull   = "too many"
)

func newWaiters() *waiters {
	h := &waiters{total: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "sightline", Name: "requests_held_total",
		Help: "Requests that came while no worker was known for them, by outcome: served; none came (503); client left; too many waited (503)."}, []string{"outcome"})}
	for _, outcome := range []string{heldServed, heldNone, heldLeft, heldFull} {
		h.total.WithLabelValues(outcome)
	}
	return h
}

// awaitWorker waits until a worker is known that the request may go to, unless Envoy is to pick it. The time is not the decision's own.
func (x *decision) awaitWorker(ctx context.Context) *Refusal {
	if x.opt.Hold <= 0 || x.aside || x.left() && !x.req.MustPick || len(x.allowed()) > 0 {
		return nil
	}
	outcome := x.wait(ctx)
	x.waiters.total.WithLabelValues(outcome).Inc()
	if outcome != heldServed {
		return &Refusal{Status: http.StatusServiceUnavailable, Message: "no worker is there for this request"}
	}
	x.now = x.opt.Now()
	return nil
}

func (x *decision) wait(ctx context.Context) (outcome string) {
	defer x.waiters.now.Add(-1)
	if x.waiters.now.Add(1) > mostHeld {
		return heldFull
	}
	end := time.NewTimer(x.opt.Hold)
	defer end.Stop()
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for len(x.allowed()) == 0 {
		select {
		case <-tick.C:
		case <-end.C:
			return heldNone
		case <-ctx.Done():
			if ctx.Err() == context.Canceled {
				return heldLeft
			}
			return heldNone
		}
	}
	return heldServed
}
