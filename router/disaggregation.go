package router

import (
	"slices"
	"strings"

	"github.com/sightline-router/sightline/router/choose"
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

// Label values of sightline_role_missing_total. A fleet without decode workers serves nothing ("no worker known").
const (
	noPrefill = "prefill" // some workers only decode by configuration, but had to prefill too
	noEncode  = "encode"  // the prefilling workers encoded the images too
)

// addDecoders adds the cost of the best decode worker to each candidate that only prefills, and removes candidates that cannot serve
// alone. It ranks the decoders.
func (x *planner) addDecoders() {
	s := x.mem
	s.decoders = s.decoders[:0]
	prefill, only := 0, false
	for i := range s.candidates {
		c := &s.candidates[i]
		switch w := x.slots[c.Slot].Worker; w.Role {
		case fleet.Prefill:
			prefill++
		default:
			only = only || w.Role == fleet.Decode
			s.decoders = append(s.decoders, decoding(c))
		}
	}
	if prefill == 0 {
		x.tally.noPrefill = only
		return
	}
	costs := x.rankDecoders()
	pairs := func(c choose.Candidate) (cost float64, ok bool) {
		cost, ok = costs[x.slots[c.Slot].Worker.Revision]
		return cost, ok && x.slots[c.Slot].Worker.Role == fleet.Prefill
	}
	paired := slices.ContainsFunc(s.candidates, func(c choose.Candidate) bool { _, ok := pairs(c); return ok })
	x.tally.noPrefill = only && !paired
	kept := s.candidates[:0]
	for _, c := range s.candidates {
		w := x.slots[c.Slot].Worker
		if elsewhere, ok := pairs(c); ok {
			c.Elsewhere += elsewhere
		} else if w.Role == fleet.Prefill || paired && !w.ServesAlone() {
			continue
		}
		kept = append(kept, c)
	}
	s.candidates = kept
}

// rankDecoders ranks the decoders of each revision, of which the best stay, and returns by revision what the best costs.
func (x *planner) rankDecoders() map[string]float64 {
	s, costs := x.mem, map[string]float64{}
	revision := func(c choose.Candidate) string { return x.slots[c.Slot].Worker.Revision }
	slices.SortStableFunc(s.decoders, func(a, b choose.Candidate) int { return strings.Compare(revision(a), revision(b)) })
	kept := s.decoders[:0]
	for rest := s.decoders; len(rest) > 0; {
		of, n := revision(rest[0]), 1
		for n < len(rest) && revision(rest[n]) == of {
			n++
		}
		best := choose.Rank(rest[:n], maxTargets, x.tieBreak())
		costs[of] = choose.FleetOf(best).Cost(&best[0]).Sum()
		kept, rest = append(kept, best...), rest[n:]
	}
	s.decoders = kept
	return costs
}

// setPairTargets makes the decode workers the targets, in the order of their ranking, and names the worker that prefills for them. A worker
// behind front ends is named in the request, for retries too: then the targets are its front ends, and the workers stay the same.
func (x *planner) setPairTargets() {
	w := x.chosen.Worker
	decoders := slices.DeleteFunc(x.mem.decoders, func(c choose.Candidate) bool { return x.slots[c.Slot].Worker.Revision != w.Revision })
	x.decode = x.slots[decoders[0].Slot]
	t := Target{Worker: w.Name, Prefill: w.Instance, PrefillRank: x.chosen.Rank, Instance: x.decode.Worker.Instance, Rank: x.decode.Rank}
	if w.Instance != "" {
		x.targetFrontends(t)
		return
	}
	t.Prefill, t.PrefillRank = w.Addr, -1
	for _, d := range decoders {
		t.Addr, t.Rank = x.slots[d.Slot].Worker.Addr, x.slots[d.Slot].Rank
		x.out.Targets = append(x.out.Targets, t)
	}
}

// decoding returns the candidate as one that decodes what another prefills: it fetches what its GPU lacks, and still loads the adapter.
func decoding(c *choose.Candidate) choose.Candidate {
	d := *c
	d.Elsewhere = choose.Fetch(c.Tokens - min(c.Tokens, c.Predicted-c.Offloaded))
	d.Tokens, d.Offloaded, d.Unkept, d.Pulled, d.Encode, d.EncodedApart, d.First = 0, 0, 0, 0, 0, 0, false
	return d
}
