package router

// Engines keep the answers of /v1/responses to themselves, and a request that names one must go where it is. The router
// remembers which worker gave which answer (Router.answers, about 250 bytes each); what it does not know (forgotten, or
// answered before a restart) goes anywhere, and is counted.

const mostAnswers = 1 << 17 // beyond it the least used are forgotten

// followAnswer narrows the request to the worker that keeps an answer, if that is known and may be chosen.
func (x *decision) followAnswer(id string) bool {
	if addr, known := x.answers.Get(id); known {
		for _, slot := range x.allowed() {
			if slot.Worker.Addr == addr {
				narrowed := *x.req
				narrowed.Only = []string{addr}
				x.req = &narrowed
				x.metrics.stored.WithLabelValues("found").Inc()
				return true
			}
		}
	}
	x.metrics.stored.WithLabelValues("unknown").Inc()
	return false
}
