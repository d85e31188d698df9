package sim

import (
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/lab/vllmid"
)

// Engine is whose worker is simulated: whose names, events and endpoints. The cache and the scheduler are the same in all,
// but only vLLM tells each physical copy of a block.
type Engine string

// The engines. SGLang acts as 0.5.23, or as 0.5.20 where that is the Version; TensorRT-LLM as 1.3.
const (
	VLLM       Engine = "vllm"
	SGLang     Engine = "sglang"
	TRTLLM     Engine = "trtllm"     // events drained by POST /kv_cache_events
	TRTLLMZMQ  Engine = "trtllm-zmq" // events on ZeroMQ, as its V2 manager sends them
	Standalone Engine = "standalone" // as in NVIDIA's standalone router example: events and load on ZeroMQ, no replay
)

// form is how an engine writes one event into a batch.
type form interface {
	event(b []byte, e *event) []byte
}

func (w *Worker) form() form {
	switch c := &w.cfg; c.Engine {
	case SGLang:
		return sglangForm{c.BlockSize, c.Adapters, c.Version == oldSGLang}
	case TRTLLMZMQ, Standalone:
		return trtllmForm{c.BlockSize, c.Engine == Standalone}
	}
	return &wire{rules: w.rules, groups: w.cfg.Groups, wholeDigests: w.cfg.WholeDigests, adapters: w.cfg.Adapters}
}

// batchOf encodes what one step published: [timestamp, events, rank].
func batchOf(f form, events []event, rank int, now time.Time) []byte {
	b := msgp.AppendArrayHeader(make([]byte, 0, 256), 3)
	b = msgp.AppendFloat64(b, float64(now.UnixNano())/1e9)
	b = msgp.AppendArrayHeader(b, uint32(len(events)))
	for i := range events {
		b = f.event(b, &events[i])
	}
	return msgp.AppendUint64(b, uint64(rank))
}

// inMedium finds the medium at token k of the event, and the token's number within it.
func (e *event) inMedium(k int) (it *vllmid.Item, at int) {
	for i := range e.items {
		it := &e.items[i]
		if at := e.at + k - it.Offset; at >= 0 && at < it.Length {
			return it, at
		}
	}
	return nil, 0
}

// fields writes a map; each value is one that msgp knows. nil stands for null, absent for no field at all.
type fields []any

type absent struct{}

func (f fields) append(b []byte) []byte {
	n := 0
	for i := 1; i < len(f); i += 2 {
		if f[i] != (absent{}) {
			n++
		}
	}
	b = msgp.AppendMapHeader(b, uint32(n))
	for i := 0; i+1 < len(f); i += 2 {
		if f[i+1] != (absent{}) {
			b, _ = msgp.AppendIntf(msgp.AppendString(b, f[i].(string)), f[i+1])
		}
	}
	return b
}

// numbers are block hashes as signed or unsigned numbers.
func numbers(hashes []vllmid.Digest, signed bool) (out []any) {
	for _, h := range hashes {
		out = append(out, number64(h, signed))
	}
	return out
}

func number64(h vllmid.Digest, signed bool) any {
	switch {
	case h == "":
		return nil
	case signed:
		return int64(h.Uint64())
	}
	return h.Uint64()
}

// oldSGLang is the release of SGLang whose images have one pad, whose events do not name adapters, and which has /get_server_info,
// without a part on events, and no topics in replays.
const oldSGLang = "0.5.20"

// SGLang: the ids in its cache, with an image's pads in the place of its tokens.
type sglangForm struct {
	blockSize int
	adapters  []Adapter
	old       bool
}

func (f sglangForm) event(b []byte, e *event) []byte {
	switch {
	case e.kind == cleared:
		return fields{"type", "AllBlocksCleared"}.append(b)
	case e.kind == removed:
		return fields{"type", "BlockRemoved", "block_hashes", numbers(e.hashes, true), "medium", "GPU"}.append(b)
	}
	var ids []any
	for k, t := range e.tokens {
		if it, at := e.inMedium(k); it != nil && f.old {
			ids = append(ids, 1_000_000+hex64(it.Identifier)%(1<<30))
		} else if it != nil {
			ids = append(ids, sglangPads(it.Identifier)[at%4])
		} else {
			ids = append(ids, uint64(t))
		}
	}
	var adapter, id, salt any = absent{}, nil, absent{}
	if e.adapter > 0 {
		adapter, id = f.adapters[e.adapter-1].Name, e.adapter
	}
	if f.old {
		adapter = absent{}
	}
	if e.salt != "" {
		salt = e.salt
	}
	return fields{"type", "BlockStored", "block_hashes", numbers(e.hashes, true), "parent_block_hash",
		number64(e.parent, true), "token_ids", ids,
		"block_size", f.blockSize, "lora_id", id, "medium", "GPU", "cache_salt", salt, "lora_name", adapter}.append(b)
}

// TensorRT-LLM on ZeroMQ: of an image's tokens the first is its digest, and what follows is numbered from the vocabulary's
// end on. The standalone example leaves the ids as they are and names the images of each block beside them.
type trtllmForm struct {
	blockSize  int
	standalone bool
}

func (f trtllmForm) event(b []byte, e *event) []byte {
	switch e.kind {
	case cleared:
		return fields{"type", "AllBlocksCleared"}.append(b)
	case removed:
		return fields{"type", "BlockRemoved", "block_hashes", numbers(e.hashes, !f.standalone)}.append(b)
	}
	var ids, keys []any
	images := false
	for k, t := range e.tokens {
		if k%f.blockSize == 0 {
			keys = append(keys, nil)
		}
		it, at := e.inMedium(k)
		images = images || it != nil
		first := it != nil && (k%f.blockSize == 0 || at == 0)
		list, _ := keys[len(keys)-1].([]any)
		switch {
		case it == nil || f.standalone:
			ids = append(ids, uint64(t))
		case at == 0:
			ids = append(ids, it.Identifier)
		default: // t is the vocabulary's size and one
			ids = append(ids, uint64(t)-1+uint64(at))
		}
		switch {
		case first && f.standalone:
			keys[len(keys)-1] = append(list, map[string]any{"mm_hash": hex64(it.Identifier),
				"offsets": []any{[]any{it.Offset - e.at, it.Offset + it.Length - e.at}}})
		case first:
			keys[len(keys)-1] = append(list, map[string]any{"type": "mm_key", "hash": it.Identifier, "start_offset": at})
		}
	}
	if !f.standalone {
		for i := range keys {
			if keys[i] == nil {
				keys[i] = []any{}
			}
		}
		return fields{"type", "BlockStored", "block_hashes", numbers(e.hashes, true), "parent_block_hash",
			number64(e.parent, true), "token_ids", ids,
			"block_size", f.blockSize, "lora_id", nil, "medium", "GPU", "mm_keys", keys}.append(b)
	}
	var infos, parent any = absent{}, absent{}
	if images {
		for i := range keys {
			if keys[i] != nil {
				keys[i] = map[string]any{"mm_objects": keys[i]}
			}
		}
		infos = keys
	}
	if e.parent != "" {
		parent = e.parent.Uint64()
	}
	return fields{"type", "BlockStored", "block_hashes", numbers(e.hashes, false), "token_ids", ids, "block_size", f.blockSize,
		"parent_block_hash", parent, "block_mm_infos", infos}.append(b)
}
