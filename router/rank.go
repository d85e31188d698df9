package router

import (
	"slices"
	"strconv"
)

// The data-parallel rank travels as a header (package extproc), which Envoy takes out of a retry. Some engines read it from
// the body (rules.NumbersRanksInBody), so a body that a rank was chosen for goes back to Envoy whole; and Envoy repeats a
// body as it stands, so only workers that have the rank too are named for a retry.

// rankInBody puts the chosen rank at the body's begin (routed_dp_rank, SGLang 0.5.23). What a client put there itself was
// cut out before.
func (x *decision) rankInBody() {
	if x.model == nil || x.chosen == nil || x.out.Refuse != nil || x.left() {
		return
	}
	rank, class := x.chosen.Rank, &x.model.classes[x.model.classOf(x.chosen.Worker)]
	at := bodyStart(x.req.Body)
	if rank < 0 || at < 0 || !class.rules.NumbersRanksInBody || x.chosen.Worker.Instance != "" {
		return
	}
	// The request names a model, so a member is left behind the comma, whatever was cut out.
	x.out.Edits = slices.Insert(x.out.Edits, 0, Edit{From: at, To: at, Text: []byte(`"routed_dp_rank":` + strconv.Itoa(rank) + `,`)})
	x.out.Targets = slices.DeleteFunc(x.out.Targets, func(t Target) bool {
		w := x.opt.Fleet.ByAddr(t.Addr)
		return w != nil && w.Slots[min(rank, len(w.Slots)-1)].Rank != rank
	})
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
