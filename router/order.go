package router

import (
	"cmp"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/workers/fleet"
)

// Engines that serve waiting requests by a number that comes with each (rules.Order) are given the moment at which the request is due:
//
//	due = arrival + the later of: work × 0.25 ms for each token, and the client's own time for the first token
//	      + work that its tenant was given more than the average × 0.25 ms, at most 10 s
//	      − 10 s for each step of its priority
//
// Work is what the worker has to compute and to encode: a cached chat goes before a document that came shortly before it, and a document
// that has waited goes before chats. A client can only put itself back: by a late deadline, or by service_tier "flex".
//
// The moment is Unix time in milliseconds, so replicas agree on it as far as their clocks do: a clock that is 5 s ahead puts its
// requests 5 s back.
const (
	// A request waits longer for its work by at most this for each token, since what comes later than that is due later: two to three
	// times as long as computing a token takes. More costs the longest waits: of images at saturation, twice as much adds 18 % to the
	// 99th percentile, and gains 3 % on average (simulated with preemption).
	delayPerToken = 250 * time.Microsecond
	longestDelay  = 30 * time.Second // for work, and for the client's own deadline: that of 120,000 tokens
	priorityStep  = 10 * time.Second
	mostSteps     = 6 // both ways
	bytesPerToken = 4 // of a body that was not read
)

// Due is how a worker is told when a request is due.
type Due struct {
	Header string // that carries it
	Value  string // "": the worker is told nothing
	Ahead  bool   // any server of this engine may be sent it, whatever it says
}

// Order is when a request is due, for people.
type Order struct {
	Delay  float64 `json:"delay_ms"`                      // from its arrival
	Work   int     `json:"work_tokens"`                   // to compute and to encode
	Ahead  int     `json:"tenant_ahead_tokens,omitempty"` // of work that its tenant was recently given more than the average
	Steps  int     `json:"steps,omitempty"`               // of priority: above or below 0
	Serves string  `json:"serves"`                        // in which order the worker serves: as it says, else as observed
}

// dueAfter returns when a request with so much work is due. flex: its client says that it can wait.
func dueAfter(q *Request, flex bool, ahead, work int) Order {
	steps := max(-mostSteps, min(q.Priority, mostSteps))
	if flex {
		steps = max(-mostSteps, steps-1)
	}
	takes := func(tokens int) time.Duration { return time.Duration(min(tokens, 1<<30)) * delayPerToken }
	delay := min(longestDelay, max(takes(work), q.FirstToken)) + min(priorityStep, takes(ahead))
	return Order{Delay: milliseconds(delay - time.Duration(steps)*priorityStep), Work: work, Ahead: ahead, Steps: steps}
}

// takesOrder returns how a worker takes the order of requests; the zero value: it is to get none.
func (s *serving) takesOrder(w *fleet.Worker) rules.Order {
	m := s.names[w.Model].model // that of the request may not be known
	if m == nil || m.NoOrder || w.Instance != "" {
		return rules.Order{}
	}
	return m.classes[m.classOf(w)].rules.Order
}

// dueAt returns how a worker is told that a request is due at a moment, in Unix milliseconds.
func (s *serving) dueAt(w *fleet.Worker, due int64) (d Due) {
	takes := s.takesOrder(w)
	if value := cmp.Or(w.Serving(), takes.Assumed).Number(due); takes.Header != "" && value != "" {
		d = Due{Header: takes.Header, Value: value, Ahead: takes.Assumed != rules.Unsaid}
	}
	return d
}

// nameDue tells each target when the request is due there, by the work that this worker has with it: a retry goes to one that has cached
// something else.
func (p *plan) nameDue() {
	c, d := &p.mem.choice, &p.out
	flex, ahead := p.mem.reading.req.Fields["service_tier"].Raw == `"flex"`, 0
	if p.opt.Fair {
		ahead = p.opt.Ledger.Ahead(d.Model, p.req.Tenant)
	}
	told := func(w *fleet.Worker, o *Order) Due { return p.serving.dueAt(w, p.came.UnixMilli()+int64(o.Delay)) }
	work := func(one *choose.Candidate) int {
		if p.unread {
			return d.BodyBytes / bytesPerToken // of what its body may hold
		}
		return one.Work()
	}
	order := dueAfter(p.req, flex, ahead, work(&c.Ranked[0]))
	p.steps = order.Steps
	first := told(c.Chosen.Worker, &order)
	if !p.way.steers {
		// It may get to any worker, with the work that it makes on average, and none is told unless all take the same.
		sum := 0
		for i := range c.Candidates {
			sum += work(&c.Candidates[i])
		}
		order = dueAfter(p.req, flex, ahead, sum/len(c.Candidates))
		first = told(c.Chosen.Worker, &order)
		for i := range c.Candidates {
			if told(p.list.slots[c.Candidates[i].Slot].Worker, &order) != first {
				first = Due{}
				break
			}
		}
		d.UnsteeredChoice.Due = first
	}
	for i := range d.Targets {
		d.Targets[i].Due = first
		for k := 0; i > 0 && k < len(c.Ranked) && c.Decode == nil && p.way.steers; k++ { // else one worker prefills, whichever decodes
			if w := p.list.slots[c.Ranked[k].Slot].Worker; w.Addr == d.Targets[i].Addr {
				there := dueAfter(p.req, flex, ahead, work(&c.Ranked[k]))
				d.Targets[i].Due = told(w, &there)
				break
			}
		}
	}
	if p.serving.takesOrder(c.Chosen.Worker).Header != "" {
		p.due = p.came.UnixMilli() + int64(order.Delay) // whether it is told or not: what is served first shows the worker's order
	}
	if first.Value != "" {
		serves, _ := c.Chosen.Serves()
		order.Serves, d.Order = serves.String(), &order
	}
}
