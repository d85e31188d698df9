package router

import (
	"slices"
	"strconv"
)

// The data-parallel rank travels as a header (package extproc), which Envoy removes from a retry. Some engines read it from the
// body (rules.NumbersRanksInBody), so the body is rewritten when a rank was chosen for them. Envoy repeats that body unchanged,
// so only workers that have the same rank are offered for a retry.

// rankInBody writes the chosen rank at the start of the body (routed_dp_rank, SGLang 0.5.23). What a client put there was removed
// before.
func (x *planner) rankInBody() {
	if x.model == nil {
		return
	}
	rank, class := x.chosen.Rank, &x.model.classes[x.model.classOf(x.chosen.Worker)]
	at := bodyStart(x.req.Body)
	if rank < 0 || at < 0 || !class.rules.NumbersRanksInBody || x.chosen.Worker.Instance != "" {
		return
	}
	// The request names a model, so at least one member follows the comma, whatever was removed.
	x.out.Edits = slices.Insert(x.out.Edits, 0, Edit{From: at, To: at, Text: []byte(`"routed_dp_rank":` + strconv.Itoa(rank) + `,`)})
	x.out.Targets = slices.DeleteFunc(x.out.Targets, func(t Target) bool {
		w := x.opt.Fleet.ByAddr(t.Addr)
		return w != nil && w.Slots[min(rank, len(w.Slots)-1)].Rank != rank
	})
}

// bodyStart returns the offset after an object's opening brace; -1: the body is not an object.
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
