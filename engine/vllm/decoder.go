// Package vllm reads the KV events of vLLM 0.10.2 to 0.33.
//
// A payload is a msgpack array [time, [event, …], rank]. An event is an array, tag first (up to 0.23), or a map with a "type" (from
// 0.24). Fields were added by release (in brackets: the first that has it); unknown ones are skipped and counted:
//
//	BlockStored   block_hashes parent_block_hash token_ids block_size lora_id | medium (0.10.2) | lora_name (0.14) |
//	              extra_keys (0.17) | group_idx (0.20) | kv_cache_spec_kind, …_sliding_window (0.22) | maps: locality,
//	              ownership, session_id, lookahead_token_ids
//	BlockRemoved  block_hashes | medium | group_idx
//	AllBlocksCleared
//
// The decoder hashes tokens into local hashes while it reads. It drops the events of KV cache groups that do not prove a full
// prefix (wire.Fields.FullPrefix).
package vllm

import (
	"fmt"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/kvevent/wire"
	"github.com/sightline-router/sightline/mmhash/block"
)

// Decoder reads the payloads of one worker-rank. The zero value is ready. Not safe for concurrent use: it reuses its memory, and
// learns from stored events which groups prove a full prefix.
type Decoder struct {
	// Keep makes stored events carry tokens, media names and the session id, for audit and learning.
	Keep bool
	// Secret keys the blocks' hashes.
	Secret *block.Secret

	a         kvevent.Arena
	f         wire.Fields // the current event
	bareNames bool        // the release may send media as bare names in extra_keys
	h         hasher
	groups    wire.Groups
	recurrent bool // one of the groups is Mamba's
}

// Decode reads one payload. The batch and everything it points to are valid until the next call; with Keep, Mention names also
// point into payload. An error means that the payload is truncated or not a batch: then no event of it is returned, because a
// missing one may be a removal. An event that cannot be read is only counted.
//
// Cost: about 0.2 µs per block of 16 tokens; nothing is allocated once the memory has grown.
func (d *Decoder) Decode(payload []byte) (kvevent.Batch, error) {
	d.a.Reset()
	batch, err := wire.Batch(payload, &d.a, &d.f, d.tokens, d.emit)
	if err != nil {
		return batch, fmt.Errorf("vllm: %w", err)
	}
	batch.Recurrent = d.recurrent
	return batch, nil
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
		// Arrays of 0.17 to 0.19 end with extra_keys; in 0.17 and 0.18 media may be bare names there.
		d.bareNames = d.f.Elements == 9
		return d.stored(kvevent.Tail(d.a.Tokens, d.f.FirstToken))
	case kvevent.Removed:
		if d.groups.Prove(&d.f) && len(d.f.EngineHashes) > 0 {
			d.add(kvevent.Removed)
		}
	case kvevent.Cleared:
		d.a.Events = append(d.a.Events, kvevent.Event{Kind: kvevent.Cleared})
	}
	return nil
}
