package router

import (
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/fleet"
)

// Regret is the cached tokens that a decision gives up: the longest overlap of any worker that may get the request, less that of
// the chosen one. Of a prompt's tokens
//
//	asked = novel (held by nobody) + lost (held by another worker only) + cached (held by the chosen one)
//
// regret is the second part. Either the choice gave it up (router/choose gives the reasons), or the worker cannot be chosen now:
const (
	isOut  = "out"  // it is failing
	isFull = "full" // it has as many requests as it may
	isNew  = "new"  // it has joined lately, and has had its share
)

// bestExcluded is the largest overlap of a slot that cannot be chosen now.
type bestExcluded struct {
	tokens int
	why    string
}

// matchExcluded looks the prompt up for those slots of a class that cannot be chosen now.
func (x *planner) matchExcluded(class int, looked bool) {
	open := 0 // index into x.slots, which has the order of x.known except for the slots of a trial
	for i, slot := range x.known {
		switch {
		case open < len(x.slots) && x.slots[open] == slot:
			open++
		case slot.Worker != x.trial && x.classOf(slot) == class:
			blocks, _, _ := x.proven(slot, class)
			if looked {
				blocks = x.predicted.Leading(uint32(slot.ID), x.mem.blocks[class].chain, blocks, x.now)
			}
			tokens := blocks * x.mem.blocks[class].form.Size
			if !x.steers { // Envoy may use it nevertheless
				c := []choose.Candidate{{Slot: i, Exact: tokens, Predicted: tokens, Rate: slot.Load(x.now).Rate}}
				x.addPictures(x.mem.blocks[class].pictures, x.known, c)
				x.recordEstimates(class, x.known, c...)
			}
			if tokens > x.mem.bestExcluded.tokens {
				x.mem.bestExcluded = bestExcluded{tokens, x.whyExcluded(slot)}
			}
		}
	}
}

// whyExcluded returns why a slot cannot be chosen.
func (x *planner) whyExcluded(slot *fleet.Slot) string {
	switch {
	case !slot.Worker.IsHealthy():
		return isOut
	case !x.hasRoom()(slot):
		return isFull
	}
	return isNew
}

// recordRegret records the largest overlap of any worker, at most most tokens, which is what an engine can use.
func (x *planner) recordRegret(best *choose.Candidate, most int) {
	held, why := choose.Best(x.mem.candidates)
	if s := x.mem.bestExcluded; s.tokens > held {
		held, why = s.tokens, s.why
	}
	x.out.HeldTokens = min(held, most)
	if lost := x.out.HeldTokens - x.out.CachedTokens; lost > 0 {
		x.out.Regret = why
		if best.Rate > 0 {
			x.out.regretSeconds = float64(lost) / best.Rate
		}
	}
}
