package router

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/router/fleet"
)

// Run does what time brings, until ctx ends: bookings that nobody ends expire, and Envoy's silence is told.
func (r *Router) Run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	told := false
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
	}
}

// judge takes down what the end of a request says of its worker. Where another decoded, the status does not tell whose
// it is.
func (r *Router) judge(o Outcome, b *fleet.Booking) {
	w := r.opt.Fleet.ServedBy(b, o.Addr)
	switch {
	case w == nil || !o.Answered || b.Decode != nil || o.Code == http.StatusNotImplemented:
	case o.Code >= http.StatusInternalServerError:
		r.failed(w, strconv.Itoa(o.Code))
	case o.Code < http.StatusBadRequest:
		if w.Answered(b.At, r.opt.Now()) {
			r.opt.Log.Info("worker "+w.Name+" answers again and gets requests as before", zap.String("addr", w.Addr))
		}
	}
}

// failed counts a request that failed at a worker; nil: at an address that is no worker's own.
func (r *Router) failed(w *fleet.Worker, what string) {
	if w == nil {
		return
	}
	r.metrics.failures.WithLabelValues(w.Name, what).Inc()
	if now := r.opt.Now(); w.Failed(what, now) {
		r.opt.Log.Warn("worker "+w.Name+" fails and gets a trial request now and then, until one is answered", zap.String("addr", w.Addr), zap.String("why", w.Out(now)))
	}
}

// Silent tells since when requests are decided and Envoy reports of none; ok is false while it does.
func (r *Router) Silent() (since time.Time, ok bool) { return r.opt.Fleet.Silent() }
