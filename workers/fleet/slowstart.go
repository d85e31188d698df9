package fleet

import "time"

// newcomerTime is how long a worker that joined the fleet, or came back in, is a newcomer. It looks idle and would attract all
// requests without a cached prefix, while its first requests compile kernels and capture graphs.
//
// restartTime is the shortest absence after which a worker that is back in may have restarted. After a shorter one it is still warm:
// a proxy that answers one check with 503 should not cost the worker its cache hits.
//
// minLoad is the number of requests in flight below which no newcomer is left out: they may have ended already, since Envoy
// reports an end up to 100 ms later.
const (
	newcomerTime = 10 * time.Second
	restartTime  = 5 * time.Second
	minLoad      = 4
)

// becomeNewcomer makes the worker a newcomer.
func (w *Worker) becomeNewcomer(now time.Time) {
	w.newcomerUntil.Store(now.Add(newcomerTime).UnixNano())
}

func (w *Worker) isNew(now time.Time) bool { return now.UnixNano() < w.newcomerUntil.Load() }

// WithoutNewcomers leaves out the newcomers that have at least as many requests in flight as the mean of the others,
// and at least minLoad. If all are new, as at the router's start, none is left out. It costs an atomic read for each
// slot and, while there are newcomers, reads the load of all. It may use into for the result.
func WithoutNewcomers(slots, into []*Slot, now time.Time) []*Slot {
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
			if n := s.Load(now).Inflight; n >= minLoad && n*settled >= inflight {
				continue
			}
		}
		into = append(into, s)
	}
	return into
}
