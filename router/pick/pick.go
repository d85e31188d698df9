// Package pick turns what is known of each candidate into a ranking.
//
//	cost = tokens left to prefill + picture tokens left to encode + tokens queued there + requests in flight × PerRequest
//
// All in tokens: a prefix that a worker holds is worth what it saves, and loses to an idle worker as soon as the queue
// before it is longer than that. Equal costs go round by a turn counter, so that cold traffic spreads.
package pick

// PerRequest is what one request in flight costs the next one, in tokens: its share of each decode step.
const PerRequest = 128

// Candidate is one slot as the decision sees it.
type Candidate struct {
	Slot      int // the caller's index
	Exact     int // leading tokens that its own events prove
	Predicted int // leading tokens with what was routed there and not confirmed; ≥ Exact
	Encode    int // picture tokens behind the cached prefix that it would have to encode
	Seen      int // picture tokens behind the cached prefix that its encoder cache should have
	Inflight  int
	Backlog   float64 // tokens
}

// Cost is the candidate's cost for a prompt of tokens.
func (c Candidate) Cost(tokens int) float64 {
	return float64(tokens-min(tokens, max(c.Exact, c.Predicted))) + float64(c.Encode) + c.Backlog + float64(c.Inflight*PerRequest)
}

// Rank sorts the best n candidates to the front, cheapest first, and returns them. turn breaks ties: give a number that
// grows with each decision. Time is linear in len(c) for small n; nothing is allocated.
func Rank(c []Candidate, tokens int, n int, turn uint64) []Candidate {
	n = min(n, len(c))
	for i := range n {
		best := i
		bestCost, bestTurn := c[i].Cost(tokens), order(c[i].Slot, turn, len(c))
		for j := i + 1; j < len(c); j++ {
			cost, at := c[j].Cost(tokens), order(c[j].Slot, turn, len(c))
			if cost < bestCost || (cost == bestCost && at < bestTurn) {
				best, bestCost, bestTurn = j, cost, at
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
