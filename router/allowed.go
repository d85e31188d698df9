package router

import (
	"net"
	"slices"

	"github.com/sightline-router/sightline/router/fleet"
)

// allowed lists the slots that the request may go to: the model's, or the pool's where the route names one, and of them
// those that have its adapter, and that a gateway's subset hint leaves.
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

// open leaves of the allowed slots those that may get a request now: of workers that are well, with fewer requests than they
// may have; all that are well are full: the request is shed, as the endpoint-picker protocol has it. Newcomers that have their
// share already are left out where others are left. A worker whose trial is due is among them too, and is to be the first
// choice. Where Envoy tells nothing, nobody knows what is in flight, and the limit refuses nobody. A request that asks for an
// answer that is there costs nothing, and no limit stops it, nor one that is left alone; that is no worker's trial either.
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

// serves tells whether any of some slots may serve a request, not only prefill it.
func serves(slots []*fleet.Slot) bool {
	return slices.ContainsFunc(slots, func(s *fleet.Slot) bool { return s.Worker.Role != fleet.Prefill })
}

// hasRoom tells of a slot whether it may have one more request of ours: others' are in their senders' limits. Of a pair the one
// that decodes counts: what the other has is a queue, and no request stays there.
func (x *decision) hasRoom() func(*fleet.Slot) bool {
	silent, _ := x.opt.Fleet.Silent()
	return func(s *fleet.Slot) bool {
		if x.maxInFlight <= 0 || silent != fleet.Speaks || s.Worker.Role == fleet.Prefill {
			return true
		}
		load := s.Load(x.now)
		return load.Inflight-load.Others < x.most(s)
	}
}

// most is how many requests a slot may have.
func (x *decision) most(s *fleet.Slot) int {
	if s.Worker.Most > 0 {
		return s.Worker.Most
	}
	return x.maxInFlight
}

// inTurn chooses and books, where there is a limit one decision after another: side by side two would take the last place.
// Slots that filled up since they were opened are left out.
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
