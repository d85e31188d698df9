package sim

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/internal/testkit/vllmid"
)

type eventKind uint8

const (
	stored eventKind = iota
	removed
	cleared
)

// event is one KV event before it has a wire form.
type event struct {
	kind    eventKind
	hashes  []vllmid.Digest
	parent  vllmid.Digest // stored; "": none
	tokens  []uint32
	keys    [][]vllmid.Key // one per hash
	adapter int            // 0: none
	session string
	salt    string        // of the first block, where it begins a prompt
	items   []vllmid.Item // the prompt's media
	at      int           // the first token's place in the prompt
}

// wire says how a release writes its events: as maps (0.24 on) or arrays, hashes as numbers or as whole digests
// (VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0). Field order and presence are those of recorded frames; full attention only.
type wire struct {
	rules        vllmid.Rules
	blockSize    int
	wholeDigests bool
	adapters     []Adapter
}

const (
	medium   = "GPU"
	specKind = "full_attention"
)

func (w *wire) event(b []byte, e *event) []byte {
	field := func(name string) { b = msgp.AppendString(b, name) }
	if !w.rules.MapEvents {
		field = func(string) {}
	}
	open := func(tag string, fields uint32) { // fields besides the tag
		if w.rules.MapEvents {
			b = msgp.AppendMapHeader(b, fields+1)
		} else {
			b = msgp.AppendArrayHeader(b, fields+1)
		}
		field("type")
		b = msgp.AppendString(b, tag)
	}
	switch e.kind {
	case cleared:
		open("AllBlocksCleared", 0)
	case removed:
		open("BlockRemoved", 3)
		field("block_hashes")
		b = w.hashes(b, e.hashes)
		field("medium")
		b = msgp.AppendString(b, medium)
		field("group_idx")
		b = msgp.AppendUint64(b, 0)
	case stored:
		withSession := w.rules.SessionID && e.session != ""
		if withSession || !w.rules.MapEvents { // arrays always hold the sliding window
			open("BlockStored", 11)
		} else {
			open("BlockStored", 10)
		}
		field("block_hashes")
		b = w.hashes(b, e.hashes)
		field("parent_block_hash")
		if e.parent == "" {
			b = msgp.AppendNil(b)
		} else {
			b = w.hash(b, e.parent)
		}
		field("token_ids")
		b = msgp.AppendArrayHeader(b, uint32(len(e.tokens)))
		for _, t := range e.tokens {
			b = msgp.AppendUint64(b, uint64(t))
		}
		field("block_size")
		b = msgp.AppendUint64(b, uint64(w.blockSize))
		field("lora_id")
		if e.adapter == 0 {
			b = msgp.AppendNil(b)
		} else {
			b = msgp.AppendUint64(b, uint64(e.adapter))
		}
		field("medium")
		b = msgp.AppendString(b, medium)
		field("lora_name")
		if e.adapter == 0 {
			b = msgp.AppendNil(b)
		} else {
			b = msgp.AppendString(b, w.adapters[e.adapter-1].Name)
		}
		field("extra_keys")
		b = msgp.AppendArrayHeader(b, uint32(len(e.keys)))
		for _, keys := range e.keys {
			b = extraKeys(b, keys)
		}
		field("group_idx")
		b = msgp.AppendUint64(b, 0)
		field("kv_cache_spec_kind")
		b = msgp.AppendString(b, specKind)
		if !w.rules.MapEvents {
			b = msgp.AppendNil(b)
		}
		if withSession {
			field("session_id")
			b = msgp.AppendString(b, e.session)
		}
	}
	return b
}

func (w *wire) hashes(b []byte, hashes []vllmid.Digest) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(hashes)))
	for _, h := range hashes {
		b = w.hash(b, h)
	}
	return b
}

func (w *wire) hash(b []byte, h vllmid.Digest) []byte {
	if w.wholeDigests {
		return msgp.AppendBytes(b, []byte(h))
	}
	return msgp.AppendUint64(b, h.Uint64())
}

// extraKeys writes keys as every release shows them, untagged: a name, [identifier, offset], a salt.
func extraKeys(b []byte, keys []vllmid.Key) []byte {
	if keys == nil {
		return msgp.AppendNil(b)
	}
	b = msgp.AppendArrayHeader(b, uint32(len(keys)))
	for _, k := range keys {
		if k.Kind != vllmid.KeyMedia {
			b = msgp.AppendString(b, k.Text)
			continue
		}
		b = msgp.AppendString(msgp.AppendArrayHeader(b, 2), k.Text)
		if k.Rel >= 0 {
			b = msgp.AppendUint64(b, uint64(k.Rel)) // the shortest form, as msgspec has it
		} else {
			b = msgp.AppendInt64(b, int64(k.Rel))
		}
	}
	return b
}
