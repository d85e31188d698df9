package audit

import (
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/indexer"
)

// Two workers whose event sockets are swapped look healthy, and every hit is predicted at the wrong one. What a request shows of it: an
// event that names it comes over another worker's stream, or its prompt, which no worker held before, is held by one other worker at
// its end and not by its own. A single one proves nothing: a worker without events loses its requests too, and the next turn of the
// conversation may store their blocks elsewhere. So a worker is misplaced if nearly none of its last requests came over its own stream,
// most of them came over one other stream, and that stream does not have its own worker's requests either.
//
// Events may also come late. A request whose blocks come after its verdict shows by how much: it had ended, so they were stored before.
// Several in a row are needed, since the next turn of a conversation may store the same blocks.

const (
	streamWindow = 32               // the last requests of a worker that count
	fewPlaced    = 4                // requests that are enough to tell
	ownShare     = 4                // a stream with one in so many of its worker's requests is its own
	lateWindow   = 8                // the last requests of a worker that show whether its events are late
	latePatience = time.Minute      // for a request's blocks
	openLate     = 256              // requests whose blocks may come late
	lateBlocks   = 1 << 12          // of each
	lateUntil    = 15 * time.Minute // after the last of a worker
)

// streamOf is what the last requests of a worker show of its stream, oldest first.
type streamOf struct {
	last  []string  // over which worker's stream they were reported; "": over none
	since time.Time // when it was first misplaced; zero: it is not

	late      []time.Duration // how long after its end each was reported; 0: before its verdict
	lateAt    time.Time       // of the last
	lateSince time.Time       // zero: they are not late
	lateEnded time.Time       // when the newest late one had ended
}

// lateRequest is a request whose blocks may come late.
type lateRequest struct {
	worker string
	slot   indexer.SlotID
	locals []uint64
	ended  time.Time
}

// Misplaced is a worker whose events come over another worker's stream.
type Misplaced struct {
	Worker, Over string
	Requests     int // that showed it
	Since        time.Time
}

// noteWhole notes a request by its whole prompt. The caller holds mu.
func (a *placements) noteWhole(x *request) {
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
func (a *placements) placed(x *request, v Verdict) Verdict {
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
	if v == Equal {
		a.cameAfter(s, 0)
	} else if over == "" && len(a.mayBeLate) < openLate && len(x.Locals) <= lateBlocks && !x.Shadow {
		a.mayBeLate = append(a.mayBeLate, lateRequest{x.Worker, x.Slot, x.Locals, x.endedAt})
	}
	if len(s.last) == streamWindow {
		s.last = slices.Delete(s.last, 0, 1)
	}
	s.last = append(s.last, strings.Clone(over))
	if _, is := a.misplaced(x.Worker); !is {
		s.since = time.Time{}
	} else if s.since.IsZero() {
		s.since = a.o.Now()
	}
	if over != "" && over != x.Worker && v != Equal {
		return Elsewhere
	}
	return v
}

// heldBy returns the one worker that holds all of a request's blocks, if it is only one, and its own worker if that is among them.
func (a *placements) heldBy(x *request) (worker string) {
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
func (a *placements) missing(worker string) bool {
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
func (a *placements) misplaced(worker string) (m Misplaced, is bool) {
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

// lookForLate looks for the blocks of requests that had not come by their verdicts. The caller holds judgeMu.
func (a *placements) lookForLate(now time.Time) {
	a.mu.Lock()
	list := a.mayBeLate
	a.mayBeLate = nil
	a.mu.Unlock()
	kept := list[:0]
	for _, l := range list {
		switch after := now.Sub(l.ended); {
		case a.holdsAll(l.slot, l.locals):
			a.mu.Lock()
			if s := a.streams[l.worker]; s != nil {
				a.cameAfter(s, after)
				if at := slices.Index(s.last, ""); at >= 0 { // it was reported after all
					s.last[at] = l.worker
				}
			}
			a.mu.Unlock()
		case after < latePatience:
			kept = append(kept, l)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mayBeLate = append(kept, a.mayBeLate...)
}

// cameAfter notes how long after its end a request was reported. The caller holds mu.
func (a *placements) cameAfter(s *streamOf, after time.Duration) {
	if len(s.late) == lateWindow {
		s.late = slices.Delete(s.late, 0, 1)
	}
	s.late, s.lateAt = append(s.late, after), a.o.Now()
	if ended := s.lateAt.Add(-after); after > 0 && ended.After(s.lateEnded) {
		s.lateEnded = ended
	}
	if _, is := s.lateBy(s.lateAt); !is {
		s.lateSince = time.Time{}
	} else if s.lateSince.IsZero() {
		s.lateSince = s.lateAt
	}
}

// lateBy returns how late the events of a stream are, if most are.
func (s *streamOf) lateBy(now time.Time) (by time.Duration, is bool) {
	if len(s.late) < fewPlaced || now.Sub(s.lateAt) >= lateUntil {
		return 0, false
	}
	late := slices.Sorted(slices.Values(s.late))
	by = late[(len(late)-1)/2]
	return by.Round(100 * time.Millisecond), by > 0
}

// Late is a worker whose events come so long after they happen.
type Late struct {
	Worker string
	By     time.Duration
	Since  time.Time
	Ended  time.Time // when the newest of its late requests had ended
}

// SomeLate returns the workers of whose last requests one came late at least, by name: what has not come yet may only be late.
func (a *Auditor) SomeLate() (list []string) {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for worker, s := range a.streams {
		if a.o.Now().Sub(s.lateAt) < lateUntil && slices.ContainsFunc(s.late, func(by time.Duration) bool { return by > 0 }) {
			list = append(list, worker)
		}
	}
	slices.Sort(list)
	return list
}

// Late returns the workers whose events come late, by name.
func (a *Auditor) Late() (list []Late) {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for worker, s := range a.streams {
		if by, is := s.lateBy(a.o.Now()); is {
			list = append(list, Late{worker, by, s.lateSince, s.lateEnded})
		}
	}
	slices.SortFunc(list, func(a, b Late) int { return strings.Compare(a.Worker, b.Worker) })
	return list
}
