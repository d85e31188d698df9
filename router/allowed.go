package router

import (
	"net"
	"net/http"
	"time"

	"github.com/sightline-router/sightline/body"
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

// errFull sheds a request, as the endpoint-picker protocol has it.
var errFull = &body.Refused{Status: http.StatusTooManyRequests, Reason: "all workers have as many requests as they may"}

// open leaves the slots that may get a request now: those of workers that are well, with fewer requests than they may have;
// an error if all that are well are full. A worker whose trial is due is among them too, and is to be the first choice.
// Where Envoy tells nothing, nobody knows what is in flight, and the limit refuses nobody.
func (r *Router) open(slots []*fleet.Slot, now time.Time) (open []*fleet.Slot, trial *fleet.Worker, err error) {
	well := fleet.Healthy(slots)
	_, silent := r.opt.Fleet.Silent()
	hasRoom := func(s *fleet.Slot) bool {
		return r.opt.MaxInFlight <= 0 || silent || s.Load(now).Inflight < r.opt.MaxInFlight
	}
	if r.opt.MaxInFlight > 0 {
		for _, s := range well {
			if hasRoom(s) {
				open = append(open, s)
			}
		}
		if len(open) == 0 && len(well) > 0 {
			return nil, nil, errFull
		}
	} else {
		open = well
	}
	if len(well) == len(slots) {
		return open, nil, nil
	}
	for _, s := range slots {
		if s.Worker == trial || trial == nil && hasRoom(s) && s.Worker.Try(now) {
			trial, open = s.Worker, append(open, s)
		}
	}
	return open, trial, nil
}
