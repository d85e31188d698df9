package fleet

import (
	"encoding/json"
	"fmt"
	"time"
)

// A worker's report about its load corrects our count but never replaces it: we know our bookings before the worker has the
// requests, and its report is old. Certain are only the requests that it reports and that cannot be ours: those above the most
// that were booked at once while its numbers were made.
//
//	Told.Old ──────────▶ now        Told.Lasts
//	│ the most booked    │ Tell ───────────────▶ the correction ends, unless renewed
//
// A request is booked before it is sent and until its end is reported, so what a worker has of ours at any moment is booked at
// that moment. A worker that reports fewer than were booked changes nothing.

// Told is what a worker reports about its own load.
type Told struct {
	Running, Waiting int           // requests, from all senders; Running below 0: not reported
	Usage            float64       // share of the KV cache in use, 0 to 1; below 0: not reported
	Old              time.Duration // maximum age of the numbers
	Lasts            time.Duration // how long they stay valid
}

// ParseTold parses a load message of TensorRT-LLM in NVIDIA's standalone router example, which is JSON. Waiting are queued or
// paused requests; it does not report running ones.
func ParseTold(message []byte) (Told, error) {
	m := struct {
		Waiting int     `json:"num_waiting_reqs"`
		Usage   float64 `json:"kv_cache_usage"`
	}{-1, -1}
	if err := json.Unmarshal(message, &m); err != nil || m.Waiting < 0 || m.Waiting > 1<<20 || !(m.Usage >= 0 && m.Usage <= 1) {
		return Told{}, fmt.Errorf("load: want {\"num_waiting_reqs\": a count, \"kv_cache_usage\": 0 to 1} in %d bytes", len(message))
	}
	return Told{Running: -1, Waiting: m.Waiting, Usage: m.Usage}, nil
}

// told is a slot's correction and the data to compute it.
type told struct {
	others   int // requests that the worker reported and that were not booked here
	lost     int // the part of others that replicas had booked that are gone
	lostEnds time.Time
	word     Told
	at, ends time.Time // at zero: it never reported
	most     [2]int    // maximum of requests booked at once: since turned, and in the period before
	turned   time.Time
}

// Tell applies the worker's report on its load at now. The zero Told withdraws it.
func (s *Slot) Tell(t Told, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.told
	if now.Sub(k.turned) >= t.Old {
		k.most, k.turned = [2]int{s.inflight, k.most[0]}, now
	}
	k.others, k.word, k.at, k.ends = max(0, max(0, t.Running)+t.Waiting-max(k.most[0], k.most[1])), t, now, now.Add(t.Lasts)
	k.lost = min(k.lost, k.others)
}

// end releases another replica's hold. If the replica is lost the worker most likely still has the request. It then counts as
// another sender's, which takes a place of max_in_flight all the same, until the worker's reports show fewer, for unconfirmed at most.
func (h *hold) end(now time.Time, lost bool) {
	h.release(now)
	if !lost {
		return
	}
	s := h.slot
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.told
	k.others, k.lost, k.lostEnds = k.others+h.answers, k.lost+h.answers, now.Add(unconfirmed)
	for i := range k.most {
		k.most[i] = max(0, k.most[i]-h.answers)
	}
}

// Word returns the worker's last report; ok is false once that has expired.
func (s *Slot) Word(now time.Time) (t Told, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told.word, now.Before(s.told.ends)
}

// Told returns what of the worker's report counts now, and its age; ok is false if it has expired. A usage below 0 was not
// reported.
func (s *Slot) Told(now time.Time) (others int, usage float64, age time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.told
	if !now.Before(k.ends) {
		return 0, -1, 0, false
	}
	return k.others, k.word.Usage, now.Sub(k.at), true
}
