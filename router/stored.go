package router

import (
	"strings"
	"sync"
)

// stored remembers which worker gave an answer of /v1/responses: engines keep such answers to themselves, and a request
// that names one must go there. It holds the last maxStored to twice as many, about 150 bytes each; what it does not
// know (forgotten, or answered before a restart) goes anywhere, and is counted.
type stored struct {
	mu         sync.Mutex
	young, old map[string]string // id → address
}

const maxStored = 1 << 16

func (s *stored) add(id, addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.young == nil || len(s.young) >= maxStored {
		s.young, s.old = make(map[string]string), s.young
	}
	s.young[id] = addr
}

// worker is the address of the worker with an answer; an answer asked for stays remembered.
func (s *stored) worker(id string) (addr string) {
	s.mu.Lock()
	addr, fresh := s.young[id]
	if !fresh {
		addr = s.old[id]
	}
	s.mu.Unlock()
	if !fresh && addr != "" {
		s.add(strings.Clone(id), addr) // it lies in the request
	}
	return addr
}

// holding narrows a request to the worker that keeps the answer it names, if that is known and may be chosen.
func (r *Router) holding(req *Request, id, model string) (*Request, bool) {
	narrowed := *req
	if addr := r.stored.worker(id); addr != "" {
		for _, slot := range r.allowed(req, model) {
			if slot.Worker.Addr == addr {
				narrowed.Only = []string{addr}
				r.metrics.stored.WithLabelValues("found").Inc()
				return &narrowed, true
			}
		}
	}
	r.metrics.stored.WithLabelValues("unknown").Inc()
	return req, false
}
