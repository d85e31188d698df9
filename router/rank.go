package router

import (
	"slices"
	"strconv"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/router/fleet"
)

// The data-parallel rank travels as a header (package extproc), which Envoy takes out of a retry. Some engines read it
// from the body (rules.NumbersRanksInBody), so a body that a rank was chosen for goes back to Envoy whole; and Envoy repeats a body as it stands, so
// only workers that have the rank too are named for a retry.

// rulesOf are those of the engine of one of a model's workers.
func (r *Router) rulesOf(model string, w *fleet.Worker) *rules.Rules {
	n, ok := r.names[model]
	if !ok {
		return new(rules.Rules)
	}
	return &n.model.classes.rules[n.model.classes.of(w)]
}

// rankInBody puts the chosen rank at the body's begin (routed_dp_rank, SGLang 0.5.23). What a client put there itself
// was cut out before (mmhash.Clean).
func (r *Router) rankInBody(d Decision, body [][]byte) Decision {
	if d.Refuse != nil || len(d.Targets) == 0 || d.Targets[0].Rank < 0 {
		return d
	}
	slots, rank := r.opt.Fleet.Slots(d.Model), d.Targets[0].Rank
	chosen := slices.IndexFunc(slots, func(s *fleet.Slot) bool { return s.Worker.Addr == d.Targets[0].Addr && s.Rank == rank })
	at := bodyStart(body)
	if chosen < 0 || at < 0 || !r.rulesOf(d.Model, slots[chosen].Worker).NumbersRanksInBody {
		return d
	}
	// The request names a model, so a member is left behind the comma, whatever was cut out.
	d.Edits = slices.Insert(d.Edits, 0, Edit{From: at, To: at, Text: []byte(`"routed_dp_rank":` + strconv.Itoa(rank) + `,`)})
	d.Targets = slices.DeleteFunc(d.Targets, func(t Target) bool {
		return !slices.ContainsFunc(slots, func(s *fleet.Slot) bool { return s.Worker.Addr == t.Addr && s.Rank == rank })
	})
	return d
}

// bodyStart is the place behind an object's opening brace; -1: the body is none.
func bodyStart(body [][]byte) (at int) {
	for _, piece := range body {
		for _, c := range piece {
			at++
			switch c {
			case ' ', '\t', '\r', '\n':
			case '{':
				return at
			default:
				return -1
			}
		}
	}
	return -1
}
