package router

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// Run does what time brings, until ctx ends: bookings that nobody ends expire, and Envoy's silence is told.
func (r *Router) Run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	told, toldEnds := false, false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		r.opt.Fleet.Expire()
		since, silent := r.opt.Fleet.Silent()
		if silent && !told {
			r.opt.Log.Error("requests are decided and Envoy's access log tells nothing of them: load is a guess, max_in_flight refuses nobody, failing workers are not noticed; "+
				"give Envoy the access loggers that \"sightline envoy\" prints", zap.Time("since", since))
		} else if told && !silent {
			r.opt.Log.Info("Envoy's access log tells again how requests end")
		}
		told = silent
		since, endless := r.opt.Fleet.Endless()
		if endless && !toldEnds {
			r.opt.Log.Error("Envoy's access log tells where requests go and not how they end: all count as in flight for half an hour, max_in_flight refuses nobody; "+
				"give the connection manager the access logger that \"sightline envoy\" prints", zap.Time("since", since))
		} else if toldEnds && !endless {
			r.opt.Log.Info("Envoy's access log tells how requests end")
		}
		toldEnds = endless
	}
}

// Endless tells since when Envoy reports where requests go and not how they end; ok is false while it does.
func (r *Router) Endless() (since time.Time, ok bool) { return r.opt.Fleet.Endless() }

// Silent tells since when requests are decided and Envoy reports of none; ok is false while it does.
func (r *Router) Silent() (since time.Time, ok bool) { return r.opt.Fleet.Silent() }
