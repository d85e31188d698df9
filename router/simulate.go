package router

import (
	"errors"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/router/learned"
)

// Place decides and books a prompt that has been read already: for simulations, which have no bodies. An unknown model gets no
// targets.
func (r *Router) Place(id, model string, p *engine.Prompt) Decision {
	return r.place(id, model, reading{prompt: p, engineTokens: len(p.IDs)}, nil)
}

// PlaceUnread is Place for a request that no rule reads and of which only the path is known.
func (r *Router) PlaceUnread(id, model string, path *learned.Path) Decision {
	return r.place(id, model, reading{prompt: new(engine.Prompt), err: errors.New("no rule reads it")}, path)
}

func (r *Router) place(id, model string, rd reading, path *learned.Path) Decision {
	r.opt.Ledger.Expire()
	x := r.newPlanner(&Request{ID: id}, &r.live, r.unsteeredShare(), r.scratch.Get().(*scratch))
	x.mem.req.Model = model
	if path != nil {
		x.mem.paths.Set(path)
	}
	x.preparePrompt(rd)
	r.conclude(x)
	r.countAndTime(x)
	x.mem.release()
	r.scratch.Put(x.mem)
	return x.out
}

// preparePrompt does what prepare does, for a prompt that has been read.
func (x *planner) preparePrompt(rd reading) {
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
		rd.needed, rd.model = x.mem.readings[i].needed, x.model.prompts[i].Model()
		x.mem.readings[i] = rd
	}
	x.hashPrompts()
	if len(x.slots) == 0 {
		x.out.Why = noWorker
	}
}
