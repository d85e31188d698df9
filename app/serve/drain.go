package serve

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/app/admin"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/router/forecast"
	"github.com/sightline-router/sightline/router/peers"
	"github.com/sightline-router/sightline/workers/fleet"
)

// order carries out what an operator orders of a worker. The last worker that serves a model stays in service.
func (r *running) order(worker string, to fleet.Service) (out admin.Ordered, err error) {
	var one *fleet.Worker
	for _, slot := range r.sources.set.Slots() {
		if slot.Worker.Name == worker {
			one = slot.Worker
		}
	}
	if one == nil {
		return out, admin.ErrNoWorker
	}
	out = admin.Ordered{Worker: worker, Service: to, Removal: r.router.Removals()[one]}
	may := func(w *fleet.Worker) bool { return w == one && (to == fleet.InService || r.othersServe(one)) }
	if r.sources.set.Order(may, to, time.Now()) == nil {
		return out, fmt.Errorf("no other worker in service does what %s does for model %q: add one first, or uncordon one",
			worker, one.Model)
	}
	if others := r.peers.hooks().otherReplicas; others != nil {
		out.Others, _ = others()
	}
	for _, slot := range one.Slots {
		out.Inflight += slot.Load(time.Now()).Inflight
	}
	if to == fleet.Draining { // watchDrains logs it, whoever ordered it
		return out, nil
	}
	r.log.Info("worker is "+to.String()+", as ordered", zap.String("worker", worker), zap.Int("in_flight", out.Inflight),
		zap.Float64("only_here_tokens", out.Removal.Alone), zap.Float64("again_tokens", out.Removal.Again))
	return out, nil
}

// othersServe reports whether another worker of the same model and role is in service, ready and well.
func (r *running) othersServe(than *fleet.Worker) bool {
	return slices.ContainsFunc(r.fleet.Workers(), func(w *fleet.Worker) bool {
		return w != than && w.Model == than.Model && w.Role == than.Role && w.InService() && w.IsHealthy()
	})
}

// watchDrains logs which workers are draining, what goes with them, and when each is empty, until ctx ends.
func (r *running) watchDrains(ctx context.Context) {
	type drain struct {
		began time.Time
		empty bool
	}
	drains := make(map[*fleet.Worker]*drain)
	var removals map[*fleet.Worker]forecast.Removal // as they were while the worker was in the fleet
	for range retry.Every(ctx, time.Second) {
		inflight, now := make(map[*fleet.Worker]int), time.Now()
		for _, slot := range r.sources.set.Slots() {
			if slot.Worker.IsDraining() {
				inflight[slot.Worker] += slot.Load(now).Inflight
			}
		}
		for w := range drains {
			if _, is := inflight[w]; !is {
				delete(drains, w)
			}
		}
		for w, n := range inflight {
			d, known := drains[w]
			if !known {
				_, since := w.Service()
				d = &drain{began: since}
				drains[w] = d
				r.log.Info("worker is draining: it gets no more requests", zap.String("worker", w.Name), zap.Int("in_flight", n),
					zap.Float64("only_here_tokens", removals[w].Alone), zap.Float64("again_tokens", removals[w].Again))
			}
			if empty := n == 0; empty != d.empty {
				d.empty = empty
				if empty {
					r.log.Info("worker is empty: its last request has ended", zap.String("worker", w.Name),
						zap.Duration("took", now.Sub(d.began)))
				}
			}
		}
		removals = r.router.Removals()
	}
}

// orderedAs names a worker to other replicas. A pod that comes back under its name, as a StatefulSet's, is another worker: an order for
// the one before, from a replica that has not seen it leave, is none for it.
func orderedAs(w *fleet.Worker) string { return w.StableName + " " + w.Addr }

// shareOrders tells other replicas which workers are taken out of service, and takes what they tell.
func (p *replicas) shareOrders(r *running) {
	p.Orders = func() (list []peers.Order) {
		seen := make(map[*fleet.Worker]bool)
		for _, slot := range r.sources.set.Slots() {
			if to, at := slot.Worker.Service(); !at.IsZero() && !seen[slot.Worker] {
				seen[slot.Worker] = true
				list = append(list, peers.Order{Worker: orderedAs(slot.Worker), Service: to, Age: time.Since(at)})
			}
		}
		return list
	}
	p.Ordered = func(o peers.Order) {
		named := func(w *fleet.Worker) bool { return orderedAs(w) == o.Worker }
		r.sources.set.Order(named, o.Service, time.Now().Add(-o.Age))
	}
}
