package router

import (
	"net"
	"slices"

	"github.com/sightline-router/sightline/router/ledger"
	"github.com/sightline-router/sightline/workers/fleet"
)

// allowedSlots returns the slots that the request may go to: those of the model, or of the pool if the route names one, that have its
// adapter and are within the gateway's subset hint.
func (x *planner) allowedSlots() []*fleet.Slot {
	model := x.req.Pool
	if model == "" && x.model != nil {
		model = x.model.Name
	}
	slots := x.opt.Fleet.Slots(model)
	if x.adapter != "" {
		slots = fleet.WithAdapter(x.adapter, slots)
	}
	if x.req.Only == nil {
		return slots
	}
	only := make(map[string]bool, len(x.req.Only)) // a gateway names its whole pool
	for _, addr := range x.req.Only {
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

// keepAvailable keeps those allowed slots that may get a request now: of healthy workers, below the limit of requests in flight. If all
// healthy ones are full, the request is shed, as the endpoint-picker protocol demands. Newcomers that have had their share are
// left out if others remain. A worker whose trial is due is added, and will be the first choice.
//
// If Envoy reports nothing, the number in flight is unknown and the limit refuses no request. The limit applies neither to a request
// for a stored answer, which costs nothing, nor to an unsteered one, which is no worker's trial either.
func (x *planner) keepAvailable() *Refusal {
	slots := x.allowedSlots()
	well := fleet.Healthy(slots)
	if !anyServes(well) {
		well = slots
	}
	x.known, x.slots, x.trial, x.opened = slots, well, nil, true
	if x.req.Stored != "" {
		return nil
	}
	hasRoom := x.hasRoom()
	if x.maxInFlight > 0 {
		x.slots = x.withRoom(well)
		if !anyServes(x.slots) && len(well) > 0 && x.steers {
			x.awaitPlace(well)
		}
		if !anyServes(x.slots) && len(well) > 0 {
			if x.steers {
				return x.refuseFull()
			}
			x.slots = well
		}
	}
	x.mem.eased = slices.Grow(x.mem.eased[:0], len(x.slots))
	x.slots = fleet.WithoutNewcomers(x.slots, x.mem.eased, x.now)
	if len(well) == len(slots) || !x.tries {
		return nil
	}
	for _, s := range slots {
		if s.Worker == x.trial || x.trial == nil && hasRoom(s) && s.Worker.TrialDue(x.now) {
			x.trial, x.slots = s.Worker, append(x.slots, s)
		}
	}
	return nil
}

// withoutTrial leaves the worker out whose trial another request has claimed meanwhile.
func (x *planner) withoutTrial() {
	x.slots = slices.DeleteFunc(x.slots, func(s *fleet.Slot) bool { return s.Worker == x.trial })
	x.trial = nil
}

// withRoom returns those of the slots that may have one more request.
func (x *planner) withRoom(slots []*fleet.Slot) (out []*fleet.Slot) {
	hasRoom := x.hasRoom()
	for _, s := range slots {
		if hasRoom(s) {
			out = append(out, s)
		}
	}
	return out
}

// anyServes reports whether one of the slots may serve a request, rather than only prefill it.
func anyServes(slots []*fleet.Slot) bool {
	return slices.ContainsFunc(slots, func(s *fleet.Slot) bool { return s.Worker.Role != fleet.Prefill })
}

// hasRoom returns a function that tells whether a slot may have one more of our requests: other senders' requests count against
// their own limits. Of a pair the decode worker counts: at the prefill worker requests only queue, none stays.
func (x *planner) hasRoom() func(*fleet.Slot) bool {
	silent, _ := x.opt.Ledger.Silent()
	return func(s *fleet.Slot) bool {
		if x.maxInFlight <= 0 || silent != ledger.NotSilent || s.Worker.Role == fleet.Prefill {
			return true
		}
		load := s.Load(x.now)
		return load.Places() < x.maxInFlightOf(s)
	}
}

// maxInFlightOf returns how many requests a slot may have; 0: there is no limit.
func (s *serving) maxInFlightOf(slot *fleet.Slot) int {
	if slot.Worker.MaxInFlight > 0 {
		return slot.Worker.MaxInFlight
	}
	return s.maxInFlight
}

// admit refuses a request for which there is no place any more, and leaves out slots that filled up since keepAvailable.
func (x *planner) admit() *Refusal {
	if x.maxInFlight <= 0 || x.req.Stored != "" || !x.steers {
		return nil
	}
	x.slots = x.withRoom(x.slots)
	if !anyServes(x.slots) {
		return x.refuseFull()
	}
	return x.refuseUnfair()
}
