package router

import (
	"net/http"

	"github.com/sightline-router/sightline/workers/fleet"
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
// Without Fair the priority of a pool's objectives counts alike: of the last tenth no request of priority 0 gets a place if there are
// objectives above 0.
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

func (x *planner) refuseShed(why, says string) *Refusal {
	x.tally.shed = why
	return &Refusal{Status: http.StatusTooManyRequests, Message: says}
}

func (x *planner) refuseFull() *Refusal {
	return x.refuseShed(shedFull, "all workers have reached their limit of requests")
}

// refuseUnfair refuses a request that would take a place kept for others.
func (x *planner) refuseUnfair() *Refusal {
	if x.req.Priority > 0 || x.req.Priority == 0 && !x.opt.Fair && !x.req.UrgentExist {
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
	if x.req.Priority < 0 && free*keptForUrgent <= places || !x.opt.Fair && x.req.UrgentExist && free*keptForFew <= places {
		return x.refuseShed(shedPriority, "few places are free, and the request is not urgent")
	}
	if !x.opt.Fair {
		return nil
	}
	mine, tenants, all := x.opt.Ledger.InFlightOf(x.out.Model, x.req.Tenant)
	if free*keptForFew <= places && mine > 0 && (mine == all || mine*tenants > all) {
		return x.refuseShed(shedShare, "few places are free, and other tenants use fewer")
	}
	return nil
}
