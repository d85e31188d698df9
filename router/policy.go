package router

import "github.com/sightline-router/sightline/router/report"

// A policy says what a plan takes into account, and how it is carried out. There are three:
//
//	steered   Envoy is told the choice: limits apply, the request may wait, and may be a failing worker's trial
//	left      Envoy picks by itself (holdout.go): nothing is refused, and the estimates of all workers are kept
//	dry run   as steered, but it neither waits nor claims a trial, and nothing is carried out
type policy struct {
	arm     report.Arm
	steers  bool     // Envoy will follow the plan, or would
	waiters *waiters // where the request may wait for a worker, or for a place; nil: it does not wait
	tries   bool     // it may be a failing worker's trial
	commit  func(*Router, *planner)
}

// policies are those of Decide, or of a dry run, whose requests are all steered.
type policies struct{ steered, left policy }

func newPolicies(w *waiters) (live, dry policies) {
	live.steered = policy{arm: report.Steered, steers: true, waiters: w, tries: true, commit: (*Router).commitSteered}
	live.left = policy{arm: report.Left, waiters: w, commit: (*Router).commitLeft}
	dry.steered = policy{steers: true, commit: (*Router).commitNothing}
	return live, dry
}

// follow makes a policy the plan's.
func (x *planner) follow(p *policy) { x.policy, x.out.Arm = p, p.arm }

// settlePolicy settles whether the request is left alone, once its conversation is known. One that only a single worker can serve, which
// keeps an answer, is steered and counts for no arm. If all requests are left alone, so is this one.
func (x *planner) settlePolicy(onlyOneWorker bool) {
	switch left := x.leftShare; {
	case left >= 1:
	case onlyOneWorker:
		x.out.Arm = ""
	case left > 0 && unitInterval(x.conversationHash()) >= 1-left:
		x.follow(&x.left)
	}
}
