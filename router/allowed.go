package router

import (
	"net"
	"slices"

	"github.com/sightline-router/sightline/router/fleet"
)

// allowed returns the slots that the request may go to: those of the model, or of the pool if the route names one, that have its
// adapter and are within the gateway's subset hint.
func (x *decision) allowed() []*fleet.Slot {
	model := x.req.Pool
	if model == "" && x.model != nil {
		model = x.model.Name
	}
	slots := x.opt.Fleet.Slots(model)
	if x.adapter != "" {
		slots = fleet.With(x.adapter, slots)
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

// open keeps those allowed slots that may get a request now: of healthy workers, below the limit of requests in flight. If all
// healthy ones are full, the request is shed, as the endpoint-picker protocol demands. Newcomers that have had their share are
// left out if others remain. A worker whose trial is due is added, and will be the first choice.
//
// If Envoy reports nothing, the number in flight is unknown and the limit refuses nobody. The limit applies neither to a request
// for a stored answer, which costs nothing, nor to one that is left alone, which is no worker's trial either.
func (x *decision) open() *Refusal {
	slots := x.allowed()
	well := fleet.Healthy(slots)
	if !serves(well) {
		well = slots
	}
	x.known, x.slots, x.trial, x.opened = slots, well, nil, true
	if x.req.Stored != "" {
		return nil
	}
	hasRoom := x.hasRoom()
	if x.maxInFlight > 0 {
		x.slots = nil
		for _, s := range well {
			if hasRoom(s) {
				x.slots = append(x.slots, s)
			}
		}
		if !serves(x.slots) && len(well) > 0 {
			if !x.left() {
				return x.full()
			}
			x.slots = well
		}
	}
	x.mem.eased = slices.Grow(x.mem.eased[:0], len(x.slots))
	x.slots = fleet.Eased(x.slots, x.mem.eased, x.now)
	if len(well) == len(slots) || x.left() {
		return nil
	}
	for _, s := range slots {
		if s.Worker == x.trial || x.trial == nil && !x.aside && hasRoom(s) && s.Worker.Try(x.now) {
			x.trial, x.slots = s.Worker, append(x.slots, s)
		}
	}
	return nil
}

// serves reports whether one of the slots may serve a request, rather than only prefill it.
func serves(slots []*fleet.Slot) bool {
	return slices.ContainsFunc(slots, func(s *fleet.Slot) bool { return s.Worker.Role != fleet.Prefill })
}

// hasRoom returns a function that tells whether a slot may have one more of our requests: other senders' requests count against
// their own limits. Of a pair the decode worker counts: at the prefill worker requests only queue, none stays.
func (x *decision) hasRoom() func(*fleet.Slot) bool {
	silent, _ := x.opt.Fleet.Silent()
	return func(s *fleet.Slot) bool {
		if x.maxInFlight <= 0 || silent != fleet.Speaks || s.Worker.Role == fleet.Prefill {
			return true
		}
		load := s.Load(x.now)
		return load.Places() < x.most(s)
	}
}

// most returns how many requests a slot may have.
func (x *decision) most(s *fleet.Slot) int {
	if s.Worker.Most > 0 {
		return s.Worker.Most
	}
	return x.maxInFlight
}

// inTurn runs choose, which books. With a limit, decisions run one at a time, since two at once would take the same last place,
// and slots that filled up since open are left out.
func (x *decision) inTurn(choose func()) {
	if x.maxInFlight <= 0 || x.req.Stored != "" || len(x.slots) == 0 || x.left() {
		choose()
		return
	}
	x.admission.Lock()
	defer x.admission.Unlock()
	hasRoom := x.hasRoom()
	var open []*fleet.Slot
	for _, s := range x.slots {
		if hasRoom(s) {
			open = append(open, s)
		}
	}
	if x.slots = open; !serves(open) {
		x.refuse(x.full())
		return
	}
	if refusal := x.unfair(); refusal != nil {
		x.refuse(refusal)
		return
	}
	choose()
}
