package fleet

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A worker's health is what its last answers say, and what it says when it is asked (package vitals). A worker that fails at
// once has no queue and keeps what it is known to hold, so load and overlap would send it more and more.
//
//	requests:  in ── failuresInARow ──▶ out ── pause ──▶ trial: one request ──▶ in
//	                                     ▲                   │
//	                                     └── fails: pause ×4 ┘
//	checks:    in ── failuresInARow, or one that says "not available" ──▶ out ── a good check ──▶ in
//
// Either puts it out; it is in when neither does. A failed request is no connection, a broken one, or an answer of 5xx; an
// answer below 400 ends both rows. A 4xx, 429 among them, and a client that leaves say nothing: they are the client's. A full
// worker that answers 503 to some and ends others well stays in or is soon tried again; when all are full too few are in, and
// then nobody is out (panic). A good check says nothing of requests: a worker that fails those is back with a trial alone. But
// there is no trial while checks fail, and one at once when they are good again.
const (
	failuresInARow = 3
	firstPause     = time.Second
	longestPause   = 30 * time.Second
	forgetAfter    = time.Minute // a worker that was well for so long starts with the first pause again
	panicShare     = 4           // below one in so many, the fault is not the workers'
)

type health struct {
	out  atomic.Bool // fails || down != ""
	mu   sync.Mutex
	left time.Time // when it was put out last

	fails    bool          // out because requests failed
	failures int           // of requests, in a row
	last     string        // what failed
	since    time.Time     // fails or does not since
	pause    time.Duration // between trials
	next     time.Time     // when a trial may go
	trying   bool          // its outcome is not known

	missed int    // checks that failed, in a row
	down   string // out because of checks: the first word that put it out
}

// Failed takes down that a request to the worker failed, in a word. It reports whether that puts the worker out.
func (w *Worker) Failed(what string, now time.Time) bool {
	h := &w.health
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures++
	h.last = what
	switch {
	case h.fails:
		if h.trying {
			h.rest(now)
		}
		return false
	case h.failures < failuresInARow:
		return false
	}
	if now.Sub(h.since) > forgetAfter {
		h.pause = 0
	}
	h.rest(now)
	h.since, h.fails = now, true
	w.weigh(now)
	return h.down == ""
}

// rest puts the next trial off, each time longer.
func (h *health) rest(now time.Time) {
	h.trying = false
	h.pause = min(max(4*h.pause, firstPause), longestPause)
	h.next = now.Add(h.pause)
}

// weigh puts the worker out or in, as its requests and checks say. The caller holds the lock.
func (w *Worker) weigh(now time.Time) {
	h := &w.health
	out := h.fails || h.down != ""
	switch was := h.out.Swap(out); {
	case out && !was:
		h.left = now
	case was && !out && now.Sub(h.left) >= restart:
		w.arrive(now)
	}
}

// Answered takes down a good answer to a request decided at a time. It reports whether that brings the worker back in.
func (w *Worker) Answered(decided, now time.Time) bool {
	h := &w.health
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.fails:
		h.failures, h.missed = 0, 0
		return false
	case decided.Before(h.since): // it ends what it had, but takes nothing new: full perhaps, so a trial may go soon
		h.pause = firstPause
		if soon := now.Add(firstPause); h.next.After(soon) {
			h.next = soon
		}
		return false
	}
	h.failures, h.missed, h.trying, h.fails, h.since = 0, 0, false, false, now
	w.weigh(now)
	return !h.out.Load()
}

// Checked takes down what came of asking the worker for its health: "" for a good answer, else what failed, in a word. With
// final the worker itself says that it is not available, and needs no second word. It reports whether that puts the worker out
// or brings it back.
func (w *Worker) Checked(failed string, final bool, now time.Time) (changed bool) {
	h := &w.health
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.out.Load()
	if failed == "" {
		if h.missed > 0 && h.fails { // it was away: a trial may go
			h.pause, h.next, h.trying = firstPause, now, false
		}
		h.missed, h.down = 0, ""
	} else if h.missed++; h.down == "" && (final || h.missed >= failuresInARow) {
		h.down = failed
	}
	w.weigh(now)
	return h.out.Load() != was
}

// Try claims the worker's trial, which is one request's alone: false if it is not due. The next may go when its outcome
// is known, or after another pause.
func (w *Worker) Try(now time.Time) bool {
	h := &w.health
	if !h.out.Load() {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.fails || h.missed > 0 || now.Before(h.next) {
		return false
	}
	h.trying, h.next = true, now.Add(h.pause)
	return true
}

// Out says why the worker is out, and until when; "" if it is in.
func (w *Worker) Out(now time.Time) string {
	h := &w.health
	h.mu.Lock()
	defer h.mu.Unlock()
	row := fmt.Sprintf("out: %d failures in a row, the last: %s; ", h.failures, h.last)
	switch {
	case h.down != "":
		return "out: asked for its health: " + h.down
	case !h.fails:
		return ""
	case h.trying:
		return row + "being tried"
	case h.missed > 0:
		return row + "no trial while it does not answer for its health"
	}
	return row + fmt.Sprintf("next trial in %v", max(0, h.next.Sub(now)).Round(time.Second))
}

// Well tells whether the worker is in.
func (w *Worker) Well() bool { return !w.health.out.Load() }

// Healthy leaves the slots whose workers are in, or all where those would be too few. It costs an atomic read a slot, and
// allocates only while a worker is out.
func Healthy(slots []*Slot) []*Slot {
	out := 0
	for _, s := range slots {
		if !s.Worker.Well() {
			out++
		}
	}
	if in := len(slots) - out; out == 0 || in*panicShare < len(slots) {
		return slots
	}
	in := make([]*Slot, 0, len(slots)-out)
	for _, s := range slots {
		if s.Worker.Well() {
			in = append(in, s)
		}
	}
	return in
}
