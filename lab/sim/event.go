package sim

import (
	"cmp"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/lab/vllmcache"
	"github.com/sightline-router/sightline/lab/vllmid"
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
	group   int
	size    int // stored: tokens a block; 0: the group's
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
// (VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0). Field order and presence are those of recorded frames.
type wire struct {
	rules        vllmid.Rules
	groups       []vllmcache.Group
	wholeDigests bool
	adapters     []Adapter
}

const medium = "GPU"

var specKinds = map[vllmcache.Kind]string{vllmcache.Full: "full_attention", vllmcache.Window: "sliding_window",
	vllmcache.Chunk: "chunked_local_attention", vllmcache.State: "mamba"}

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
		b = msgp.AppendUint64(b, uint64(e.group))
	case stored:
		group := w.groups[e.group]
		withSession, window := w.rules.SessionID && e.session != "", group.Kind == vllmcache.Window || !w.rules.MapEvents // arrays always hold it
		noKeys, n := len(e.keys) == 0 && w.rules.MapEvents, uint32(10)
		for _, has := range []bool{withSession, window} {
			if has {
				n++
			}
		}
		if noKeys {
			n--
		}
		open("BlockStored", n)
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
		b = msgp.AppendUint64(b, uint64(cmp.Or(e.size, group.BlockSize)))
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
		if !noKeys {
			field("extra_keys")
			b = msgp.AppendArrayHeader(b, uint32(len(e.keys)))
			for _, keys := range e.keys {
				b = extraKeys(b, keys)
			}
		}
		field("group_idx")
		b = msgp.AppendUint64(b, uint64(e.group))
		field("kv_cache_spec_kind")
		b = msgp.AppendString(b, specKinds[group.Kind])
		if group.Kind == vllmcache.Window {
			field("kv_cache_spec_sliding_window")
			b = msgp.AppendUint64(b, uint64(group.Window))
		} else if window {
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
