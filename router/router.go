// Package router takes the decision: which worker gets a request.
//
//	body ─ mmhash ─▶ block hashes ─ indexer ─▶ overlap per candidate ─ pick ─▶ ranked targets and a reason
//
// A candidate is a worker or, where it has them, one of its data-parallel ranks.
package router

import "context"

// Router decides. Safe for concurrent use.
type Router struct{}

// Decide ranks the workers for one request. It never fails: what cannot be read is routed by load, and says why.
func (r *Router) Decide(ctx context.Context, req *Request) Decision {
	return Decision{ID: req.ID, Reason: Load, Why: "no worker known"}
}

// Observe takes what Envoy reported of a decided request: in-flight load, the worker really used, the status.
func (r *Router) Observe(o Outcome) {}
