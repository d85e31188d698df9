package fleet

import "time"

// settling is how long a worker that joined the fleet, or came back in, is a newcomer. It looks idle and would attract all
// requests without a cached prefix, while its first requests compile kernels and capture graphs.
//
// restart is the shortest absence after which a worker that is back in may have restarted. After a shorter one it is still warm:
// a proxy that answers one check with 503 should not cost the worker its cache hits.
//
// fewest is the number of requests in flight below which no newcomer is left out: they may have ended already, since Envoy
// reports an end some 20 ms later.
const (
	settling = 10 * time.Second
	restart  = 5 * time.Second
	fewest   = 4
)

// arrive makes the worker a newcomer.
func (w *Worker) arrive(now time.Time) { w.settles.Store(now.Add(settling).UnixNano()) }

func (w *Worker) isNew(now time.Time) bool { return now.UnixNano() < w.settles.Load() }

// Eased leaves out the newcomers that have at least as many requests in flight as the mean of the others, and at least fewest. If
// all are new, as at the router's start, nobody is left out. It costs an atomic read for each slot and, while there are
// newcomers, reads the load of all. It may use into for the result.
func Eased(slots, into []*Slot, now time.Time) []*Slot {
	settled, inflight := 0, 0
	for _, s := range slots {
		if !s.Worker.isNew(now) {
			settled++
		}
	}
	if settled == 0 || settled == len(slots) {
		return slots
	}
	for _, s := range slots {
		if !s.Worker.isNew(now) {
			inflight += s.Load(now).Inflight
		}
	}
	into = into[:0]
	for _, s := range slots {
		if s.Worker.isNew(now) {
			if n := s.Load(now).Inflight; n >= fewest && n*settled >= inflight {
				continue
			}
		}
		into = append(into, s)
	}
	return into
}
