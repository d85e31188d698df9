package router

import (
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/fleet"
)

// Regret is what a decision gives up of what is cached: the longest overlap that any worker of the request is known to have,
// less the chosen one's. The choice gives it up for reasons (router/choose), or because that worker cannot be chosen.
//
//	asked = novel, which nobody holds + lost, which another one holds + cached on the chosen one
const (
	isOut  = "out"  // the worker fails
	isFull = "full" // it has as many requests as it may
	isNew  = "new"  // it has come lately, and has its share
)

// shut is the most that a slot holds which cannot be chosen now.
type shut struct {
	tokens int
	why    string
}

// addShut looks the prompt, as a class has it, up for the class's slots that cannot be chosen now.
func (x *decision) addShut(class int, looked bool) {
	open := 0 // both lists have one order, but for the slots of a trial
	for i, slot := range x.known {
		switch {
		case open < len(x.slots) && x.slots[open] == slot:
			open++
		case slot.Worker != x.trial && x.model.classOf(slot.Worker) == class:
			blocks, _, _ := x.proven(slot, class)
			if looked {
				blocks = x.predicted.leading(uint32(slot.ID), x.mem.blocks[class].chain, blocks, x.now)
			}
			tokens := blocks * x.model.classes[class].BlockSize
			if x.left() { // Envoy may use it all the same
				c := []choose.Candidate{{Slot: i, Exact: tokens, Predicted: tokens, Rate: slot.Load(x.now).Rate}}
				x.addPictures(x.reading(class).prompt, x.known, c)
				x.stand(class, x.known, c...)
			}
			if tokens > x.mem.shut.tokens {
				x.mem.shut = shut{tokens, x.why(slot)}
			}
		}
	}
}

// why a slot cannot be chosen.
func (x *decision) why(slot *fleet.Slot) string {
	switch {
	case !slot.Worker.Well():
		return isOut
	case !x.hasRoom()(slot):
		return isFull
	}
	return isNew
}

// regret takes down the most that a worker holds of the prompt, of which an engine uses so many tokens at most.
func (x *decision) regret(best *choose.Candidate, most int) {
	held, why := choose.Best(x.mem.candidates)
	if s := x.mem.shut; s.tokens > held {
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
