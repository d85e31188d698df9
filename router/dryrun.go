package router

import (
	"cmp"
	"context"
	"slices"

	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/decisionlog"
	"github.com/sightline-router/sightline/workers/fleet"
)

// Considered is a worker, or one of its ranks, as a decision saw it. If it could not be chosen, only its overlap is known.
type Considered struct {
	decisionlog.Candidate
	Encode   int    `json:"encode"`             // image tokens that it would have to encode
	Doubtful bool   `json:"doubtful,omitempty"` // its events have not come for long
	Trial    bool   `json:"trial,omitempty"`    // it is failing, and this request is its trial
	Out      string `json:"out,omitempty"`      // why it could not be chosen: out, full or new
}

// Consider decides as Decide would at this moment, without effects: nothing is booked, counted, predicted, remembered or audited, and no
// worker gets its trial. What it looks up in caches, of images and of the memory of requests, counts as used. It returns at most most
// workers: the cheapest ones first, then those that could not be chosen.
func (r *Router) Consider(ctx context.Context, req *Request, most int) (Decision, Recent) {
	p := r.newPlan(req, &r.dry, 0, new(scratch))
	r.decide(ctx, p)
	c := &p.mem.choice
	if c.Chosen != nil { // only the best few are ranked: list all by cost, after the chosen one
		f := choose.FleetOf(c.Candidates)
		slices.SortStableFunc(c.Candidates[1:], func(a, b choose.Candidate) int { return cmp.Compare(f.Cost(&a).Sum(), f.Cost(&b).Sum()) })
		c.Ranked = c.Candidates[:min(len(c.Candidates), most)]
	}
	told := *p.recentEntry(r.opt.Now().Sub(p.now))
	told.Ranked = append(told.Ranked, unchosen(&p.mem.overlap, &p.list, most-len(told.Ranked))...)
	return p.out, told
}

// considered returns the ranked candidates, best first.
func considered(c *choose.Choice, slots []*fleet.Slot) []Considered {
	if len(c.Ranked) == 0 {
		return nil
	}
	out, f := make([]Considered, len(c.Ranked)), choose.FleetOf(c.Candidates)
	for i := range c.Ranked {
		one := &c.Ranked[i]
		slot, terms := slots[one.Slot], f.Cost(one)
		out[i] = Considered{Encode: one.Encode, Doubtful: one.Doubtful, Trial: one.First,
			Candidate: decisionlog.Candidate{Worker: slot.Worker.Name, Rank: slot.Rank,
				Exact: one.Exact, Predicted: one.Predicted, Offloaded: one.Offloaded, Inflight: one.Inflight, Backlog: one.Backlog,
				Rate: one.Rate, Cost: terms.Sum(), Terms: terms}}
	}
	return out
}

// unchosen returns at most most workers that could not be chosen, with their overlap if the prompt was read.
func unchosen(o *overlap, l *shortlist, most int) (out []Considered) {
	for i, slot := range l.known {
		if len(out) == most || slices.Contains(l.slots, slot) {
			continue
		}
		one := Considered{Out: l.whyExcluded(slot, l.now), Candidate: decisionlog.Candidate{Worker: slot.Worker.Name, Rank: slot.Rank,
			Inflight: slot.Load(l.now).Inflight}}
		if at := slices.IndexFunc(o.excluded, func(o choose.Overlap) bool { return o.Slot == i }); at >= 0 {
			has := &o.excluded[at]
			one.Exact, one.Predicted, one.Doubtful = has.Exact, has.Predicted, has.Doubtful
		}
		out = append(out, one)
	}
	return out
}
