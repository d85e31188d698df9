package router

import (
	"context"
	"time"

	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/router/ledger"
)

// Run performs the periodic work until ctx ends: it expires bookings that never ended, frees places that no worker uses, and judges
// which workers are slow.
func (r *Router) Run(ctx context.Context) {
	if r.learning != nil {
		go r.learning.learner.Run(ctx)
	}
	for range retry.Every(ctx, time.Second) {
		r.opt.Ledger.Expire()
		r.opt.Ledger.FreeAnswered()
		r.opt.Fleet.JudgePace(r.opt.Now())
	}
}

var silenceMessages = [...]string{
	ledger.NoReports: "requests are decided and Envoy's access log reports none of them: load is a guess, max_in_flight " +
		"is not enforced, failing workers are not noticed",
	ledger.NoEnds: "Envoy's access log reports where requests go but not their ends: their status and tokens are unknown, " +
		"they may count as in flight for half an hour, max_in_flight refuses no request",
}

// Silent returns what Envoy does not report about requests, with the consequence, and since when; "": nothing is missing.
func (r *Router) Silent() (what string, since time.Time) {
	silence, since := r.opt.Ledger.Silent()
	return silenceMessages[silence], since
}

// silenceGauge returns a gauge function: 1 while Envoy does not report this.
func silenceGauge(l *ledger.Ledger, what ledger.Silence) func() float64 {
	return func() float64 {
		silence, _ := l.Silent()
		return meter.Flag(silence == what)
	}
}
