package choose

import (
	"slices"
	"strings"

	"github.com/sightline-router/sightline/workers/fleet"
)

// If some workers only prefill, a request may go to a pair: one worker prefills, the other fetches the KV blocks and decodes. A
// pair's cost is a sum of two independent parts:
//
//	prefill worker: its queue + the work   decode worker: transfer of what it lacks + its own load
//
// So the best pair is the best of each. It is compared with each decode worker doing everything alone, which wins if it holds so
// much that computing the rest is cheaper than fetching it, and if there is no prefill worker (counted).
//
// During a rollout only workers of one revision make a pair: another engine or flag may change KV blocks, or how they travel.

// addDecoders adds the cost of the best decode worker to each candidate that only prefills, and removes candidates that cannot serve
// alone. It ranks the decoders.
func addDecoders(in *Input, c *Choice) {
	worker := func(one *Candidate) *fleet.Worker { return in.Slots[one.Slot].Worker }
	prefill, only := 0, false
	for i := range c.Candidates {
		one := &c.Candidates[i]
		switch worker(one).Role {
		case fleet.Prefill:
			prefill++
		default:
			only = only || worker(one).Role == fleet.Decode
			c.Decoders = append(c.Decoders, decoding(one))
		}
	}
	if prefill == 0 {
		c.NoPrefill = only
		return
	}
	costs := rankDecoders(in, c)
	pairs := func(one Candidate) (cost float64, ok bool) {
		cost, ok = costs[worker(&one).Revision]
		return cost, ok && worker(&one).Role == fleet.Prefill
	}
	paired := slices.ContainsFunc(c.Candidates, func(one Candidate) bool { _, ok := pairs(one); return ok })
	c.NoPrefill = only && !paired
	kept := c.Candidates[:0]
	for _, one := range c.Candidates {
		w := worker(&one)
		if elsewhere, ok := pairs(one); ok {
			one.Elsewhere += elsewhere
		} else if w.Role == fleet.Prefill || paired && !w.ServesAlone() {
			continue
		}
		kept = append(kept, one)
	}
	c.Candidates = kept
}

// rankDecoders ranks the decoders of each revision, of which the best stay, and returns by revision what the best costs.
func rankDecoders(in *Input, c *Choice) map[string]float64 {
	costs := map[string]float64{}
	revision := func(one Candidate) string { return in.Slots[one.Slot].Worker.Revision }
	slices.SortStableFunc(c.Decoders, func(a, b Candidate) int { return strings.Compare(revision(a), revision(b)) })
	kept := c.Decoders[:0]
	for rest := c.Decoders; len(rest) > 0; {
		of, n := revision(rest[0]), 1
		for n < len(rest) && revision(rest[n]) == of {
			n++
		}
		best := Rank(rest[:n], maxDecoders, in.Draw)
		costs[of] = FleetOf(best).Cost(&best[0]).Sum()
		kept, rest = append(kept, best...), rest[n:]
	}
	c.Decoders = kept
	return costs
}

// keepRevision keeps the decoders that make a pair with the chosen slot, if that only prefills.
func keepRevision(in *Input, c *Choice) {
	if c.Chosen.Worker.Role != fleet.Prefill {
		c.Decoders = c.Decoders[:0]
		return
	}
	c.Decoders = slices.DeleteFunc(c.Decoders, func(one Candidate) bool {
		return in.Slots[one.Slot].Worker.Revision != c.Chosen.Worker.Revision
	})
	c.Decode = in.Slots[c.Decoders[0].Slot]
}

// decoding returns the candidate as one that decodes what another prefills: it fetches what its GPU lacks, and still loads the adapter.
func decoding(c *Candidate) Candidate {
	d := *c
	d.Elsewhere = Fetch(c.Tokens - min(c.Tokens, c.Predicted-c.Offloaded))
	d.Tokens, d.Offloaded, d.Unkept, d.Pulled, d.Encode, d.EncodedApart, d.First = 0, 0, 0, 0, 0, 0, false
	return d
}
