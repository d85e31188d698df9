package fleet

import (
	"encoding/json"
	"fmt"
	"time"
)

// What a worker tells of its own load corrects ours, and never replaces it: our bookings are known before the worker has the
// request, what it tells is behind. Beyond doubt are only the requests that it tells of and that cannot be ours, which are
// those above the most that were booked here at once while its numbers were made:
//
//	told.Old ──────────▶ now        told.Lasts
//	│ the most booked    │ Tell ───────────────▶ the correction ends, unless it was told anew
//
// A request is booked before it is sent and until its end is reported, so what a worker has of ours at any moment is booked at
// that moment. A worker that tells of fewer than were booked changes nothing.

// Told is what a worker says of its own load.
type Told struct {
	Running, Waiting int           // requests, whoever sent them; Running below 0: it does not say
	Usage            float64       // share of the KV cache in use, 0 to 1; below 0: it does not say
	Old              time.Duration // how long ago the numbers may have been made, at most
	Lasts            time.Duration // for which it is believed
}

// ParseTold reads one load message of TensorRT-LLM in NVIDIA's standalone router example, which is JSON. What waits is queued
// or paused; what runs it does not say.
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

// told is a slot's correction, and what it is compared with.
type told struct {
	others   int // requests that the worker told of and that were not booked here
	word     Told
	at, ends time.Time // at zero: it never told
	most     [2]int    // requests booked at once: since turned, and in the time before that
	turned   time.Time
}

// Tell takes the worker's word on its load, now. The zero Told takes it all back.
func (s *Slot) Tell(t Told, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.told
	if now.Sub(k.turned) >= t.Old {
		k.most, k.turned = [2]int{s.inflight, k.most[0]}, now
	}
	k.others, k.word, k.at, k.ends = max(0, max(0, t.Running)+t.Waiting-max(k.most[0], k.most[1])), t, now, now.Add(t.Lasts)
}

// Word is what the worker told last, as it told it; ok is false once that does not count any more.
func (s *Slot) Word(now time.Time) (t Told, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told.word, now.Before(s.told.ends)
}

// Told gives what of the worker's word counts now, and how old it is; ok is false if nothing does. A usage below 0 was not
// told.
func (s *Slot) Told(now time.Time) (others int, usage float64, age time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.told
	if !now.Before(k.ends) {
		return 0, -1, 0, false
	}
	return k.others, k.word.Usage, now.Sub(k.at), true
}
