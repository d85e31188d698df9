package sim

import (
	"encoding/json"
	"net/http"
	"sync"
)

// drain keeps one rank's events until a client asks: TensorRT-LLM's POST /kv_cache_events gives what there is, once, and
// there is no replay. Numbers start at 0 with every life, with the event that tells of the cache itself.
type drain struct {
	rank, ranks, blockSize, blocks int

	mu      sync.Mutex
	next    uint64
	pending []any
	asked   bool
}

func (d *drain) start() {
	d.put(map[string]any{"type": "created", "num_blocks_per_cache_level": []int{d.blocks, 0}})
}
func (d *drain) stop() {}

func (d *drain) told() (uint64, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.next, d.asked
}

func (d *drain) put(data any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := map[string]any{"event_id": d.next, "window_size": 32768, "data": data}
	if d.ranks > 1 {
		e["attention_dp_rank"] = d.rank
	}
	d.next++
	d.pending = append(d.pending, e)
}

func (d *drain) publish(events []event) {
	for i := range events {
		e := &events[i]
		if e.kind == removed {
			d.put(map[string]any{"type": "removed", "block_hashes": numbers(e.hashes, false)})
			continue
		}
		var blocks []any
		for n, h := range e.hashes {
			tokens, keys := []any{}, []any{}
			for k := n * d.blockSize; k < (n+1)*d.blockSize; k++ {
				tokens = append(tokens, map[string]any{"type": "unique_token", "token_id": e.tokens[k], "token_extra_id": 0})
				if it, at := e.inMedium(k); it != nil && (at == 0 || k == n*d.blockSize) {
					keys = append(keys, map[string]any{"type": "mm_key", "hash": it.Identifier, "start_offset": at})
				}
			}
			b := map[string]any{"type": "stored_block", "block_hash": h.Uint64(), "tokens": tokens, "cache_level": 0,
				"priority": 35, "mm_keys": keys}
			if e.salt != "" {
				b["cache_salt"] = e.salt
			}
			blocks = append(blocks, b)
		}
		d.put(map[string]any{"type": "stored", "parent_hash": number64(e.parent, false), "blocks": blocks})
	}
}

// drained answers with what all ranks have, and takes it away.
func (w *Worker) drained(rw http.ResponseWriter, _ *http.Request) {
	all := []any{}
	for _, e := range w.engines {
		d := e.pub.(*drain)
		d.mu.Lock()
		all = append(all, d.pending...)
		d.pending, d.asked = nil, true
		d.mu.Unlock()
	}
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(all)
}
