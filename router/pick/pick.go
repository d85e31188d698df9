// Package pick turns what is known of each candidate into a ranking.
//
//	cost = tokens left to prefill + picture tokens left to encode + tokens queued there + requests in flight × PerRequest + KV cache in use × Full
//
// All in tokens: a prefix that a worker holds is worth what it saves, and loses to an idle worker as soon as the queue
// before it is longer than that. Costs within Slack of the cheapest count as equal; there the slot wins that was given the
// least work lately, then the one whose turn it is. So a short common prefix, which every conversation shares, does not
// draw all new work to the first worker that has seen it.
package pick

import "math"

// PerRequest is what one request in flight costs the next one, in tokens: its share of each decode step.
const PerRequest = 128

// Full is what a KV cache costs that is all in use, where a worker tells (NVIDIA's standalone example), in tokens: new
// requests wait there for others to end.
const Full = 1024

// Slack is how far apart costs may be and still count as equal, in tokens: four blocks of 16, a few milliseconds of
// prefill.
const Slack = 64

// Candidate is one slot as the decision sees it.
type Candidate struct {
	Slot      int  // the caller's index
	First     bool // it costs less than all others: its worker is to be tried
	Tokens    int  // the prompt's length; workers of another class may read it otherwise
	Exact     int  // leading tokens that its own events prove, or would if it were not Doubtful
	Predicted int  // leading tokens with what was routed there and not confirmed; ≥ Exact
	Encode    int  // picture tokens behind the cached prefix that it would have to encode
	Seen      int  // picture tokens behind the cached prefix that its encoder cache should have
	Inflight  int
	Backlog   float64 // tokens
	Recent    float64 // tokens given to it lately
	Usage     float64 // share of its KV cache in use, 0 to 1
	Doubtful  bool    // its events have not come for long
	Shared    int     // of Backlog: work on this very prompt's front, booked by requests that are on their way
}

// Cost is the candidate's cost. Waiting for work that is being done on the prompt's own front is no
// cost: elsewhere the same work would have to be done again.
func (c Candidate) Cost() float64 {
	if c.First {
		return math.Inf(-1)
	}
	return float64(c.Tokens-min(c.Tokens, max(c.Exact, c.Predicted))) + float64(c.Encode) + max(0, c.Backlog-float64(c.Shared)) + float64(c.Inflight*PerRequest) + c.Usage*Full
}

// Rank sorts the best n candidates to the front, best first, and returns them. turn breaks ties: give a number that grows
// with each decision. Time is linear in len(c) for small n; nothing is allocated.
func Rank(c []Candidate, n int, turn uint64) []Candidate {
	n = min(n, len(c))
	for i := range n {
		cheapest := c[i].Cost()
		for _, other := range c[i+1:] {
			cheapest = min(cheapest, other.Cost())
		}
		best := -1
		for j := i; j < len(c); j++ {
			if c[j].Cost() > cheapest+Slack {
				continue
			}
			if best < 0 || c[j].Recent < c[best].Recent || c[j].Recent == c[best].Recent && order(c[j].Slot, turn, len(c)) < order(c[best].Slot, turn, len(c)) {
				best = j
			}
		}
		c[i], c[best] = c[best], c[i]
	}
	return c[:n]
}

// order is a candidate's place in this turn's round.
func order(slot int, turn uint64, n int) uint64 {
	return (uint64(slot) + uint64(n) - turn%uint64(n)) % uint64(n)
}
