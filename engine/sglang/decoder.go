// Package sglang reads the KV events of SGLang 0.5.20 to 0.5.23.
//
// The frame is vLLM's (package wire): a msgpack array [time, [event, …], rank]. An event is a map with
// a "type". Unknown fields are skipped and counted:
//
//	BlockStored   block_hashes parent_block_hash token_ids block_size lora_id medium cache_salt session_id lora_name (0.5.22)
//	BlockRemoved  block_hashes | medium
//	AllBlocksCleared
//
// Unlike vLLM's, the token ids are those of SGLang's cache, with pads of up to 63 bits in place of an image's tokens. Events
// identify an image in no other way, so blocks are hashed by their ids as sent (block.Key.Local64). An event has
// consecutive pages. With EAGLE speculation each token is sent as a pair with the next. Requests with different
// extra_keys do not share blocks, but no release sends the key, nor an adapter before 0.5.22: for such
// requests the request side gives no credit. The option "format: dynamo" changes only the engine hashes.
package sglang

import (
	"fmt"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/kvevent/wire"
	"github.com/sightline-router/sightline/mmhash/block"
)

// firstPad is the smallest pad. No vocabulary that SGLang supports reaches it.
const firstPad = 1_000_000

// Decoder reads the payloads of one worker-rank. The zero value is ready. Not safe for concurrent use: it reuses its memory.
type Decoder struct {
	// Keep makes stored events carry tokens and the session id, for audit. Ids of more than 32 bits become 1<<32 - 1.
	Keep bool
	// Secret keys the blocks' hashes.
	Secret *block.Secret
	// Pad, if set, is called with the pads of stored events, at least once for each in a run of them. From the pads the model
	// learns under which fingerprint a worker names images.
	Pad func(id uint64)

	a        kvevent.Arena
	f        wire.Fields // the current event; its tokens are the arena's Wide
	pairs    bool        // they were sent as pairs
	scratch  []byte
	loraName string
}

// Decode reads one payload. The batch and everything it points to are valid until the next call. An error means that the payload is
// truncated or not a batch: then no event of it is returned, because a missing one may be a removal. An event that cannot be read
// is only counted.
//
// Cost: about 0.1 µs per block of 16 tokens, 15 ns per block of one token; nothing is allocated once the memory has grown.
func (d *Decoder) Decode(payload []byte) (kvevent.Batch, error) {
	d.a.Reset()
	batch, err := wire.Batch(payload, &d.a, &d.f, d.tokenIDs, d.emit)
	if err != nil {
		return batch, fmt.Errorf("sglang: %w", err)
	}
	return batch, nil
}

// Free ends the use of the last batch.
func (d *Decoder) Free() { d.a.Free() }

// tokenIDs reads token ids or pairs of them. Pairs must overlap; they yield the first id of each and the second of the last.
func (d *Decoder) tokenIDs(b []byte) ([]byte, error) {
	n, b, err := wire.ArrayHeader(b)
	if err != nil {
		return b, err
	}
	d.a.Wide, d.pairs = d.a.Wide[:0], false
	var id, next uint64
	for i := range n {
		pair := msgp.NextType(b) == msgp.ArrayType
		if i == 0 {
			d.pairs = pair
		}
		if pair != d.pairs {
			return b, fmt.Errorf("token ids and pairs of them, mixed")
		}
		if !pair {
			id, b, err = wire.ReadToken64(b)
			if err != nil {
				return b, err
			}
			d.a.Wide = append(d.a.Wide, id)
			continue
		}
		size, rest, err := wire.ArrayHeader(b)
		if err == nil && size != 2 {
			err = fmt.Errorf("token id: want a pair, got %d", size)
		}
		if err == nil {
			id, rest, err = wire.ReadToken64(rest)
		}
		if err != nil {
			return b, err
		}
		if i > 0 && id != next {
			return b, fmt.Errorf("pairs of tokens that do not form a sequence")
		}
		next, b, err = wire.ReadToken64(rest)
		if err != nil {
			return b, err
		}
		d.a.Wide = append(d.a.Wide, id)
	}
	if d.pairs {
		d.a.Wide = append(d.a.Wide, next)
	}
	return b, nil
}
