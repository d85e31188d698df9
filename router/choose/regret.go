package choose

// Why a candidate that holds more of the prompt than the chosen one was not chosen. The set is closed, for use as metric labels.
const (
	Trial    = "trial"    // the chosen one's worker gets a trial
	Doubtful = "doubtful" // its events have not come for long
	Equal    = "equal"    // costs count as equal, and recent work or the draw decided
	Slower   = "slower"   // at the chosen one's rate it would have cost no more
	Queue    = "queue"    // its queue is longer
	Requests = "requests" // it has more in flight
	Encode   = "encode"   // it would have to encode pictures
	Tier     = "tier"     // it would have to fetch from a lower tier
	Distance = "distance" // it is in a more distant zone
	Late     = "late"     // its first token is expected too late
	Other    = "other"
)

// Best returns the longest overlap of any candidate, in tokens, after Rank. why says why the candidate with it is not first; it
// is empty if it is. One pass, or two if it is not first; nothing is allocated.
func Best(c []Candidate) (overlap int, why string) {
	best := 0
	for i := range c {
		n, most := c[i].overlap(), c[best].overlap()
		if n > most || n == most && best > 0 && c[i].cost < c[best].cost {
			best = i
		}
	}
	if best > 0 {
		why = FleetOf(c).why(&c[best], &c[0])
	}
	return c[best].overlap(), why
}

// Ties counts the candidates besides the first whose cost counts as equal to the least, after Rank.
func Ties(c []Candidate) (n int) {
	equal := equalTo(c)
	for i := range c[1:] {
		if c[1+i].cost <= equal {
			n++
		}
	}
	return n
}

func (c *Candidate) overlap() int { return min(c.Predicted, c.Tokens) }

// why returns what kept a candidate from being chosen: the cost term that exceeds the chosen one's most.
func (f Fleet) why(c, chosen *Candidate) string {
	asFast := *c
	asFast.Rate = chosen.Rate
	ours, theirs := f.Cost(&asFast), f.Cost(chosen)
	equal := chosen.cost + tie
	switch {
	case chosen.First:
		return Trial
	case c.Doubtful:
		return Doubtful
	case c.Late > chosen.Late:
		return Late
	case c.cost <= equal:
		return Equal
	case ours.Sum() <= equal:
		return Slower
	}
	why, most := Other, 0.0
	for _, t := range [...]struct {
		name string
		more float64
	}{{Queue, ours.Queue - theirs.Queue},
		{Requests, ours.Requests + ours.Context + ours.Delay - theirs.Requests - theirs.Context - theirs.Delay},
		{Distance, ours.Distance - theirs.Distance}, {Encode, ours.Prefill - theirs.Prefill}, {Tier, ours.Fetch - theirs.Fetch}} {
		if t.more > most {
			why, most = t.name, t.more
		}
	}
	return why
}
