package audit

import (
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
)

// Two workers whose event sockets are swapped look healthy, and every hit is predicted at the wrong one. What a request shows of it: an
// event that names it comes over another worker's stream, or its prompt, which no worker held before, is held by one other worker at
// its end and not by its own. A single one proves nothing: a worker without events loses its requests too, and the next turn of the
// conversation may store their blocks elsewhere. So a worker is misplaced if nearly none of its last requests came over its own stream,
// most of them came over one other stream, and that stream does not have its own worker's requests either.

const (
	streamWindow = 32 // the last requests of a worker that count
	fewPlaced    = 4  // requests that are enough to tell
	ownShare     = 4  // a stream with one in so many of its worker's requests is its own
)

// streamOf is where the last requests of a worker were reported, oldest first: by the name of the stream's worker; "": nowhere.
type streamOf struct {
	last  []string
	since time.Time // when it was first misplaced; zero: it is not
}

// Misplaced is a worker whose events come over another worker's stream.
type Misplaced struct {
	Worker, Over string
	Requests     int // that showed it
	Since        time.Time
}

// noteWhole notes a request by its whole prompt. The caller holds mu.
func (a *Auditor) noteWhole(x *request) {
	switch other := a.whole[x.Whole]; {
	case x.Whole == 0:
	case other != nil && other.Slot != x.Slot: // what its blocks show is not certain for either
		other.twice, x.twice = true, true
	case other == nil && x.New:
		a.whole[x.Whole] = x
	}
}

// placed notes which stream reported a request, which is over, and corrects its verdict by that. The caller holds judgeMu, and has called
// verdictOf.
func (a *Auditor) placed(x *request, v Verdict) Verdict {
	if !x.Alone || x.borrowed || a.o.WorkerOf == nil {
		return v
	}
	over := ""
	switch {
	case x.named:
		over = a.o.WorkerOf(x.namedAt)
	case !x.New || x.twice || len(x.Locals) == 0:
		return v
	case v == Equal:
		over = x.Worker
	default:
		over = a.heldBy(x)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.streams[x.Worker]
	if s == nil {
		s = new(streamOf)
		a.streams[x.Worker] = s
	}
	if len(s.last) == streamWindow {
		s.last = slices.Delete(s.last, 0, 1)
	}
	s.last = append(s.last, strings.Clone(over))
	if m, is := a.misplaced(x.Worker); !is {
		s.since = time.Time{}
	} else if s.since.IsZero() {
		s.since = a.o.Now()
		a.o.Log.Warn("a worker's KV events come over another worker's socket, so hits are predicted at the wrong one (SL0308): correct "+
			"events.zmq and events.replay of both", zap.String("worker", m.Worker), zap.String("over", m.Over), zap.Int("requests", m.Requests))
	}
	if over != "" && over != x.Worker && v != Equal {
		return Elsewhere
	}
	return v
}

// heldBy returns the one worker that holds all of a request's blocks, if it is only one, and its own worker if that is among them.
func (a *Auditor) heldBy(x *request) (worker string) {
	for _, h := range a.matches.Slots {
		if int(h.Blocks) < len(x.Locals) {
			continue
		}
		switch name := a.o.WorkerOf(h.Slot); {
		case name == x.Worker:
			return name
		case worker != "" && worker != name:
			return ""
		default:
			worker = name
		}
	}
	return worker
}

// missing reports whether a worker's stream does not have its own requests. The caller holds mu.
func (a *Auditor) missing(worker string) bool {
	s := a.streams[worker]
	if s == nil || len(s.last) < fewPlaced {
		return false
	}
	own := 0
	for _, over := range s.last {
		if over == worker {
			own++
		}
	}
	return ownShare*own < len(s.last)
}

// misplaced reports whether a worker's events come over another worker's stream. The caller holds mu.
func (a *Auditor) misplaced(worker string) (m Misplaced, is bool) {
	if !a.missing(worker) {
		return m, false
	}
	s, count := a.streams[worker], make(map[string]int)
	for _, over := range s.last {
		count[over]++
		if over != "" && over != worker && count[over] > m.Requests {
			m.Over, m.Requests = over, count[over]
		}
	}
	m.Worker, m.Since = worker, s.since
	return m, m.Requests >= fewPlaced && 2*m.Requests > len(s.last) && a.missing(m.Over)
}

// Misplaced returns the workers whose events come over another worker's stream, by name.
func (a *Auditor) Misplaced() (list []Misplaced) {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for worker := range a.streams {
		if m, is := a.misplaced(worker); is {
			list = append(list, m)
		}
	}
	slices.SortFunc(list, func(a, b Misplaced) int { return strings.Compare(a.Worker, b.Worker) })
	return list
}
