package router

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sightline-router/sightline/router/fleet"
)

// Options.MaxInFlight gives a fleet a number of places. With Options.Fair, a trusted header gives each request's tenant and
// priority, and the last free places are not for everybody: the tenant with most requests gets 429 first, and one without
// requests finds a place.
//
//	free places      priority < 0      0                       > 0
//	over a quarter   let in            let in                  let in
//	over a tenth     refused           let in                  let in
//	any              refused           with at most its share  let in
//
// A share is the number of requests in flight that hold a place, divided by the number of tenants that have any. A tenant that
// has all of them is above its share.
const (
	keptForUrgent = 4  // one place in four
	keptForFew    = 10 // likewise
)

// Label values of sightline_requests_shed_total.
const (
	shedFull     = "full"
	shedShare    = "share"
	shedPriority = "priority"
)

func newShed() *prometheus.CounterVec {
	shed := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "sightline", Name: "requests_shed_total",
		Help: "Requests answered 429 because workers are at max_in_flight, by reason."},
		[]string{"model", "why"})
	return shed
}

func (x *planner) refuseShed(why, says string) *Refusal {
	x.tally.shed = why
	return &Refusal{Status: http.StatusTooManyRequests, Message: says}
}

func (x *planner) refuseFull() *Refusal {
	return x.refuseShed(shedFull, "all workers have reached their limit of requests")
}

// refuseUnfair refuses a request that would take a place kept for others.
func (x *planner) refuseUnfair() *Refusal {
	if !x.opt.Fair || x.req.Priority > 0 {
		return nil
	}
	places, free := 0, 0
	for _, s := range fleet.Healthy(x.known) {
		if s.Worker.Role != fleet.Prefill {
			load := s.Load(x.now)
			places += x.maxInFlightOf(s)
			free += max(0, x.maxInFlightOf(s)-load.Places())
		}
	}
	mine, tenants, all := x.opt.Ledger.InFlightOf(x.out.Model, x.req.Tenant)
	switch {
	case x.req.Priority < 0 && free*keptForUrgent <= places:
		return x.refuseShed(shedPriority, "few places are free, and the request is not urgent")
	case free*keptForFew <= places && mine > 0 && (mine == all || mine*tenants > all):
		return x.refuseShed(shedShare, "few places are free, and other tenants use fewer")
	}
	return nil
}
