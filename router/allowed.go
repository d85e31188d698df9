package router

import (
	"net"
	"net/http"
	"time"

	"github.com/sightline-router/sightline/mmhash"
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
var errFull = &mmhash.Refused{Status: http.StatusTooManyRequests, Reason: "all workers have as many requests as they may", ByUs: true}

// below leaves the slots that have fewer requests than they may; an error if there are some and all are full.
func (r *Router) below(slots []*fleet.Slot, now time.Time) ([]*fleet.Slot, error) {
	if r.opt.MaxInFlight <= 0 || len(slots) == 0 {
		return slots, nil
	}
	var out []*fleet.Slot
	for _, s := range slots {
		if s.Load(now).Inflight < r.opt.MaxInFlight {
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return nil, errFull
	}
	return out, nil
}
