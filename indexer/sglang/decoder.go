// Package sglang reads the KV events of SGLang 0.5.6 to 0.5.23.
//
// The frame is vLLM's (package wire): a msgpack array [time, [event, …], rank]. An event is an array, tag first (up to
// 0.5.19), or a map with a "type" (from 0.5.20); fields came with the releases and unknown ones are passed over:
//
//	BlockStored   block_hashes parent_block_hash token_ids block_size lora_id | medium (0.5.9) |
//	              maps: cache_salt session_id (0.5.20) lora_name (0.5.22)
//	BlockRemoved  block_hashes | medium
//	AllBlocksCleared
//
// What is SGLang's own: the ids are those of its cache, with pads of up to 63 bits in place of a picture's tokens, and no
// other name of the picture is told, so blocks are keyed by ids as sent (package block, Wide). An event covers one page up
// to 0.5.17, a run of them later. EAGLE speculation sends each token as a pair with the next. extra_key sets caches apart
// but is told by no release, nor is an adapter before 0.5.22, nor a salt before 0.5.20: the request side gives no credit
// there. The option "format: dynamo" changes hashes only, which are handles here.
package sglang

import (
	"fmt"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/indexer/event"
	"github.com/sightline-router/sightline/indexer/wire"
)

// Stats counts what a Decoder met since it was made.
type Stats struct {
	Events      uint64 // events of a known type
	Blocks      uint64 // blocks stored, hashed
	Unknown     uint64 // events of a type that is not known; passed over
	Bad         uint64 // events that could not be read; passed over, the rest of the batch is used
	Pairs       uint64 // stored events of pairs of tokens (EAGLE)
	UnnamedLoRA uint64 // stored events with an adapter's number but not its name
}

// FirstPad is where pads begin (since 0.5.9): no vocabulary that SGLang takes reaches it.
const FirstPad = 1_000_000

// Decoder reads the payloads of one worker-rank. The zero value is ready. Not safe for concurrent use: it reuses its
// memory.
type Decoder struct {
	// Keep makes stored events carry tokens and the session id, for audit. Ids that do not fit are shown as 1<<32 - 1.
	Keep bool
	// Pad, if set, is told the pads of stored events, each at least once a run: it finds out by which fingerprint a
	// worker names pictures (mmhash.Live.SawPad).
	Pad func(id uint64)

	stats    Stats
	events   []event.Event
	handles  []uint64
	ids      []uint64
	locals   []uint64
	tokens   []uint32
	scratch  []byte
	loraName string
	loraSeed uint64
	f        fields // of the event being read
}

// fields are the raw values of one event, whatever its form.
type fields struct {
	tag                         []byte
	firstHandle, firstID        int
	parent                      uint64
	hasParent, pairs, hasLoRAID bool
	blockSize, loraID           int
	medium, lora, salt, session []byte
}

// Stats returns the counts so far.
func (d *Decoder) Stats() Stats { return d.stats }

// Decode reads one payload. The batch and everything it points to are good until the next call. An error means that the
// payload is cut or no batch at all: then no event of it is returned, because what is missing may be a removal. One event
// that cannot be read is only counted.
//
// Cost: about 0.1 µs a block of 16 tokens, 15 ns one of a single token; nothing is allocated once the arenas have grown.
func (d *Decoder) Decode(payload []byte) (event.Batch, error) {
	d.events, d.tokens = reuse(d.events), reuse(d.tokens)
	d.handles, d.locals, d.ids = reuse(d.handles), reuse(d.locals), reuse(d.ids)
	batch, err := wire.Batch(payload, d.oneEvent)
	if err != nil {
		return batch, fmt.Errorf("sglang: %w", err)
	}
	batch.Events = d.events
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
	handles, locals, tokens, events := len(d.handles), len(d.locals), len(d.tokens), len(d.events)
	d.f = fields{firstHandle: handles, firstID: len(d.ids)}
	rest, err := d.read(b)
	if err == nil {
		err = d.emit()
	}
	d.ids = d.ids[:d.f.firstID]
	if err != nil {
		d.handles, d.locals, d.tokens, d.events = d.handles[:handles], d.locals[:locals], d.tokens[:tokens], d.events[:events]
		d.stats.Bad++
	}
	return rest, err
}

// read fills in d.f from either form; of an event of an unknown type only its tag.
func (d *Decoder) read(b []byte) (rest []byte, err error) {
	whole := b
	switch msgp.NextType(b) {
	case msgp.MapType:
		n, b, err := msgp.ReadMapHeaderBytes(b)
		if err != nil {
			return b, err
		}
		for range n {
			var key []byte
			if key, b, err = msgp.ReadMapKeyZC(b); err != nil {
				return b, err
			}
			if b, err = d.field(fieldOf(key), b); err != nil {
				return b, fmt.Errorf("%.40q: %w", key, err)
			}
			if d.f.tag != nil && !known(d.f.tag) {
				return msgp.Skip(whole)
			}
		}
		if d.f.tag == nil {
			return b, fmt.Errorf("map without a type")
		}
		return b, nil
	case msgp.ArrayType:
		n, b, err := msgp.ReadArrayHeaderBytes(b)
		if err != nil {
			return b, err
		}
		order := storedOrder
		for i := range int(n) {
			at := ignored
			if i < len(order) {
				at = order[i]
			}
			if b, err = d.field(at, b); err != nil {
				return b, fmt.Errorf("field %d: %w", i, err)
			}
			if i > 0 {
				continue
			}
			switch string(d.f.tag) {
			case "BlockStored":
			case "BlockRemoved":
				order = removedOrder
			case "AllBlocksCleared":
				order = nil
			default:
				return msgp.Skip(whole)
			}
		}
		if n == 0 {
			return b, fmt.Errorf("empty array")
		}
		return b, nil
	}
	return b, fmt.Errorf("want a map or an array, got %s", msgp.NextType(b))
}

func known(tag []byte) bool {
	switch string(tag) {
	case "BlockStored", "BlockRemoved", "AllBlocksCleared":
		return true
	}
	return false
}

type field uint8

const (
	ignored field = iota
	eventType
	blockHashes
	parentHash
	tokenIDs
	blockSize
	loraID
	medium
	cacheSalt
	sessionID
	loraName
)

var (
	storedOrder  = []field{eventType, blockHashes, parentHash, tokenIDs, blockSize, loraID, medium}
	removedOrder = []field{eventType, blockHashes, medium}
)

func fieldOf(key []byte) field {
	switch string(key) {
	case "type":
		return eventType
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
	case "cache_salt":
		return cacheSalt
	case "session_id":
		return sessionID
	case "lora_name":
		return loraName
	}
	return ignored
}

func (d *Decoder) field(at field, b []byte) (rest []byte, err error) {
	f := &d.f
	switch at {
	case eventType:
		f.tag, rest, err = wire.ReadText(b)
	case blockHashes:
		d.handles, rest, err = wire.AppendHashes(d.handles[:f.firstHandle], b)
	case parentHash:
		if len(b) > 0 && b[0] == wire.Nil {
			return b[1:], nil
		}
		f.parent, rest, err = wire.ReadHash(b)
		f.hasParent = err == nil
	case tokenIDs:
		rest, err = d.tokenIDs(b)
	case blockSize:
		f.blockSize, _, rest, err = wire.ReadInt(b)
	case loraID:
		f.loraID, f.hasLoRAID, rest, err = wire.ReadInt(b)
	case medium:
		f.medium, rest, err = wire.ReadText(b)
	case cacheSalt:
		f.salt, rest, err = wire.ReadText(b)
	case loraName:
		f.lora, rest, err = wire.ReadText(b)
	case sessionID:
		f.session, rest, err = wire.ReadTextIfAny(b)
	default:
		rest, err = msgp.Skip(b)
	}
	return rest, err
}

// tokenIDs reads ids, or pairs of them: of pairs the first of each and the second of the last, if they are a sequence.
func (d *Decoder) tokenIDs(b []byte) ([]byte, error) {
	f := &d.f
	n, b, err := wire.ArrayHeader(b)
	if err != nil {
		return b, err
	}
	d.ids, f.pairs = d.ids[:f.firstID], false
	var id, next uint64
	for i := range n {
		pair := msgp.NextType(b) == msgp.ArrayType
		if i == 0 {
			f.pairs = pair
		}
		if pair != f.pairs {
			return b, fmt.Errorf("token ids and pairs of them, mixed")
		}
		if !pair {
			if id, b, err = wire.ReadWide(b); err != nil {
				return b, err
			}
			d.ids = append(d.ids, id)
			continue
		}
		size, rest, err := wire.ArrayHeader(b)
		if err == nil && size != 2 {
			err = fmt.Errorf("token id: want a pair, got %d", size)
		}
		if err == nil {
			id, rest, err = wire.ReadWide(rest)
		}
		if err != nil {
			return b, err
		}
		if i > 0 && id != next {
			return b, fmt.Errorf("pairs of tokens that are no sequence")
		}
		if next, b, err = wire.ReadWide(rest); err != nil {
			return b, err
		}
		d.ids = append(d.ids, id)
	}
	if f.pairs {
		d.ids = append(d.ids, next)
	}
	return b, nil
}
