// Package vllm reads the KV events of vLLM 0.10.2 to 0.33.
//
// A payload is a msgpack array [time, [event, …], rank]. An event is an array, tag first (up to 0.23), or a map with a
// "type" (from 0.24); fields came with the releases and unknown ones are passed over:
//
//	BlockStored   block_hashes parent_block_hash token_ids block_size lora_id | medium (0.10.2) | lora_name (0.14) |
//	              extra_keys (0.17) | group_idx (0.20) | kv_cache_spec_kind, …_sliding_window (0.22) | maps: locality,
//	              ownership, session_id, lookahead_token_ids
//	BlockRemoved  block_hashes | medium | group_idx
//	AllBlocksCleared
//
// The tokens become local hashes at once. Only groups whose blocks prove a full prefix are let through (see indexable).
package vllm

import (
	"fmt"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/indexer/event"
	"github.com/sightline-router/sightline/indexer/wire"
)

// Stats counts what a Decoder met since it was made.
type Stats struct {
	Events       uint64 // events of a known type
	Blocks       uint64 // blocks stored, hashed
	Unknown      uint64 // events of a type that is not known; passed over
	Bad          uint64 // events that could not be read; passed over, the rest of the batch is used
	Placeholders uint64 // stored events without tokens
	OtherGroup   uint64 // events of groups that prove no full prefix (sliding window, mamba, …)
	MediaUnknown uint64 // stored events without extra keys
	UnnamedLoRA  uint64 // stored events with an adapter's number but not its name (before 0.14)
	UnknownKeys  uint64 // extra keys of a form that is not known: such blocks match no request
}

// Decoder reads the payloads of one worker-rank. The zero value is ready. Not safe for concurrent use: it reuses its
// memory, and learns from stored events which groups count.
type Decoder struct {
	// Keep makes stored events carry tokens, media names and the session id, for audit and learning.
	Keep bool

	stats   Stats
	events  []event.Event
	handles []uint64
	locals  []uint64
	tokens  []uint32
	media   []event.Mention
	f       fields // of the event being read
	h       hasher
	groups  [maxGroups]groupState
}

// fields are the raw values of one event, whatever its form.
type fields struct {
	tag                          []byte
	firstHandle, firstToken      int
	parent                       uint64
	hasParent                    bool
	blockSize                    int
	medium, locality, lora, kind []byte
	loraID                       int
	hasLoRAID                    bool
	extra                        []byte // the whole extra_keys value; nil if the event has none
	bareNames                    bool   // of a release whose extra keys may hold media as bare names
	group                        int    // -1: not told
	session                      []byte
}

// Stats returns the counts so far.
func (d *Decoder) Stats() Stats { return d.stats }

// Decode reads one payload. The batch and everything it points to are good until the next call; with Keep, Mention
// names also point into payload. An error means that the payload is cut or no batch at all: then no event of it is
// returned, because what is missing may be a removal. One event that cannot be read is only counted.
//
// Cost: about 0.2 µs a block of 16 tokens, nothing allocated once the arenas have grown.
func (d *Decoder) Decode(payload []byte) (event.Batch, error) {
	d.events, d.media = reuse(d.events), reuse(d.media)
	d.handles, d.locals, d.tokens = reuse(d.handles), reuse(d.locals), reuse(d.tokens)

	before := d.stats
	batch, err := wire.Batch(payload, d.oneEvent)
	if err != nil {
		return batch, fmt.Errorf("vllm: %w", err)
	}
	batch.Events = d.events
	batch.Unknown, batch.Bad = d.stats.Unknown-before.Unknown, d.stats.Bad-before.Bad
	return batch, nil
}

// reuse empties an arena, and lets go of one that a single huge batch has blown up.
func reuse[T any](arena []T) []T {
	if cap(arena) > 1<<20 {
		return nil
	}
	return arena[:0]
}

// oneEvent reads one event, and leaves nothing of one that cannot be read.
func (d *Decoder) oneEvent(b []byte) ([]byte, error) {
	handles, locals, tokens, media, events := len(d.handles), len(d.locals), len(d.tokens), len(d.media), len(d.events)
	rest, err := d.event(b)
	if err != nil {
		d.handles, d.locals, d.tokens = d.handles[:handles], d.locals[:locals], d.tokens[:tokens]
		d.media, d.events = d.media[:media], d.events[:events]
		d.stats.Bad++
	}
	return rest, err
}

// event reads one event, in either form, and appends what it says to d.events.
func (d *Decoder) event(b []byte) (rest []byte, err error) {
	d.f = fields{group: -1, firstHandle: len(d.handles), firstToken: len(d.tokens)}
	switch msgp.NextType(b) {
	case msgp.MapType:
		rest, err = d.mapEvent(b)
	case msgp.ArrayType:
		rest, err = d.arrayEvent(b)
	default:
		return b, fmt.Errorf("want a map or an array, got %s", msgp.NextType(b))
	}
	if err != nil {
		return b, err
	}
	switch string(d.f.tag) {
	case "BlockStored":
		err = d.stored()
	case "BlockRemoved":
		d.removed()
	case "AllBlocksCleared":
		d.events = append(d.events, event.Event{Kind: event.Cleared})
	default:
		d.stats.Unknown++
		return rest, nil
	}
	if err == nil {
		d.stats.Events++
	}
	return rest, err
}

func known(tag []byte) bool {
	switch string(tag) {
	case "BlockStored", "BlockRemoved", "AllBlocksCleared":
		return true
	}
	return false
}

// mapEvent reads the form of 0.24 and later. Keys may stand in any order.
func (d *Decoder) mapEvent(b []byte) ([]byte, error) {
	start := b
	n, b, err := msgp.ReadMapHeaderBytes(b)
	if err != nil {
		return b, err
	}
	for range n {
		var key []byte
		if key, b, err = msgp.ReadMapKeyZC(b); err != nil {
			return b, err
		}
		if string(key) == "type" {
			if d.f.tag, b, err = wire.ReadText(b); err != nil {
				return b, fmt.Errorf("type: %w", err)
			}
			if !known(d.f.tag) {
				return msgp.Skip(start)
			}
			continue
		}
		if b, err = d.field(fieldOf(key), b); err != nil {
			return b, fmt.Errorf("%.40q: %w", key, err)
		}
	}
	if d.f.tag == nil {
		return b, fmt.Errorf("map without a type")
	}
	return b, nil
}

// arrayEvent reads the form up to 0.23: fields by position, the later ones missing in earlier releases.
func (d *Decoder) arrayEvent(b []byte) ([]byte, error) {
	start := b
	n, b, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return b, err
	}
	if n == 0 {
		return b, fmt.Errorf("empty array")
	}
	if d.f.tag, b, err = wire.ReadText(b); err != nil {
		return b, fmt.Errorf("tag: %w", err)
	}
	var order []field
	switch string(d.f.tag) {
	case "BlockStored":
		order = storedOrder
	case "BlockRemoved":
		order = removedOrder
	case "AllBlocksCleared":
	default:
		return msgp.Skip(start)
	}
	for i := range int(n) - 1 {
		at := ignored
		if i < len(order) {
			at = order[i]
		}
		if b, err = d.field(at, b); err != nil {
			return b, fmt.Errorf("field %d: %w", i+1, err)
		}
	}
	// 0.17 and 0.18, and 0.19 which cannot be told from them, end at extra_keys.
	d.f.bareNames = string(d.f.tag) == "BlockStored" && n == 9
	return b, nil
}

type field uint8

const (
	ignored field = iota
	blockHashes
	parentHash
	tokenIDs
	blockSize
	loraID
	medium
	loraName
	extraKeys
	groupIdx
	specKind
	locality
	sessionID
)

var (
	storedOrder = []field{blockHashes, parentHash, tokenIDs, blockSize, loraID, medium, loraName, extraKeys, groupIdx,
		specKind, ignored}
	removedOrder = []field{blockHashes, medium, groupIdx}
)

func fieldOf(key []byte) field {
	switch string(key) {
	case "block_hashes":
		return blockHashes
	case "parent_block_hash":
		return parentHash
	case "token_ids":
		return tokenIDs
	case "block_size":
		return blockSize
	case "lora_id":
		return loraID
	case "medium":
		return medium
	case "lora_name":
		return loraName
	case "extra_keys":
		return extraKeys
	case "group_idx":
		return groupIdx
	case "kv_cache_spec_kind":
		return specKind
	case "locality":
		return locality
	case "session_id":
		return sessionID
	}
	return ignored
}

func (d *Decoder) field(at field, b []byte) (rest []byte, err error) {
	f := &d.f
	var ok bool
	switch at {
	case blockHashes:
		d.handles, rest, err = wire.AppendHashes(d.handles[:f.firstHandle], b)
	case parentHash:
		if len(b) > 0 && b[0] == wire.Nil {
			return b[1:], nil
		}
		f.parent, rest, err = wire.ReadHash(b)
		f.hasParent = err == nil
	case tokenIDs:
		d.tokens, rest, err = wire.AppendTokens(d.tokens[:f.firstToken], b)
	case blockSize:
		f.blockSize, _, rest, err = wire.ReadInt(b)
	case loraID:
		f.loraID, f.hasLoRAID, rest, err = wire.ReadInt(b)
	case medium:
		f.medium, rest, err = wire.ReadText(b)
	case loraName:
		f.lora, rest, err = wire.ReadText(b)
	case extraKeys:
		if len(b) > 0 && b[0] == wire.Nil {
			return b[1:], nil
		}
		f.extra, rest, err = wire.Raw(b)
	case groupIdx:
		if f.group, ok, rest, err = wire.ReadInt(b); !ok {
			f.group = -1
		}
	case specKind:
		f.kind, rest, err = wire.ReadText(b)
	case locality:
		f.locality, rest, err = wire.ReadTextIfAny(b)
	case sessionID:
		f.session, rest, err = wire.ReadTextIfAny(b)
	default:
		rest, err = msgp.Skip(b)
	}
	return rest, err
}
