package router

import "github.com/sightline-router/sightline/router/choose"

// Regret is the cached tokens that a decision gives up: the longest overlap of any worker that may get the request, less that of
// the chosen one. Of a prompt's tokens
//
//	asked = novel (held by no worker) + lost (held by another worker only) + cached (held by the chosen one)
//
// regret is the second part, because of what follows. The set is closed, for use as metric labels.
const (
	isOut      = "out"      // the worker that holds it cannot be chosen now: it is failing
	isDraining = "draining" // it is taken out of service
	isFull     = "full"     // it has as many requests as it may
	isNew      = "new"      // it joined recently, and has had its share
	forTrial   = "trial"    // the chosen one's worker gets a trial
	isDoubtful = "doubtful" // its events have not come for long
	isEqual    = "equal"    // costs count as equal, and other work or the draw decided
	isSlower   = "slower"   // at the chosen one's rate it would have cost no more
	hasQueue   = "queue"    // its queue is longer
	hasMore    = "requests" // it has more in flight
	encodes    = "encode"   // it would have to encode images
	fetches    = "tier"     // it would have to fetch from a lower tier
	isDistant  = "distance" // it is in a more distant zone
	isLate     = "late"     // its first token is expected too late
	isElse     = "other"
)

// regret returns the largest overlap of any slot that may get the request, and why the chosen one is another; "": it is that one.
func regret(o *overlap, c *choose.Choice, l *shortlist) (held int, why string) {
	held, why = mostHeld(c.Candidates)
	if out := o.mostExcluded(); out != nil && out.Predicted > held {
		held, why = out.Predicted, l.whyExcluded(l.known[out.Slot], l.now)
	}
	return held, why
}

// mostHeld returns the longest overlap of any ranked candidate, in tokens, and why the candidate with it is not first; "": it is.
func mostHeld(c []choose.Candidate) (overlap int, why string) {
	held := func(i int) int { return min(c[i].Predicted, c[i].Tokens) }
	best := 0
	for i := range c {
		n, most := held(i), held(best)
		if n > most || n == most && best > 0 && c[i].Cost < c[best].Cost {
			best = i
		}
	}
	if best > 0 {
		why = whyNot(choose.FleetOf(c), &c[best], &c[0])
	}
	return held(best), why
}

// ties counts the ranked candidates besides the first whose cost counts as equal to the least.
func ties(c []choose.Candidate) (n int) {
	equal := choose.Cheapest(c).Equal()
	for i := range c[1:] {
		if c[1+i].Cost <= equal {
			n++
		}
	}
	return n
}

// whyNot returns what kept a candidate from being chosen: the cost term that exceeds the chosen one's most.
func whyNot(f choose.Fleet, c, chosen *choose.Candidate) string {
	asFast := *c
	asFast.Rate = chosen.Rate
	ours, theirs := f.Cost(&asFast), f.Cost(chosen)
	equal := chosen.Equal()
	switch {
	case chosen.First:
		return forTrial
	case c.Doubtful:
		return isDoubtful
	case c.Late > chosen.Late:
		return isLate
	case c.Cost <= equal:
		return isEqual
	case ours.Sum() <= equal:
		return isSlower
	}
	why, most := isElse, 0.0
	for _, t := range [...]struct {
		name string
		more float64
	}{{hasQueue, ours.Queue - theirs.Queue},
		{hasMore, ours.Requests + ours.Context + ours.Delay - theirs.Requests - theirs.Context - theirs.Delay},
		{isDistant, ours.Distance - theirs.Distance}, {encodes, ours.Prefill - theirs.Prefill}, {fetches, ours.Fetch - theirs.Fetch}} {
		if t.more > most {
			why, most = t.name, t.more
		}
	}
	return why
}
