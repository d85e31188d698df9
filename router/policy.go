package router

import "github.com/sightline-router/sightline/router/report"

// A policy says what a plan takes into account, and how it is carried out. There are three:
//
//	steered    Envoy is told the choice: limits apply, the request may wait, and may be a failing worker's trial
//	unsteered  Envoy picks by itself (unsteered.go): nothing is refused, and the estimates of all workers are kept
//	dry run    as steered, but it neither waits nor claims a trial, and nothing is carried out
type policy struct {
	arm     report.Arm
	steers  bool     // Envoy will follow the plan, or would
	waiters *waiters // where the request may wait for a worker, or for a place; nil: it does not wait
	tries   bool     // it may be a failing worker's trial
	commit  func(*Router, *planner)
}

// policies are those of Decide, or of a dry run, whose requests are all steered.
type policies struct{ steered, unsteered policy }

func newPolicies(w *waiters) (live, dry policies) {
	live.steered = policy{arm: report.Steered, steers: true, waiters: w, tries: true, commit: (*Router).commitSteered}
	live.unsteered = policy{arm: report.Unsteered, waiters: w, commit: (*Router).commitUnsteered}
	dry.steered = policy{steers: true, commit: (*Router).commitNothing}
	return live, dry
}

// follow makes a policy the plan's.
func (x *planner) follow(p *policy) { x.policy, x.out.Arm = p, p.arm }

// settlePolicy settles whether the request is steered, once its conversation is known. One that only a single worker can serve, which
// keeps an answer, is steered and counts for no arm. If no request is steered, this one is not.
func (x *planner) settlePolicy(onlyOneWorker bool) {
	switch share := x.unsteeredShare; {
	case share >= 1:
	case onlyOneWorker:
		x.out.Arm = ""
	case share > 0 && unitInterval(x.conversationHash()) >= 1-share:
		x.follow(&x.unsteered)
	}
}
