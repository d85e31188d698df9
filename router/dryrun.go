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
	x := r.newPlanner(req, &r.dry, 0, new(scratch))
	r.decide(ctx, x)
	if x.chosen != nil { // only the best few are ranked: list all by cost, after the chosen one
		f := choose.FleetOf(x.mem.candidates)
		slices.SortStableFunc(x.mem.candidates[1:], func(a, b choose.Candidate) int { return cmp.Compare(f.Cost(&a).Sum(), f.Cost(&b).Sum()) })
		x.ranked = x.mem.candidates[:min(len(x.mem.candidates), most)]
	}
	told := *x.recentEntry(r.opt.Now().Sub(x.now))
	told.Ranked = append(told.Ranked, x.excluded(most-len(told.Ranked))...)
	return x.out, told
}

// considered returns the ranked candidates, best first.
func (x *planner) considered() []Considered {
	if len(x.ranked) == 0 {
		return nil
	}
	out, f := make([]Considered, len(x.ranked)), choose.FleetOf(x.mem.candidates)
	for i := range x.ranked {
		c := &x.ranked[i]
		slot, terms := x.slots[c.Slot], f.Cost(c)
		out[i] = Considered{Encode: c.Encode, Doubtful: c.Doubtful, Trial: c.First,
			Candidate: decisionlog.Candidate{Worker: slot.Worker.Name, Rank: slot.Rank,
				Exact: c.Exact, Predicted: c.Predicted, Offloaded: c.Offloaded, Inflight: c.Inflight, Backlog: c.Backlog,
				Rate: c.Rate, Cost: terms.Sum(), Terms: terms}}
	}
	return out
}

// excluded returns at most most workers that could not be chosen, with their overlap if the prompt was read.
func (x *planner) excluded(most int) (out []Considered) {
	group := -1
	for _, slot := range x.known {
		if len(out) == most || slices.Contains(x.slots, slot) {
			continue
		}
		c := Considered{Out: x.whyExcluded(slot), Candidate: decisionlog.Candidate{Worker: slot.Worker.Name, Rank: slot.Rank,
			Inflight: slot.Load(x.now).Inflight}}
		if own := x.groupRead(slot); own >= 0 {
			keys, size := &x.mem.blocks[own], x.mem.blocks[own].form.Size
			if own != group {
				x.mem.match(x, keys, true, max(0, x.out.PromptTokens-1)/size)
				group = own
			}
			c.Exact, _, c.Doubtful = x.proven(slot, own)
			c.Predicted = x.predicted.Leading(uint32(slot.ID), keys.chain, c.Exact, x.now) * size
			c.Exact *= size
		}
		out = append(out, c)
	}
	return out
}

// groupRead returns a slot's group if the prompt was read for it; else -1.
func (x *planner) groupRead(slot *fleet.Slot) int {
	if x.out.PromptTokens == 0 {
		return -1
	}
	group := x.groupOf(slot)
	if !x.mem.blocks[group].hasWorkers {
		return -1
	}
	return group
}
