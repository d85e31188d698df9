package fleet

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
)

// A worker's health follows from the ends of its requests (noteHealth in router/outcomes.go) and from health checks (package health). A
// worker that fails fast has no queue and keeps its overlap, so by load and overlap it would get more and more requests.
//
//	requests:  in ── failuresInARow ──▶ out ── pause ──▶ trial: one request ──▶ in
//	                                     ▲                   │
//	                                     └── fails: pause ×4 ┘
//	checks:    in ── failuresInARow, or one that says "not available" ──▶ out ── a good check ──▶ in
//
// A worker is in if neither requests nor checks put it out. A request fails by no connection, a broken one, or a 5xx; an answer
// below 400 ends both rows of failures. A 4xx (with 429) or a client that disconnects is the client's doing and changes nothing,
// except a 401, 403 or 404 that this worker alone gives (refusesAlone in router/outcomes.go).
// A full worker that answers some requests with 503 and completes others stays in, or is soon tried again. If all are full, too
// few are in, and then none is out (panicShare). A good check does not vouch for requests: a worker that fails those returns
// only by a trial, unless it refused connections and had no request since. There are no trials while checks fail, and one at once when
// they are good again.
const (
	noConnection   = "connect" // RecordFailure's reason for a worker that accepts no connection
	failuresInARow = 3
	firstPause     = time.Second
	longestPause   = 30 * time.Second
	forgetAfter    = time.Minute // a worker that was well for this long starts with the first pause again
	panicShare     = 4           // if fewer than one in four are in, the fault is not the workers'
)

type health struct {
	out      atomic.Bool // failing || checkFailure != ""
	mu       sync.Mutex
	outSince time.Time // when it was last taken out

	failing      bool          // out because requests failed
	failures     int           // of requests, in a row
	lastFailure  string        // why the last one failed
	changedAt    time.Time     // time of the last change of failing
	trialPause   time.Duration // between trials
	nextTrial    time.Time     // when a trial may go
	trialRunning bool          // a trial is under way

	failedChecks int         // checks that failed, in a row
	checkFailure rules.Fault // out because of checks: the reason that put it out
}

// RecordFailure records that a request to the worker failed, with a one-word reason. It reports whether that takes the worker out.
func (w *Worker) RecordFailure(what string, now time.Time) bool {
	h := &w.health
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures++
	h.lastFailure = what
	switch {
	case h.failing:
		if h.trialRunning {
			h.postponeTrial(now)
		}
		return false
	case h.failures < failuresInARow:
		return false
	}
	if now.Sub(h.changedAt) > forgetAfter {
		h.trialPause = 0
	}
	h.postponeTrial(now)
	h.changedAt, h.failing = now, true
	w.updateOut(now)
	return h.checkFailure == ""
}

// postponeTrial postpones the next trial, longer each time.
func (h *health) postponeTrial(now time.Time) {
	h.trialRunning = false
	h.trialPause = min(max(4*h.trialPause, firstPause), longestPause)
	h.nextTrial = now.Add(h.trialPause)
}

// updateOut takes the worker out or in according to its requests and checks. The caller holds the lock.
func (w *Worker) updateOut(now time.Time) {
	h := &w.health
	out := h.failing || h.checkFailure != ""
	switch was := h.out.Swap(out); {
	case out && !was:
		h.outSince = now
	case was && !out && now.Sub(h.outSince) >= restartTime:
		w.becomeNewcomer(now)
	}
}

// RecordSuccess records a good answer to a request that was decided at the given time. It reports whether that brings the worker back
// in.
func (w *Worker) RecordSuccess(decided, now time.Time) bool {
	h := &w.health
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.failing:
		h.failures, h.failedChecks = 0, 0
		return false
	case decided.Before(h.changedAt): // it completes earlier requests but fails new ones, perhaps because it is full: allow a trial soon
		h.trialPause = firstPause
		if soon := now.Add(firstPause); h.nextTrial.After(soon) {
			h.nextTrial = soon
		}
		return false
	}
	h.failures, h.failedChecks, h.trialRunning, h.failing, h.changedAt = 0, 0, false, false, now
	w.updateOut(now)
	return !h.out.Load()
}

// RecordCheck records the result of a health check: "" for a good answer, else what is wrong. final: the worker itself says that
// it is not available, so one check is enough. It reports whether that takes the worker out or brings it back.
func (w *Worker) RecordCheck(failed rules.Fault, final bool, now time.Time) (changed bool) {
	h := &w.health
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.out.Load()
	if failed == "" {
		if h.failedChecks > 0 && h.failing { // it was away: allow a trial
			h.trialPause, h.nextTrial, h.trialRunning = firstPause, now, false
		}
		h.failedChecks, h.checkFailure = 0, ""
		if h.failing && h.lastFailure == noConnection && now.After(h.nextTrial) { // no request has tried it, and it accepts connections
			h.failures, h.trialRunning, h.failing, h.changedAt = 0, false, false, now
		}
	} else {
		h.failedChecks++
		if h.checkFailure == "" && (final || h.failedChecks >= failuresInARow) {
			h.checkFailure = failed
		}
	}
	w.updateOut(now)
	return h.out.Load() != was
}

// ClaimTrial claims the worker's trial for a single request. It returns false if none is due. The next trial may go when the outcome of
// this one is known, or after another pause.
func (w *Worker) ClaimTrial(now time.Time) bool {
	if !w.TrialDue(now) {
		return false
	}
	h := &w.health
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.trialDue(now) { // another request was first
		return false
	}
	h.trialRunning, h.nextTrial = true, now.Add(h.trialPause)
	return true
}

// TrialDue reports whether a request may claim the worker's trial.
func (w *Worker) TrialDue(now time.Time) bool {
	h := &w.health
	if !h.out.Load() {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.trialDue(now)
}

func (h *health) trialDue(now time.Time) bool {
	return h.failing && h.failedChecks == 0 && !now.Before(h.nextTrial)
}

// Out says why a worker gets no requests, or trial requests alone.
type Out struct {
	Fault rules.Fault // of its health check; "": requests failed
	Why   string
	Trial string // when a request may try it
}

// OutReason returns why the worker is out; nil if it is in.
func (w *Worker) OutReason(now time.Time) *Out {
	h := &w.health
	h.mu.Lock()
	defer h.mu.Unlock()
	row := fmt.Sprintf("%d failures in a row, the last: %s", h.failures, h.lastFailure)
	switch {
	case h.checkFailure != "":
		return &Out{Fault: h.checkFailure, Why: "health check: " + string(h.checkFailure)}
	case !h.failing:
		return nil
	case h.trialRunning:
		return &Out{Why: row, Trial: "being tried"}
	case h.failedChecks > 0:
		return &Out{Why: row, Trial: "no trial request while its health check fails"}
	}
	return &Out{Why: row, Trial: fmt.Sprintf("next trial request in %v", max(0, h.nextTrial.Sub(now)).Round(time.Second))}
}

// String returns all of it in a line; "" if the worker is in.
func (o *Out) String() string {
	switch {
	case o == nil:
		return ""
	case o.Trial == "":
		return "out: " + o.Why
	}
	return "out: " + o.Why + "; " + o.Trial
}

// MarshalText writes the line.
func (o *Out) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText makes the line Why.
func (o *Out) UnmarshalText(line []byte) error {
	o.Why = string(bytes.TrimPrefix(line, []byte("out: ")))
	return nil
}

// IsHealthy reports whether the worker is in.
func (w *Worker) IsHealthy() bool { return !w.health.out.Load() }

// Healthy returns the slots whose workers are in, or all slots if those would be too few. It costs an atomic read for each slot,
// and allocates only while a worker is out.
func Healthy(slots []*Slot) []*Slot {
	out := 0
	for _, s := range slots {
		if !s.Worker.IsHealthy() {
			out++
		}
	}
	if in := len(slots) - out; out == 0 || in*panicShare < len(slots) {
		return slots
	}
	in := make([]*Slot, 0, len(slots)-out)
	for _, s := range slots {
		if s.Worker.IsHealthy() {
			in = append(in, s)
		}
	}
	return in
}
