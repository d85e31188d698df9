package router

import (
	"net"

	"github.com/sightline-router/sightline/router/fleet"
)

// allowed lists the slots that a request may go to: the model's, or the pool's where the route names one, and of them
// those that a gateway's subset hint leaves.
func (r *Router) allowed(req *Request, model string) []*fleet.Slot {
	if req.Pool != "" {
		model = req.Pool
	}
	slots := r.opt.Fleet.Slots(model)
	if req.Only == nil {
		return slots
	}
	only := make(map[string]bool, len(req.Only)) // a gateway names its whole pool
	for _, addr := range req.Only {
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
