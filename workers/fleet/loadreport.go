package fleet

import (
	"encoding/json"
	"fmt"
	"time"
)

// A worker's report about its load corrects our count but never replaces it: we know our bookings before the worker has the
// requests, and its report is old. Only requests that cannot be ours are certainly others': those that it reports above the most
// that we had booked at once while its numbers were made.
//
//	Told.MaxAge ──────────▶ now        Told.ValidFor
//	│ the most booked    │ SetReport ───────────────▶ the correction ends, unless renewed
//
// A request is booked before it is sent and until its end is reported, so what a worker has of ours at any moment is booked at
// that moment. A worker that reports fewer than were booked changes nothing, unless they are old (ledger.FreeAnswered).

// LoadReport is what a worker reports about its own load.
type LoadReport struct {
	Running, Waiting int           // requests, from all senders; Running below 0: not reported
	Usage            float64       // share of the KV cache in use, 0 to 1; below 0: not reported
	Cache            int           // tokens that its KV cache has room for; 0: not reported
	MaxAge           time.Duration // maximum age of the numbers
	ValidFor         time.Duration // how long they stay valid
}

// ParseLoadReport parses a load message of TensorRT-LLM in NVIDIA's standalone router example, which is JSON. Waiting are queued or
// paused requests; it does not report running ones.
func ParseLoadReport(message []byte) (LoadReport, error) {
	m := struct {
		Waiting int     `json:"num_waiting_reqs"`
		Usage   float64 `json:"kv_cache_usage"`
	}{-1, -1}
	if err := json.Unmarshal(message, &m); err != nil || m.Waiting < 0 || m.Waiting > 1<<20 || !(m.Usage >= 0 && m.Usage <= 1) {
		return LoadReport{}, fmt.Errorf("load: want {\"num_waiting_reqs\": a count, \"kv_cache_usage\": 0 to 1} in %d bytes", len(message))
	}
	return LoadReport{Running: -1, Waiting: m.Waiting, Usage: m.Usage}, nil
}

// fullUsage is the share of the KV cache in use from which room for another prompt may be missing.
const fullUsage = 0.8

// reportState is a slot's correction and the data to compute it.
type reportState struct {
	capacity      float64 // of the KV cache, in prompt tokens of requests that end like those in flight; 0: not known
	otherRequests int     // requests that the worker reported and that were not booked here
	lost          int     // the part of others that replicas had booked that are gone
	lostEnds      time.Time
	last          LoadReport
	at, ends      time.Time // at zero: it never reported
	maxBooked     [2]int    // maximum of requests booked at once: since periodStart, and in the period before
	periodStart   time.Time
}

// SetReport applies the worker's report on its load at now. The zero LoadReport withdraws it, as one does with nothing but a Cache.
func (s *Slot) SetReport(t LoadReport, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.report
	if now.Sub(k.periodStart) >= t.MaxAge {
		k.maxBooked, k.periodStart = [2]int{s.inflight, k.maxBooked[0]}, now
	}
	k.otherRequests, k.last, k.at, k.ends = max(0, max(0, t.Running)+t.Waiting-max(k.maxBooked[0], k.maxBooked[1])), t,
		now, now.Add(t.ValidFor)
	k.lost = min(k.lost, k.otherRequests)
	k.capacity = 0
	if t.Usage >= fullUsage && k.otherRequests == 0 { // else it says little of what there is room for
		k.capacity = s.context / t.Usage
	}
}

// Unconfirmed is how long a request counts of which nothing is reported.
const Unconfirmed = 30 * time.Second

// Lose releases the charge of a request whose replica is gone. The worker most likely still has the request. It then counts as another
// sender's and still takes a place of max_in_flight until the worker reports fewer, at most for Unconfirmed. Of a worker that
// reports no load it does not count.
func (h *Charge) Lose(now time.Time) {
	h.Release(now)
	s := h.slot
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.report
	k.otherRequests, k.lost, k.lostEnds = k.otherRequests+h.answers, k.lost+h.answers, now.Add(Unconfirmed)
	for i := range k.maxBooked {
		k.maxBooked[i] = max(0, k.maxBooked[i]-h.answers)
	}
}

// LastReport returns the worker's last report; ok is false once that has expired.
func (s *Slot) LastReport(now time.Time) (t LoadReport, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.report.last, now.Before(s.report.ends)
}

// CacheTokens returns how many tokens the worker said last that its KV cache has room for; 0: it does not.
func (s *Slot) CacheTokens() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.report.last.Cache
}

// CurrentReport returns what of the worker's report counts now, and its age; ok is false if it has expired. A usage below 0 was not
// reported.
func (s *Slot) CurrentReport(now time.Time) (others int, usage float64, age time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.report
	if !now.Before(k.ends) {
		return 0, -1, 0, false
	}
	return k.otherRequests, k.last.Usage, now.Sub(k.at), true
}
