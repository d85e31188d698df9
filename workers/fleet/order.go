package fleet

import (
	"cmp"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
)

// A worker that does not say in which order it serves waiting requests shows it: of two that wait, the one due first is computed first,
// or the one that came first.
const (
	waitsAWhile = time.Second // how long a request waits at least before it counts as overtaken: servers read some requests for long
	orderSeen   = 3           // times that show an order, and as many times as the other
	orderSeenOf = 32          // the last ones that count
)

// order is what a slot has shown of the order in which it serves.
type order struct{ byDue, asTheyCome int }

// see compares a request whose first tokens were computed with those that wait.
func (o *order) see(began *Charge, waiting []*Charge) {
	for _, h := range waiting {
		if began.due == 0 || h.due == 0 || h == began || h.released || !h.began.IsZero() || h.fetchesFirst() || began.fetchesFirst() {
			continue
		}
		switch {
		case h.due > began.due && began.at.Sub(h.at) > waitsAWhile:
			o.byDue++
		case h.due < began.due && h.at.After(began.at) && began.began.Sub(h.at) > waitsAWhile:
			o.asTheyCome++
		}
	}
	if o.byDue+o.asTheyCome > orderSeenOf {
		o.byDue, o.asTheyCome = o.byDue/2, o.asTheyCome/2
	}
}

// fetchesFirst reports whether the request waits for something else than its turn.
func (h *Charge) fetchesFirst() bool { return h.fetches > 0 || h.media }

// Observed returns in which order the slot has been seen to serve.
func (s *Slot) Observed() rules.Serving {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.order.shown()
}

func (o *order) shown() rules.Serving {
	switch {
	case o.byDue >= orderSeen*max(1, o.asTheyCome):
		return rules.LowFirst
	case o.asTheyCome >= orderSeen*max(1, o.byDue):
		return rules.AsTheyCome
	}
	return rules.Unsaid
}

// Serves returns in which order the slot serves: as its worker says, else as it was observed.
func (s *Slot) Serves() (as rules.Serving, observed bool) {
	if says := s.Worker.Serving(); says != rules.Unsaid {
		return says, false
	}
	as = s.Observed()
	return as, as != rules.Unsaid
}

// serves is Serves for a caller that holds s.mu.
func (s *Slot) serves() rules.Serving { return cmp.Or(s.Worker.Serving(), s.order.shown()) }

// ordered reports whether the slot serves waiting requests by when they are due.
func (s *Slot) ordered() bool { return s.serves() == rules.LowFirst || s.serves() == rules.HighFirst }

// before reports whether a charge that stands before another one in the queue was computed before that began: it had come by then, waited
// for nothing else, and was not overtaken.
func (s *Slot) before(h, other *Charge) bool {
	return h.fetches == 0 && !h.at.After(other.began) && (h.due <= other.due || s.serves() == rules.AsTheyCome)
}

// ForgetOrder forgets in which order a worker serves, since its process is another one.
func (w *Worker) ForgetOrder() {
	w.SetServing(rules.Unsaid)
	for _, s := range w.Slots {
		s.mu.Lock()
		s.order = order{}
		s.mu.Unlock()
	}
}
