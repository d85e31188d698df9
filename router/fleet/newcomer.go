package fleet

import "time"

// settling is how long a worker that joined the fleet, or came back in, is a newcomer. It looks idle, and would draw all that
// nobody holds, while its first requests compile kernels and capture graphs.
//
// restart is the shortest absence after which one that is back in may have started anew. Sooner it is as warm as it was: a
// proxy that answers one check with 503 shall not cost it what it holds.
//
// fewest requests in flight keep nobody away: they may have ended already, since Envoy tells of it some 20 ms later.
const (
	settling = 10 * time.Second
	restart  = 5 * time.Second
	fewest   = 4
)

// arrive makes the worker a newcomer.
func (w *Worker) arrive(now time.Time) { w.settles.Store(now.Add(settling).UnixNano()) }

func (w *Worker) isNew(now time.Time) bool { return now.UnixNano() < w.settles.Load() }

// Eased leaves out the newcomers that have as many requests in flight as the mean of the others, and fewest at least. Where all
// are new nobody is left out, as at the start of Sightline. It costs an atomic read a slot, and while there are newcomers a look
// at each one's load; what it gives may lie in into.
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
