package router

import "context"

// Decide ranks the workers for one request. It returns no error: a request that cannot be read is routed by load, and Why
// says so, or it is refused (Decision.Refuse).
// When ctx ends it returns soon, with the best Reason reached so far. The body is cleaned before anything else, and the decision
// has the cleaning edits whatever happens after.
func (r *Router) Decide(ctx context.Context, req *Request) Decision {
	r.opt.Ledger.Expire()
	x := r.newPlanner(req, &r.live, r.unsteeredShare(), r.scratch.Get().(*scratch))
	r.decide(ctx, x)
	took := r.countAndTime(x)
	r.recent.add(x.recentEntry(took))
	r.logDecision(&x.out, took)
	x.mem.release()
	r.scratch.Put(x.mem)
	return x.out
}

// decide makes a plan and carries it out. A panic costs only the choice: the request is then routed by load.
func (r *Router) decide(ctx context.Context, x *planner) {
	defer x.leaveLane()
	defer func() {
		if p := recover(); p != nil {
			r.logPanic(p)
			x.restart()
			r.conclude(x)
		}
	}()
	x.prepare(ctx)
	r.conclude(x)
}

// conclude chooses a worker and carries the plan out, if there is something to choose.
func (r *Router) conclude(x *planner) {
	if x.out.Refuse == nil && len(x.slots) > 0 {
		x.commit(r, x)
	}
}
