package router

import (
	"context"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/router/ledger"
)

// Run performs the periodic work until ctx ends: it expires bookings that never ended, frees places that no worker uses, and
// logs what Envoy does not report.
func (r *Router) Run(ctx context.Context) {
	if r.learning != nil {
		go r.learning.learner.Run(ctx)
	}
	said := ""
	for range retry.Every(ctx, time.Second) {
		r.opt.Ledger.Expire()
		r.opt.Ledger.FreeAnswered()
		what, since := r.Silent()
		if what != said && what != "" {
			r.opt.Log.Error(what, zap.Time("since", since))
		} else if what != said {
			r.opt.Log.Info("Envoy's access log reports ends of requests again")
		}
		said = what
		r.logPace()
	}
}

// logPace logs the workers that have become slow, or as fast as others again.
func (r *Router) logPace() {
	for _, slot := range r.opt.Fleet.JudgePace(r.opt.Now()) {
		at := []zap.Field{zap.String("worker", slot.Worker.Name), zap.Int("rank", max(slot.Rank, 0)), zap.String("class", slot.Worker.Class)}
		if slow := slot.Slow(); slow.Certain {
			r.opt.Log.Warn("a worker computes prompts much slower than others of its class, and gets fewer (SL0110): see its GPU, and what "+
				"else runs there", append(at, zap.String("times_as_long", strconv.FormatFloat(slow.Times, 'f', 1, 64)),
				zap.Time("since", slow.Since))...)
		} else {
			r.opt.Log.Info("a worker computes prompts as fast as others of its class again", at...)
		}
	}
}

var silenceMessages = [...]string{
	ledger.NoReports: "requests are decided and Envoy's access log reports none of them: load is a guess, max_in_flight " +
		"is not enforced, failing workers are not noticed; " +
		"give Envoy the access loggers that \"sightline envoy\" prints; if it forwards requests before they are decided " +
		"(sightline_extproc_errors_total, decided too late), more time",
	ledger.NoEnds: "Envoy's access log reports where requests go but not their ends: their status and tokens are unknown, " +
		"they may count as in flight " +
		"for half an hour, max_in_flight refuses no request; give the connection manager the access logger that \"sightline envoy\" prints",
}

// Silent returns what Envoy does not report about requests, with the consequence and the remedy, and since when; "": nothing is
// missing.
func (r *Router) Silent() (what string, since time.Time) {
	silence, since := r.opt.Ledger.Silent()
	return silenceMessages[silence], since
}

// silenceGauge returns a gauge function: 1 while Envoy does not report this.
func (r *Router) silenceGauge(what ledger.Silence) func() float64 {
	return func() float64 {
		silence, _ := r.opt.Ledger.Silent()
		return meter.Flag(silence == what)
	}
}
