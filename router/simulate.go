package router

import (
	"context"
	"errors"
	"math"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/router/learned"
)

// DecidePrompt decides and books a prompt that has been read already: for simulations, which have no bodies. An unknown model gets no
// targets.
func (r *Router) DecidePrompt(id, model string, priority int, p *engine.Prompt) Decision {
	return r.decideRead(&Request{ID: id, Priority: priority}, model, engineReading{prompt: p, engineTokens: len(p.IDs)}, nil)
}

// DecideUnread is DecidePrompt for a request that no rule reads and of which only the path is known.
func (r *Router) DecideUnread(id, model string, path *learned.Path) Decision {
	return r.decideRead(&Request{ID: id}, model, engineReading{prompt: new(engine.Prompt), err: errors.New("no rule reads it")}, path)
}

func (r *Router) decideRead(req *Request, model string, rd engineReading, path *learned.Path) Decision {
	r.opt.Ledger.Expire()
	p := r.newPlan(req, &r.live, math.Float64frombits(r.unsteered.Load()), r.scratch.Get().(*scratch))
	p.mem.reading.req.Model = model
	if path != nil {
		p.mem.overlap.path.Set(path)
	}
	p.preparePrompt(rd)
	r.conclude(p)
	r.recent.add(p.recentEntry(r.countAndTime(p)))
	p.mem.release()
	r.scratch.Put(p.mem)
	return p.out
}

// preparePrompt does what prepare does, for a prompt that has been read.
func (p *plan) preparePrompt(rd engineReading) {
	r := &p.mem.reading
	if why := r.nameModel(&readInput{serving: p.serving, listed: p.listed}, ""); why != "" {
		p.out.Why, p.out.Asked = why, r.asked
		return
	}
	p.out.Model = r.model.Name
	if !p.shorten(context.Background()) {
		return
	}
	look := p.looking()
	p.mem.overlap.begin(&look)
	for i := range r.byEngine {
		rd.needed, rd.model = r.byEngine[i].needed, r.model.prompts[i].Model()
		r.byEngine[i] = rd
	}
	r.measure()
	p.hash(&look)
}
