package router

import (
	"context"
	"math"

	"github.com/sightline-router/sightline/router/report"
)

// Decide ranks the workers for one request. It returns no error: a request that cannot be read is routed by load, and Why
// says so, or it is refused (Decision.Refuse).
// When ctx ends it returns soon, with the best Reason reached so far. The body is cleaned before anything else, and the decision
// has the cleaning edits whatever happens after.
func (r *Router) Decide(ctx context.Context, req *Request) Decision {
	r.opt.Ledger.Expire()
	p := r.newPlan(req, &r.live, math.Float64frombits(r.unsteered.Load()), r.scratch.Get().(*scratch))
	r.decide(ctx, p)
	took := r.countAndTime(p)
	r.recent.add(p.recentEntry(took))
	logDecision(r.unsampledLog, &p.out, took)
	p.mem.release()
	r.scratch.Put(p.mem)
	return p.out
}

// decide makes a plan and carries it out. A panic costs only the choice: the request is then routed by load.
func (r *Router) decide(ctx context.Context, p *plan) {
	defer p.leaveLane()
	defer func() {
		if fault := recover(); fault != nil {
			logPanic(r.opt.Log, fault)
			p.restart()
			r.conclude(p)
		}
	}()
	p.prepare(ctx)
	r.conclude(p)
}

// conclude chooses a worker and carries the plan out, if there is something to choose.
func (r *Router) conclude(p *plan) {
	if p.out.Refuse == nil && len(p.list.slots) > 0 {
		p.way.commit(r, p)
	}
}

// A way says what a plan takes into account, and how it is carried out. There are three:
//
//	steered    Envoy is told the choice: limits apply, the request may wait, and may be a failing worker's trial
//	unsteered  Envoy picks by itself (unsteered.go): nothing is refused, and the estimates of all workers are kept
//	dry run    as steered, but it neither waits nor claims a trial, and nothing is carried out
type way struct {
	arm     report.Arm
	steers  bool     // Envoy will follow the plan, or would
	waiters *waiters // where the request may wait for a worker, or for a place; nil: it does not wait
	tries   bool     // it may be a failing worker's trial
	commit  func(*Router, *plan)
}

// ways are those of Decide, or of a dry run, whose requests are all steered.
type ways struct{ steered, unsteered way }

func newWays(w *waiters) (live, dry ways) {
	live.steered = way{arm: report.Steered, steers: true, waiters: w, tries: true, commit: (*Router).commitSteered}
	live.unsteered = way{arm: report.Unsteered, waiters: w, commit: (*Router).commitUnsteered}
	dry.steered = way{steers: true, commit: (*Router).commitNothing}
	return live, dry
}
