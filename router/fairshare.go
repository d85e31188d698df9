package router

import (
	"context"
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

func (l *shortlist) refuseShed(why, says string) *Refusal {
	l.shed = why
	return &Refusal{Status: http.StatusTooManyRequests, Message: says}
}

func (l *shortlist) refuseFull() *Refusal {
	return l.refuseShed(shedFull, "all workers have reached their limit of requests")
}

// keepShares refuses a request that would take a place kept for others.
func keepShares(_ context.Context, l *shortlist) *Refusal {
	q, fair := l.req, l.opt.Fair
	if q.Priority > 0 || q.Priority == 0 && !fair && !q.UrgentExist {
		return nil
	}
	places, free := 0, 0
	for _, s := range fleet.Healthy(l.known) {
		if s.Worker.Role != fleet.Prefill {
			load := s.Load(l.now)
			places += l.of(s)
			free += max(0, l.of(s)-load.Places())
		}
	}
	if q.Priority < 0 && free*keptForUrgent <= places || !fair && q.UrgentExist && free*keptForFew <= places {
		return l.refuseShed(shedPriority, "few places are free, and the request is not urgent")
	}
	if !fair {
		return nil
	}
	mine, tenants, all := l.ledger.InFlightOf(l.model, q.Tenant)
	if free*keptForFew <= places && mine > 0 && (mine == all || mine*tenants > all) {
		return l.refuseShed(shedShare, "few places are free, and other tenants use fewer")
	}
	return nil
}
