package router

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/workers/fleet"
)

// A fleet that is being replaced or started has no worker for some moments. With Options.Hold a request, once its model is known,
// waits that long for one. If none comes, or too many wait already, the client is asked to retry.

const (
	maxAwaitingWorker = 1024                  // waiting at once; their bodies count towards the limit of buffered bytes
	recheckInterval   = 50 * time.Millisecond // interval of looking for a worker
)

// Envoy reports the end of a request up to 100 ms after its client has the answer. A client that then asks at once would find the place
// still taken. So a request that finds no place looks again for awaitsReport, unless maxAwaitingReport do so already.
const (
	awaitsReport      = 300 * time.Millisecond // a report was 222 ms late on a busy machine
	maxAwaitingReport = 64
	reportInterval    = 10 * time.Millisecond // of looking again
)

// awaitPlace waits for a place at one of the slots, and lists those that have one.
func awaitPlace(l *shortlist, slots []*fleet.Slot) {
	w := l.way.waiters
	if w == nil {
		return
	}
	if !w.forPlace.TryTake(l.req.Client, 1) {
		w.total.WithLabelValues(waitCrowd).Inc()
		return
	}
	defer w.forPlace.Give(l.req.Client, 1)
	outcome := waitNoPlace
	for range int(awaitsReport / reportInterval) {
		time.Sleep(reportInterval)
		l.now = l.opt.Now()
		l.slots = l.withRoom(slots, l.now)
		if anyServes(l.slots) {
			outcome = waitPlace
			break
		}
	}
	w.total.WithLabelValues(outcome).Inc()
}

// waiters counts the requests that wait for a worker, or for a place.
type waiters struct {
	places   *fair.Room
	forPlace *fair.Room             // requests that wait for a place of max_in_flight
	total    *prometheus.CounterVec // by outcome
}

// Label values of sightline_requests_held_total.
const (
	waitServed = "served"
	waitNone   = "none came"
	waitLeft   = "client left"
	waitFull   = "too many"

	waitPlace   = "a place"
	waitNoPlace = "no place"
	waitCrowd   = "too many for a place"
)

func newWaiters(of meter.Metrics) *waiters {
	h := &waiters{places: fair.Shared(maxAwaitingWorker, 0), forPlace: fair.Shared(maxAwaitingReport, 0),
		total: of.Counters("requests_held_total", "Requests that waited for a worker or a place of max_in_flight.", "outcome")}
	for _, outcome := range []string{waitServed, waitNone, waitLeft, waitFull, waitPlace, waitNoPlace, waitCrowd} {
		h.total.WithLabelValues(outcome)
	}
	return h
}

// awaitWorker waits until a worker that the request may go to is known, unless Envoy is to pick it. The decision's time starts
// after it.
func awaitWorker(ctx context.Context, l *shortlist) *Refusal {
	w := l.way.waiters
	if !l.waits || l.opt.Hold <= 0 || w == nil || !l.way.steers && !l.req.MustPick || len(l.allowed()) > 0 {
		return nil
	}
	outcome := waitForWorker(ctx, l)
	w.total.WithLabelValues(outcome).Inc()
	if outcome != waitServed {
		return &Refusal{Status: http.StatusServiceUnavailable, Message: "no worker is there for this request"}
	}
	l.now = l.opt.Now()
	return nil
}

func waitForWorker(ctx context.Context, l *shortlist) (outcome string) {
	places := l.way.waiters.places
	if !places.TryTake(l.req.Client, 1) {
		return waitFull
	}
	defer places.Give(l.req.Client, 1)
	end := time.NewTimer(l.opt.Hold)
	defer end.Stop()
	tick := time.NewTicker(recheckInterval)
	defer tick.Stop()
	for len(l.allowed()) == 0 {
		select {
		case <-tick.C:
		case <-end.C:
			return waitNone
		case <-ctx.Done():
			if ctx.Err() == context.Canceled {
				return waitLeft
			}
			return waitNone
		}
	}
	return waitServed
}
