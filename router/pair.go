package router

import (
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/fleet"
)

// Where some workers only prefill, a request may go to a pair: one that prefills, and one that decodes and fetches the KV blocks.
// What a pair costs is a sum, of which no part depends on the other's worker:
//
//	prefill worker: its queue + the work   decode worker: transfer of what it lacks + its own load
//
// So the best pair is the best of each, and is compared with each decode worker that does all of it. That one wins where it
// holds so much that the rest is cheaper computed than fetched, and where no prefill worker is there (counted).

// Words of sightline_role_missing_total; a fleet without workers that decode serves nothing ("no worker known").
const (
	noPrefill = "prefill" // some workers are configured to decode only, and they did it all
	noEncode  = "encode"  // those that prefill encoded the pictures too
)

// pair adds to each candidate that only prefills what the best decode worker for it costs, and leaves out those that cannot serve
// alone. decoders are then ranked.
func (x *decision) pair() {
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
			s.decoders = append(s.decoders, c.Decoding())
		}
	}
	if prefill == 0 {
		if only && !x.aside {
			x.metrics.missing.WithLabelValues(x.out.Model, noPrefill).Inc()
		}
		return
	}
	s.decoders = choose.Rank(s.decoders, mostTargets, x.draw())
	elsewhere := choose.FleetOf(s.decoders).Cost(&s.decoders[0]).Sum()
	kept := s.candidates[:0]
	for _, c := range s.candidates {
		w := x.slots[c.Slot].Worker
		if w.Role == fleet.Prefill {
			c.Elsewhere += elsewhere
		} else if !w.Alone(true) {
			continue
		}
		kept = append(kept, c)
	}
	s.candidates = kept
}

// targetPair names the decode workers in the order of their ranking, and who prefills for them. A worker behind front ends is named in
// the request, for retries too: then the targets are the front ends, one after another, and the workers stay the same.
func (x *decision) targetPair() {
	w := x.chosen.Worker
	x.decode = x.slots[x.mem.decoders[0].Slot]
	t := Target{Worker: w.Name, Prefill: w.Instance, PrefillRank: x.chosen.Rank, Instance: x.decode.Worker.Instance, Rank: x.decode.Rank}
	if w.Instance != "" {
		x.atFrontends(t)
		return
	}
	t.Prefill, t.PrefillRank = w.Addr, -1
	for _, d := range x.mem.decoders {
		t.Addr, t.Rank = x.slots[d.Slot].Worker.Addr, x.slots[d.Slot].Rank
		x.out.Targets = append(x.out.Targets, t)
	}
}
