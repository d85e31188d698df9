package fleet

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A worker's health is what its last answers say: nothing is asked of it. A worker that fails at once has no queue and
// keeps what it is known to hold, so load and overlap would send it more and more.
//
//	in ── failuresInARow ──▶ out ── pause ──▶ trial: one request ──▶ in
//	                          ▲                   │
//	                          └── fails: pause ×4 ┘
//
// A failure is no connection, a broken one, or an answer of 5xx; an answer below 400 ends the row. A 4xx, 429 among them,
// and a client that leaves say nothing: they are the client's. A full worker that answers 503 to some and ends others well
// stays in or is soon tried again; when all are full too few are in, and then nobody is out (panic).
const (
	failuresInARow = 3
	firstPause     = time.Second
	longestPause   = 30 * time.Second
	forgetAfter    = time.Minute // a worker that was well for so long starts with the first pause again
	panicShare     = 4           // below one in so many, the fault is not the workers'
)

type health struct {
	out      atomic.Bool
	mu       sync.Mutex
	failures int           // in a row
	last     string        // what failed
	since    time.Time     // out or in since
	pause    time.Duration // between trials
	next     time.Time     // when a trial may go
	trying   bool          // its outcome is not known
}

// Failed takes down that a request to the worker failed, in a word. It reports whether that puts the worker out.
func (w *Worker) Failed(what string, now time.Time) bool {
	h := &w.health
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures++
	h.last = what
	switch {
	case h.out.Load():
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
	h.since = now
	h.out.Store(true)
	return true
}

// rest puts the next trial off, each time longer.
func (h *health) rest(now time.Time) {
	h.trying = false
	h.pause = min(max(4*h.pause, firstPause), longestPause)
	h.next = now.Add(h.pause)
}

// Answered takes down a good answer to a request decided at a time. It reports whether that brings the worker back in.
func (w *Worker) Answered(decided, now time.Time) bool {
	h := &w.health
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.out.Load():
		h.failures = 0
		return false
	case decided.Before(h.since): // it ends what it had, but takes nothing new: full perhaps, so a trial may go soon
		h.pause = firstPause
		if soon := now.Add(firstPause); h.next.After(soon) {
			h.next = soon
		}
		return false
	}
	h.failures, h.trying, h.since = 0, false, now
	h.out.Store(false)
	return true
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
	if !h.out.Load() || now.Before(h.next) {
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
	switch {
	case !h.out.Load():
		return ""
	case h.trying:
		return fmt.Sprintf("out: %d failures in a row, the last: %s; being tried", h.failures, h.last)
	}
	return fmt.Sprintf("out: %d failures in a row, the last: %s; next trial in %v", h.failures, h.last, max(0, h.next.Sub(now)).Round(time.Second))
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
