// Package trtllm reads the KV events of TensorRT-LLM (1.0 to 1.3) and drains them from trtllm-serve.
//
// There are two forms, distinguished by the first byte. JSON is the answer of POST /kv_cache_events, an array of
//
//	{"event_id": 7, "window_size": 131072, "attention_dp_rank": 0, "layer_group_id": 0, "data": {"type": …}}
//	created   num_blocks_per_cache_level
//	stored    parent_hash, blocks [{block_hash, tokens [{token_id, token_extra_id}], cache_level, mm_keys, cache_salt}]
//	removed   block_hashes
//	updated   block_hash, cache_level {old_value, new_value}, priority
//
// and msgpack is what its ZeroMQ publisher sends, vLLM's maps with mm_keys instead of extra_keys.
//
//	decoder.go  the envelope: numbers, gaps, windows, ranks; created, removed, updated
//	stored.go   blocks → local hashes: one name for each item that touches a block
//	windows.go  the second generation's layer groups with smaller windows
//	v2.go       the second generation's keys: an item's digest among the token ids
//	msgpack.go  the ZeroMQ form;  poll.go the drain
//
// Sources: C++ KVCacheEventManager and KVCacheEventSerializer as of 1.0 to 1.3.0rc27, read, not run.
package trtllm

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/kvevent/wire"
	"github.com/sightline-router/sightline/mmhash/block"
)

// Decoder reads the payloads of one worker-rank. The zero value is ready. Not safe for concurrent use: it reuses its memory, and
// keeps state between payloads: event numbers, windows, the tiers of blocks.
type Decoder struct {
	// BlockSize is the engine's tokens_per_block, until an event with two blocks or more shows it; 0: not known before. Events do not
	// carry it, and a tail block may be shorter.
	BlockSize int
	// Rank is the attention data-parallel rank to read. Events without a rank belong to rank 0.
	Rank int
	// Standalone means that the events come from NVIDIA's standalone router example, which always names images.
	Standalone bool
	// Keep makes stored events carry tokens and media names, for audit and learning.
	Keep bool
	// Secret keys the blocks' hashes.
	Secret *block.Secret

	hash      *block.Key // of the current payload
	out       kvevent.Batch
	a         kvevent.Arena
	f         wire.Fields // the current event, in the ZeroMQ form
	ids       []byte      // its token ids, undecoded
	next      uint64      // the next event number expected
	started   bool
	scope     scope
	room      kvevent.Room // for offGPU and items
	anyStored bool         // something was stored since the last clear
	offGPU    tiers
	s         stored
	items     itemState
	// severalWindows: the model has layers with a smaller window, whose blocks a hit needs too. Not all of what it needs is known.
	severalWindows bool
	groups         wire.Groups // of the ZeroMQ form
	strange        strangeKey  // of the current event (JSON form)
}

// scope identifies one stream of a model with several attention windows. Blocks of the largest window, which no layer outlives,
// prove a full prefix. Among equal windows the lowest layer group is used.
type scope struct {
	window, group  int
	grouped, known bool // grouped: it is of a layer group (V2)
}

func (s scope) better(than scope) bool {
	return !than.known || s.window > than.window || s.window == than.window && s.group < than.group
}

// maxOffGPU bounds the blocks outside the GPU that are tracked. Blocks beyond it count as removed.
const maxOffGPU = 1 << 20

// rememberedBytes is the approximate memory of such a block, and of one with an item before it.
const rememberedBytes = 40

// Decode reads one payload of either form. The batch and what it points to are valid until the next call; with Keep, Mention names
// also point into payload. An error means that the payload is truncated: then none of its events is returned, because a missing one
// may be a removal. An event that cannot be read is only counted.
//
// A gap in the event numbers invalidates everything before it: the batch begins with a Cleared event and is Partial.
func (d *Decoder) Decode(payload []byte) (kvevent.Batch, error) {
	d.a.Reset()
	d.out, d.hash = kvevent.Batch{}, d.Secret.Key()
	var err error
	if len(payload) > 0 && payload[0] >= 0x80 {
		err = d.msgpack(payload)
	} else {
		err = d.json(payload)
	}
	if err != nil {
		return kvevent.Batch{}, fmt.Errorf("trtllm: %w", err)
	}
	// They come last: their places are those of the largest group's blocks, whose events may come later in the payload.
	d.a.Events = append(d.a.Events, d.a.Others...)
	d.out.Events = d.a.Events
	if d.severalWindows {
		d.out.UpperBound, d.out.UpperBoundWhy = true, "its events do not tell all that layers with smaller attention windows need"
	}
	return d.out, nil
}

func (d *Decoder) json(payload []byte) error {
	text := wire.View(payload)
	list := gjson.Parse(text)
	if !gjson.Valid(text) || !list.IsArray() {
		return errors.New("events: want a JSON array, whole")
	}
	var first error
	n := uint64(0)
	list.ForEach(func(_, event gjson.Result) bool {
		before := d.a
		d.strange = ""
		n++
		if err := d.envelope(event); err != nil {
			d.a.Rollback(before)
			d.out.Bad++
			first = cmp.Or(first, err)
		}
		d.out.CountKey(string(d.strange))
		return true
	})
	if n > 0 && d.out.Bad+d.out.Unknown == n {
		d.out.Unread = cmp.Or(first, errUnknownTypes)
	}
	return nil
}

var errUnknownTypes = errors.New("all events are of unknown types (want created, stored, removed, updated)")

// envelope reads one event's frame, checks its number, and reads its data if the event is relevant.
func (d *Decoder) envelope(event gjson.Result) error {
	if !event.IsObject() {
		return errors.New("want an object")
	}
	var id, window, rank, group, data gjson.Result
	event.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "event_id":
			id = v
		case "window_size":
			window = v
		case "attention_dp_rank":
			rank = v
		case "layer_group_id":
			group = v
		case "data":
			data = v
		case "hash_algo":
		default:
			d.strange.found(key.Str)
		}
		return true
	})
	if rank, _ := whole(rank); rank != d.Rank {
		d.strange = ""
		return nil
	}
	at := scope{window: math.MaxInt, known: true} // no window given: full attention
	if n, ok := whole(window); ok {
		at.window = n
	}
	at.group, at.grouped = whole(group)
	if id, ok := number(id); ok {
		d.number(id)
	}
	return d.data(data, at)
}

// The keys that releases send in an event's data and in an mm_key.
var (
	dataKeys = []string{"type", "num_blocks_per_cache_level", "parent_hash", "blocks", "block_hashes", "block_hash",
		"cache_level", "priority"}
	mediaKeys = []string{"type", "hash", "start_offset", "uuid"}
)

// strangeKey is the first key of an event that no release sends; "": there is none.
type strangeKey string

// check looks for a key of an object that is not among the known ones.
func (k *strangeKey) check(object gjson.Result, known []string) {
	object.ForEach(func(key, _ gjson.Result) bool {
		if !slices.Contains(known, key.Str) {
			k.found(key.Str)
		}
		return true
	})
}

func (k *strangeKey) found(key string) { *k = cmp.Or(*k, strangeKey(key), "an empty key") }

// number detects gaps and restarts. Numbers rise by one per rank; missing events cannot be requested again.
func (d *Decoder) number(id uint64) {
	switch {
	case id == 0:
		d.clear() // of a new engine everything is known
		d.out.Partial, d.scope = false, scope{}
	case !d.started:
		d.clear() // the events before this one are unknown
		d.out.Partial = true
	case id != d.next:
		if id > d.next { // otherwise the engine has restarted
			d.out.Gaps++
		}
		d.clear()
		d.out.Partial = true
	}
	d.started, d.next = true, id+1
}

// clear emits Cleared and resets the state.
func (d *Decoder) clear() {
	d.a.Events = append(d.a.Events, kvevent.Event{Kind: kvevent.Cleared})
	d.a.Others = d.a.Others[:0]
	d.forget()
}

func (d *Decoder) forget() {
	d.anyStored = false
	d.room.Give((len(d.offGPU) + len(d.items.lastItem)) * rememberedBytes)
	clear(d.offGPU)
	clear(d.items.lastItem)
}

// Free ends the use of the last batch.
func (d *Decoder) Free() {
	d.a.Free()
	d.s, d.items.digests, d.ids = stored{}, nil, nil
}

// Bound sets the room for what is remembered of earlier payloads. It is called before the first one.
func (d *Decoder) Bound(room kvevent.Room) { d.room = room }

// provesPrefix reports whether a stream is the one that proves full prefixes. A better one replaces it.
func (d *Decoder) provesPrefix(at scope) bool {
	if d.scope == at {
		return true
	}
	d.severalWindows = d.severalWindows || d.scope.known && d.scope.window != at.window
	if !at.better(d.scope) {
		return false
	}
	if d.anyStored {
		d.clear() // drop what was stored for the smaller window
		d.out.Partial = true
	}
	d.scope = at
	return true
}

func (d *Decoder) data(data gjson.Result, at scope) error {
	if !data.IsObject() {
		return errors.New("no data")
	}
	kind := data.Get("type").Str
	switch kind {
	case "created", "stored", "removed", "updated":
	default:
		d.out.Unknown++
		return nil
	}
	if !d.provesPrefix(at) {
		return d.other(kind, data, at)
	}
	d.strange.check(data, dataKeys)
	switch kind {
	case "stored":
		parent, hasParent := blockHash(data.Get("parent_hash"))
		return d.stored(data.Get("blocks"), parent, hasParent)
	case "removed":
		return d.removed(data.Get("block_hashes"))
	case "updated":
		h, ok := blockHash(data.Get("block_hash"))
		if !ok {
			return errors.New("updated: no block_hash")
		}
		d.updated(h, data.Get("cache_level"))
	}
	return nil
}

// removed removes blocks from the tier in which they were last seen, because the event does not name it.
func (d *Decoder) removed(hashes gjson.Result) error {
	if !hashes.IsArray() {
		return errors.New("removed: no block_hashes")
	}
	first, tier := len(d.a.EngineHashes), kvevent.GPU
	flush := func() {
		if len(d.a.EngineHashes) > first {
			d.a.Events = append(d.a.Events, kvevent.Event{Kind: kvevent.Removed, Tier: tier, EngineHashes: kvevent.Tail(d.a.EngineHashes, first)})
		}
		first = len(d.a.EngineHashes)
	}
	hashes.ForEach(func(_, v gjson.Result) bool {
		h, ok := blockHash(v)
		if !ok {
			d.out.Bad++
			return true
		}
		if at := d.offGPU[h]; at != tier { // the zero value is the GPU
			flush()
			tier = at
		}
		drop(d, d.offGPU, h)
		drop(d, d.items.lastItem, h)
		d.a.EngineHashes = append(d.a.EngineHashes, h)
		return true
	})
	flush()
	return nil
}

// updated moves a block between the GPU and other memory. It ignores a change of priority.
func (d *Decoder) updated(engineHash uint64, level gjson.Result) {
	from, hasFrom := whole(level.Get("old_value"))
	to, hasTo := whole(level.Get("new_value"))
	if !hasFrom || !hasTo || from == to {
		return
	}
	d.a.EngineHashes = append(d.a.EngineHashes, engineHash)
	one := kvevent.Tail(d.a.EngineHashes, len(d.a.EngineHashes)-1)
	was, now := tierOf(from), tierOf(to)
	if now == kvevent.GPU {
		drop(d, d.offGPU, engineHash)
	} else if !d.offGPU.set(engineHash, now, d.room) {
		d.a.Events = append(d.a.Events, kvevent.Event{Kind: kvevent.Removed, Tier: was, EngineHashes: one})
		return
	}
	d.a.Events = append(d.a.Events, kvevent.Event{Kind: kvevent.Copied, Tier: now, EngineHashes: one},
		kvevent.Event{Kind: kvevent.Removed, Tier: was, EngineHashes: one})
}

// tiers are where those blocks are that left the GPU.
type tiers map[uint64]kvevent.Tier

// set records that a block lies outside the GPU. It returns false if there is no room for it.
func (t *tiers) set(engineHash uint64, tier kvevent.Tier, room kvevent.Room) bool {
	if *t == nil {
		*t = make(tiers)
	}
	if _, known := (*t)[engineHash]; !known && (len(*t) >= maxOffGPU || !room.Take(rememberedBytes)) {
		return false
	}
	(*t)[engineHash] = tier
	return true
}

// drop forgets what is remembered of a block.
func drop[V any](d *Decoder, of map[uint64]V, engineHash uint64) {
	if _, ok := of[engineHash]; ok {
		delete(of, engineHash)
		d.room.Give(rememberedBytes)
	}
}

// tierOf returns the tier of a cache level: 0 the GPU, 1 host memory; higher ones are read as disk and shared store.
func tierOf(level int) kvevent.Tier { return kvevent.Tier(min(max(level, 0), kvevent.Tiers-1)) }

// number reads a 64-bit integer; a negative one as its two's complement.
func number(v gjson.Result) (n uint64, ok bool) {
	if v.Type != gjson.Number {
		return 0, false
	}
	n, err := strconv.ParseUint(v.Raw, 10, 64)
	if v.Raw[0] == '-' {
		var signed int64
		signed, err = strconv.ParseInt(v.Raw, 10, 64)
		n = uint64(signed)
	}
	return n, err == nil
}

// whole reads a non-negative integer that fits an int; otherwise n is 0.
func whole(v gjson.Result) (n int, ok bool) {
	if u, valid := number(v); valid && int64(u) >= 0 {
		return int(u), true
	}
	return 0, false
}

// blockHash reads a block hash: a number (V1, v2_sha256_64) or 64 hex digits (v2_sha256), of which the first 16 equal that number.
// ok is false for null.
func blockHash(v gjson.Result) (h uint64, ok bool) {
	if v.Type == gjson.String {
		return block.Name64(v.Str), v.Str != ""
	}
	return number(v)
}
