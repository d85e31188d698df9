package router

import (
	"net"
	"slices"

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
	var out []*fleet.Slot
	for _, s := range slots {
		host, _, _ := net.SplitHostPort(s.Worker.Addr)
		if slices.Contains(req.Only, s.Worker.Addr) || slices.Contains(req.Only, host) {
			out = append(out, s)
		}
	}
	return out
}
