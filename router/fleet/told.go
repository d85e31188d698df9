package fleet

import (
	"encoding/json"
	"fmt"
)

// Told is what a worker says of its own load: TensorRT-LLM's in NVIDIA's standalone router example, as JSON.
type Told struct {
	Waiting int     `json:"num_waiting_reqs"` // requests queued or paused, whoever sent them
	Usage   float64 `json:"kv_cache_usage"`   // share of the KV blocks that are allocated, 0 to 1
}

// ParseTold reads one load message.
func ParseTold(message []byte) (Told, error) {
	t := Told{Waiting: -1, Usage: -1}
	if err := json.Unmarshal(message, &t); err != nil || t.Waiting < 0 || t.Waiting > 1<<20 || !(t.Usage >= 0 && t.Usage <= 1) {
		return Told{}, fmt.Errorf("load: want {\"num_waiting_reqs\": a count, \"kv_cache_usage\": 0 to 1} in %d bytes", len(message))
	}
	return t, nil
}

// Tell takes the worker's word on its load. Requests waiting there that were not booked here come on top of those that
// were: another router's, or what passed by. The zero Told takes it all back.
func (s *Slot) Tell(t Told) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.others, s.usage = max(0, t.Waiting-s.inflight), t.Usage
}
