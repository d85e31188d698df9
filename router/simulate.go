package router

import (
	"context"

	"github.com/sightline-router/sightline/engine"
)

// Place decides and books a prompt that has been read already: for simulations, which have no bodies. An unknown model gets no
// targets.
func (r *Router) Place(id, model string, p *engine.Prompt) Decision {
	r.opt.Ledger.Expire()
	x := r.newPlanner(&Request{ID: id}, &r.live, r.unsteeredShare(), r.scratch.Get().(*scratch))
	x.mem.req.Model = model
	x.preparePrompt(p)
	r.conclude(x)
	r.decided(x)
	x.mem.release()
	r.scratch.Put(x.mem)
	return x.out
}

// preparePrompt does what prepare does, for a prompt that has been read.
func (x *planner) preparePrompt(p *engine.Prompt) {
	if why := x.findModel(); why != "" {
		x.out.Why = why
		return
	}
	if refusal := x.keepAvailable(); refusal != nil {
		x.refuse(refusal)
		return
	}
	x.markNeededClasses()
	for i := range x.mem.readings {
		x.mem.readings[i] = reading{needed: x.mem.readings[i].needed, model: x.model.prompts[i].Model(), prompt: p,
			engineTokens: len(p.IDs)}
	}
	x.hashAndAskHolders(context.Background())
	if len(x.slots) == 0 {
		x.out.Why = noWorker
	}
}
