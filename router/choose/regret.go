package choose

import "math"

// Why a candidate is not chosen that holds more of the prompt than the one that is: a closed set of words, for labels.
const (
	Trial    = "trial"    // the chosen one's worker is to be tried
	Doubtful = "doubtful" // its events have not come for long
	Equal    = "equal"    // costs within the slack are equal, and the choice was by recent work or drawn
	Slower   = "slower"   // at the chosen one's rate it would have cost no more
	Queue    = "queue"    // more is queued there
	Requests = "requests" // more is in flight there
	Cache    = "cache"    // its KV cache is fuller
	Encode   = "encode"   // pictures would have to be encoded there
	Tier     = "tier"     // it would have to fetch it from a lower tier
	Distance = "distance" // it is in a zone farther off
	Late     = "late"     // its first token is expected too late
	Other    = "other"
)

// Best is the longest overlap, in tokens, that any of the candidates has, which Rank has just ranked; why says what kept the
// one that has it from the first place, and is empty where it stands there. One pass, and nothing is allocated; where the
// first is not the best, one more.
func Best(c []Candidate) (overlap int, why string) {
	best := 0
	for i := range c {
		if n, most := c[i].overlap(), c[best].overlap(); n > most || n == most && best > 0 && c[i].cost < c[best].cost {
			best = i
		}
	}
	if best > 0 {
		why = FleetOf(c).why(&c[best], &c[0])
	}
	return c[best].overlap(), why
}

// Ties counts the candidates beside the first whose cost counts as equal to the least, of those that Rank has just ranked.
func Ties(c []Candidate) (n int) {
	least := math.Inf(1)
	for i := range c {
		least = min(least, c[i].cost)
	}
	for i := range c[1:] {
		if c[1+i].cost <= least+slack {
			n++
		}
	}
	return n
}

func (c *Candidate) overlap() int { return min(c.Predicted, c.Tokens) }

// why names what kept a candidate from being chosen: the term of its cost that is furthest above the chosen one's.
func (f Fleet) why(c, chosen *Candidate) string {
	asFast := *c
	asFast.Rate = chosen.Rate
	switch {
	case chosen.First:
		return Trial
	case c.Doubtful:
		return Doubtful
	case c.Late > chosen.Late:
		return Late
	case c.cost <= chosen.cost+slack:
		return Equal
	case f.Cost(&asFast).Sum() <= chosen.cost+slack:
		return Slower
	}
	ours, theirs := f.Cost(&asFast), f.Cost(chosen)
	why, most := Other, 0.0
	for _, t := range [...]struct {
		name string
		more float64
	}{
		{Queue, ours.Queue + ours.Tail - theirs.Queue - theirs.Tail},
		{Requests, ours.Requests + ours.Context + ours.Stall - theirs.Requests - theirs.Context - theirs.Stall},
		{Distance, ours.Distance - theirs.Distance},
		{Cache, ours.Cache - theirs.Cache},
		{Encode, ours.Prefill - theirs.Prefill},
		{Tier, ours.Fetch - theirs.Fetch},
	} {
		if t.more > most {
			why, most = t.name, t.more
		}
	}
	return why
}
