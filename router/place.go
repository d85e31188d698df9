package router

import (
	"context"
	"slices"

	"github.com/sightline-router/sightline/engine"
)

// Place decides and books a prompt that has been read already: for simulations, which have no bodies. An unknown model gets no
// targets.
func (r *Router) Place(id, model string, p *engine.Prompt) Decision {
	x := &decision{Router: r, serving: r.serving.Load(), req: new(Request), now: r.opt.Now(), out: Decision{ID: id, Arm: r.arm(), Reason: Load}, mem: r.scratch.Get().(*scratch)}
	r.opt.Fleet.Expire()
	x.mem.req.Model = model
	if why := x.findModel(); why != "" {
		x.out.Why = why
	} else if refusal := x.keepAvailable(); refusal != nil {
		x.refuse(refusal)
	} else {
		x.markNeededClasses()
		for i := range x.mem.readings {
			x.mem.readings[i] = reading{needed: x.mem.readings[i].needed, prompt: p, engineTokens: len(p.IDs)}
		}
		x.hashAndAskHolders(context.Background())
		x.withAdmissionLock(x.choose)
	}
	x.logUnbooked()
	x.mem.release()
	r.scratch.Put(x.mem)
	r.metrics.countDecided(&x.out, r.opt.Now().Sub(x.now))
	return x.out
}

// markNeededClasses notes which classes have workers among the slots, and so which readings are needed.
func (x *decision) markNeededClasses() {
	s := x.mem
	s.readings = slices.Grow(s.readings[:0], len(x.model.prompts))[:len(x.model.prompts)]
	clear(s.readings)
	s.blocks = slices.Grow(s.blocks[:0], len(x.model.classes))[:len(x.model.classes)]
	for i := range s.blocks {
		s.blocks[i].hasWorkers = false
	}
	s.readings[0].needed = len(x.slots) == 0
	for _, slot := range x.slots {
		class := x.model.classOf(slot.Worker)
		s.blocks[class].hasWorkers, s.readings[x.model.classes[class].reading].needed = true, true
	}
}
