// Package vllm has what differs for vLLM 0.23 to 0.33, and reads its KV events (this file):
//
//	dialect.go, parts.go   how it reads messages
//	names.go               an image's mm_hash
//	rules.go               its defaults and facts by release
//	info.go                how its servers are asked
//	stored.go, groups.go, chains.go   events of stored blocks, and of hybrid models' KV cache groups
//
// A payload is a msgpack array [time, [event, …], rank]. An event is an array, tag first (0.23), or a map with a "type" (from
// 0.24). Unknown fields are skipped and counted:
//
//	BlockStored   block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys group_idx
//	              kv_cache_spec_kind kv_cache_spec_sliding_window | maps: locality ownership session_id lookahead_token_ids
//	BlockRemoved  block_hashes | medium | group_idx
//	AllBlocksCleared
//
// The decoder hashes tokens into local hashes while it reads. The blocks of one KV cache group, which sees all tokens, have content;
// those of a hybrid model's other groups follow by their hashes alone (groups.go).
package vllm

import (
	"fmt"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/kvevent/wire"
	"github.com/sightline-router/sightline/mmhash/block"
)

// Decoder reads the payloads of one worker-rank. The zero value is ready. Not safe for concurrent use: it reuses its memory, and
// learns from stored events which KV cache groups the model has.
type Decoder struct {
	// Keep makes stored events carry tokens and media names, for the audit.
	Keep bool
	// Secret keys the blocks' hashes.
	Secret *block.Secret

	a      kvevent.Arena
	f      wire.Fields // the current event
	h      hasher
	groups groups
	room   kvevent.Room

	chains   chains
	gone     []uint64 // blocks of the chains to remove
	lone     int      // block size of a group whose event in this payload would be beside one of the main group; 0: none
	unplaced uint64   // kept blocks in this payload whose place is not known
}

// Decode reads one payload. The batch and everything it points to are valid until the next call; with Keep, Mention names also
// point into payload. An error means that the payload is truncated or not a batch: then no event of it is returned, because a
// missing one may be a removal. An event that cannot be read is only counted.
//
// Cost: about 0.2 µs per block of 16 tokens; nothing is allocated once the memory has grown.
func (d *Decoder) Decode(payload []byte) (kvevent.Batch, error) {
	batch, err := d.decode(payload)
	if err == nil && d.lone > 0 && d.groups.main == 0 && d.chains.unit == 0 { // there is no main group: begin its chains with this payload
		d.chains.unit = d.lone
		batch, err = d.decode(payload)
	}
	if err != nil {
		d.Forget()
		return batch, fmt.Errorf("vllm: %w", err)
	}
	batch.Events, batch.Unplaced = d.a.Events, d.unplaced
	batch.UpperBound, batch.UpperBoundWhy = d.groups.unclear != "", d.groups.unclear
	return batch, nil
}

func (d *Decoder) decode(payload []byte) (kvevent.Batch, error) {
	d.a.Reset()
	d.lone, d.unplaced = 0, 0
	batch, err := wire.Batch(payload, &d.a, &d.f, d.tokens, d.emit)
	d.addOthers()
	return batch, err
}

// Free ends the use of the last batch.
func (d *Decoder) Free() {
	d.a.Free()
	d.gone, d.h.names = nil, nil
	if len(d.h.lastName) > 1<<10 {
		d.h.lastName = nil
	}
}

// Bound sets the room for what is remembered of earlier payloads. It is called before the first one.
func (d *Decoder) Bound(room kvevent.Room) { d.room, d.groups.room = room, room }

// Forget is for a caller that has dropped, or doubts, what earlier events brought.
func (d *Decoder) Forget() {
	d.room.Give(len(d.chains.blocks)*chainBytes + len(d.chains.kept)*keptBytes)
	d.chains = chains{unit: d.chains.unit}
}

// Restart forgets what the events of an engine's process have shown, because another runs now.
func (d *Decoder) Restart() {
	d.Forget()
	d.groups.forgetTails()
	d.groups, d.chains = groups{room: d.room}, chains{}
}

func (d *Decoder) tokens(b []byte) (rest []byte, err error) {
	d.a.Tokens, rest, err = wire.AppendTokens(d.a.Tokens[:d.f.FirstToken], b)
	return rest, err
}

// emit appends the event in d.f to the batch.
func (d *Decoder) emit() error {
	if d.f.Salt != nil { // extra_keys carry the salt
		d.f.NoteUnknownKey("cache_salt")
	}
	switch d.f.Kind {
	case kvevent.Stored:
		return d.stored(kvevent.Tail(d.a.Tokens, d.f.FirstToken))
	case kvevent.Removed:
		switch n, main, ok := d.groups.removed(&d.f); {
		case ok && main:
			d.add(kvevent.Removed)
		case ok:
			d.addOther(kvevent.GroupRemoved, n)
			if d.chains.unit > 0 && d.f.Tier() == kvevent.GPU {
				d.unkeep(d.f.EngineHashes)
			}
		}
	case kvevent.Cleared:
		d.addOthers()
		d.groups.forgetTails()
		d.Forget()
		d.a.Events = append(d.a.Events, kvevent.Event{Kind: kvevent.Cleared})
	}
	return nil
}
