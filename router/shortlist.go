package router

import (
	"context"
	"net"
	"slices"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/sightline-router/sightline/router/ledger"
	"github.com/sightline-router/sightline/workers/fleet"
)

// selection are the slots that a request is for.
type selection struct {
	known []*fleet.Slot // those that may get it at some time
	slots []*fleet.Slot // those of known that may get it now, in the same order, and after them the slots of trial
	trial *fleet.Worker // a worker among slots that gets this request as its trial; nil: none
}

// shortlist makes a selection: what a request's head, the workers' health and their places allow, whatever its prompt.
type shortlist struct {
	selection
	places
	req     *Request
	way     *way
	model   string // the request's model; "": not known
	pool    string // the model whose workers are listed
	adapter string // which they must have; "": none
	only    []string
	answer  string // id of the answer that the request refers to; "": none
	found   bool   // the worker that keeps the answer is known
	waits   bool   // the request may wait for a worker
	failing bool   // workers are left out because they fail
	made    bool
	now     time.Time // after the request has waited
	shed    string    // label of metrics.shed; "": it was not
	opt     *Options
	answers *lru.Cache[string, string]
	eased   []*fleet.Slot
}

// screens make a shortlist, in this order. Each may refuse the request.
var screens = [...]func(context.Context, *shortlist) *Refusal{
	awaitWorker,   // pending.go: waits for a worker where none is known
	followAnswer,  // an answer is where it was given
	keepHealthy,   // workers that are draining or failing are left out
	keepPlaces,    // workers at max_in_flight are left out; waits shortly for a place
	easeNewcomers, // workers that have just joined get a share
	addTrial,      // a failing worker gets a request now and then
}

// lastScreens run once more when the choice is booked, one decision at a time.
var lastScreens = [...]func(context.Context, *shortlist) *Refusal{
	keepPlacesLeft, // slots that filled up since
	keepShares,     // fairshare.go: the last places are not for everybody
}

// make runs the screens. It returns the refusal of the first that refuses the request.
func (l *shortlist) make(ctx context.Context) *Refusal {
	l.made = true
	for _, screen := range screens {
		if refusal := screen(ctx, l); refusal != nil {
			return refusal
		}
	}
	return nil
}

// admit runs the last screens, if there is a limit that Envoy will keep to.
func (l *shortlist) admit() *Refusal {
	if l.limit <= 0 || l.ignoresLimit() || !l.way.steers {
		return nil
	}
	for _, screen := range lastScreens {
		if refusal := screen(context.Background(), l); refusal != nil {
			return refusal
		}
	}
	return nil
}

// allowed returns the slots that the request may go to: those of the model, or of the pool if the route names one, that have its
// adapter and are within the gateway's subset hint.
func (l *shortlist) allowed() []*fleet.Slot {
	slots := l.opt.Fleet.Slots(l.pool)
	if l.adapter != "" {
		slots = fleet.WithAdapter(l.adapter, slots)
	}
	if l.only == nil {
		return slots
	}
	only := make(map[string]bool, len(l.only)) // a gateway names its whole pool
	for _, addr := range l.only {
		only[addr] = true
	}
	var out []*fleet.Slot
	for _, s := range slots {
		host, _, _ := net.SplitHostPort(s.Worker.Addr)
		if only[s.Worker.Addr] || only[host] {
			out = append(out, s)
		}
	}
	return out
}

// keepHealthy lists the allowed slots of healthy workers, or all if none is healthy. Of draining workers it lists none, unless no other can
// serve the request: an answer that is stored there, or a model's last worker.
func keepHealthy(_ context.Context, l *shortlist) *Refusal {
	l.known = l.allowed()
	may := fleet.WithoutDraining(l.known)
	if !anyServes(may) {
		may = l.known
	}
	l.slots, l.trial = fleet.Healthy(may), nil
	if !anyServes(l.slots) {
		l.slots = may
	}
	l.failing = len(l.slots) < len(may)
	return nil
}

// keepPlaces keeps slots below the limit of requests in flight. If all are full, the request is shed, as the endpoint-picker protocol
// demands, or the limit is ignored for an unsteered one.
func keepPlaces(_ context.Context, l *shortlist) *Refusal {
	if l.limit <= 0 || l.ignoresLimit() {
		return nil
	}
	well := l.slots
	l.slots = l.withRoom(well, l.now)
	if anyServes(l.slots) || len(well) == 0 {
		return nil
	}
	if !l.way.steers {
		l.slots = well
		return nil
	}
	awaitPlace(l, well)
	if !anyServes(l.slots) {
		return l.refuseFull()
	}
	return nil
}

// ignoresLimit: a request for a stored answer costs nothing.
func (l *shortlist) ignoresLimit() bool { return l.req.Stored != "" }

// easeNewcomers leaves out newcomers that have had their share if others remain.
func easeNewcomers(_ context.Context, l *shortlist) *Refusal {
	if !l.ignoresLimit() {
		l.eased = slices.Grow(l.eased[:0], len(l.slots))
		l.slots = fleet.WithoutNewcomers(l.slots, l.eased, l.now)
	}
	return nil
}

// addTrial adds a worker whose trial is due: it will be the first choice.
func addTrial(_ context.Context, l *shortlist) *Refusal {
	if l.ignoresLimit() || !l.way.tries || !l.failing {
		return nil
	}
	hasRoom := l.hasRoom(l.now)
	for _, s := range l.known {
		if s.Worker == l.trial || l.trial == nil && hasRoom(s) && s.Worker.InService() && s.Worker.TrialDue(l.now) {
			l.trial, l.slots = s.Worker, append(l.slots, s)
		}
	}
	return nil
}

// withoutTrial leaves the worker out whose trial another request has claimed meanwhile.
func (l *shortlist) withoutTrial() {
	l.slots = slices.DeleteFunc(l.slots, func(s *fleet.Slot) bool { return s.Worker == l.trial })
	l.trial = nil
}

// keepPlacesLeft leaves out slots that filled up since keepPlaces.
func keepPlacesLeft(_ context.Context, l *shortlist) *Refusal {
	l.slots = l.withRoom(l.slots, l.now)
	if !anyServes(l.slots) {
		return l.refuseFull()
	}
	return nil
}

// excluded calls do for each known slot that cannot be chosen now, with its index, but for those of the trial's worker.
func (s *selection) excluded(do func(i int, slot *fleet.Slot)) {
	open := 0 // index into slots
	for i, slot := range s.known {
		if open < len(s.slots) && s.slots[open] == slot {
			open++
		} else if slot.Worker != s.trial {
			do(i, slot)
		}
	}
}

// anyServes reports whether one of the slots may serve a request, rather than only prefill it.
func anyServes(slots []*fleet.Slot) bool {
	return slices.ContainsFunc(slots, func(s *fleet.Slot) bool { return s.Worker.Role != fleet.Prefill })
}

// Engines keep the answers of /v1/responses to themselves, so a request that names one must go to the worker that has it. The
// router remembers which worker gave which answer (state.answers, about 250 bytes each). A request for an answer that is not
// known (forgotten, or given before a restart) goes anywhere, and is counted.

const maxAnswers = 1 << 17 // the least recently used are evicted

// followAnswer limits the request to the worker that keeps the answer that it refers to, if that is known and may be chosen.
func followAnswer(_ context.Context, l *shortlist) *Refusal {
	if l.answer == "" {
		return nil
	}
	if addr, known := l.answers.Peek(l.answer); known {
		for _, slot := range l.allowed() {
			if slot.Worker.Addr == addr {
				l.only, l.found = []string{addr}, true
				break
			}
		}
	}
	return nil
}

// places is the limit of requests in flight.
type places struct {
	limit  int // of each slot, if its worker has none of its own; 0: there is none
	ledger *ledger.Ledger
}

// of returns how many requests a slot may have; 0: there is no limit.
func (p places) of(slot *fleet.Slot) int {
	if slot.Worker.MaxInFlight > 0 {
		return slot.Worker.MaxInFlight
	}
	return p.limit
}

// hasRoom returns a function that tells whether a slot may have one more of our requests: other senders' requests count against
// their own limits. Of a pair the decode worker counts: at the prefill worker requests only queue, none stays. If Envoy reports nothing,
// the number in flight is unknown and the limit refuses no request.
func (p places) hasRoom(now time.Time) func(*fleet.Slot) bool {
	silent, _ := p.ledger.Silent()
	return func(s *fleet.Slot) bool {
		if p.limit <= 0 || silent != ledger.NotSilent || s.Worker.Role == fleet.Prefill {
			return true
		}
		load := s.Load(now)
		return load.Places() < p.of(s)
	}
}

// withRoom returns those of the slots that may have one more request.
func (p places) withRoom(slots []*fleet.Slot, now time.Time) (out []*fleet.Slot) {
	hasRoom := p.hasRoom(now)
	for _, s := range slots {
		if hasRoom(s) {
			out = append(out, s)
		}
	}
	return out
}

// whyExcluded returns why a slot cannot be chosen.
func (p places) whyExcluded(slot *fleet.Slot, now time.Time) string {
	switch {
	case slot.Worker.IsDraining():
		return isDraining
	case !slot.Worker.IsHealthy():
		return isOut
	case !p.hasRoom(now)(slot):
		return isFull
	}
	return isNew
}
