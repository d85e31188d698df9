package router

import "strings"

// Engines keep the answers of /v1/responses to themselves, so a request that names one must go to the worker that has it. The
// router remembers which worker gave which answer (Router.answers, about 250 bytes each). A request for an answer that is not
// known (forgotten, or given before a restart) goes anywhere, and is counted.

const maxAnswers = 1 << 17 // the least recently used are evicted

// followAnswer limits the request to the worker that keeps an answer, if that is known and may be chosen.
func (x *planner) followAnswer(id string) bool {
	x.tally.answer = "unknown"
	if addr, known := x.answers.Peek(id); known {
		for _, slot := range x.allowedSlots() {
			if slot.Worker.Addr == addr {
				narrowed := *x.req
				narrowed.Only = []string{addr}
				x.req = &narrowed
				x.tally.answer, x.tally.answerID = "found", strings.Clone(id)
				return true
			}
		}
	}
	return false
}
