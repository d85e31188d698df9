package block

import (
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"
)

// Dynamo is the second rule: how NVIDIA Dynamo (1.6, dynamo-kv-router, tokens_hash) hashes blocks, for workers whose events contain
// such hashes:
//
//	local(i) = XXH3-64( u32le(token) × B ‖ u64le(name) × media touching block i, seed )
//
//	media   as names, sorted, after the tokens; or, if the publisher knows the image's token id and only images
//	        touch the block, in place of the tokens: the k-th run of that id becomes Pad(k-th name)
//	salt    part of the seed, so of every block
//	eagle   windows of one token more than the block, which overlap by one
//
// The names are Dynamo's 64 bits (Name64): two images with equal pads (30 bits of the name) are the same there, and so here.
//
// These hashes have no secret, and cannot get one: events do not carry what they are made of. Whoever knows the seed can find
// another block with the same hash, under another salt too (docs/security.md says what follows). Chain hashes are keyed here as well.
type Dynamo struct {
	Size int
	Seed uint64 // DynamoSeed's value
	// Pads: the publisher knows the images' token id, ImageToken, and replaces it by pads. Otherwise names follow the tokens.
	Pads       bool
	ImageToken uint32
	Eagle      bool // the workers use EAGLE: their events contain pairs of tokens
}

// dynamoSeed is the seed of blocks without an adapter (XXH3_SEED).
const dynamoSeed uint64 = 1337

// DynamoSeed returns the seed for the blocks of an adapter and a cache namespace ("" for none): each adds its hash, wrapping.
func DynamoSeed(lora, namespace string) uint64 {
	seed := dynamoSeed
	if lora != "" {
		seed += xxh3.HashString(lora)
	}
	if namespace != "" {
		seed += xxh3.HashStringSeed(namespace, 1)
	}
	return seed
}

// Pad returns the token id that replaces an image with this name (Dynamo 1.6 and SGLang, pad_value).
func Pad(name uint64) uint32 { return 1_000_000 + uint32(name&(1<<30-1)) }

// Locals appends the local hash of every full block to dst. spans must be sorted by Offset; an empty one touches nothing. It
// allocates to grow dst and, once, a buffer for one block with media.
func (d Dynamo) Locals(dst []uint64, tokens []uint32, spans []Span) []uint64 {
	if d.Size <= 0 {
		return dst
	}
	window := d.Size
	if d.Eagle {
		window++
	}
	var few [8]uint64
	var buf []byte
	first := 0 // spans before this index end before the current block
	for start := 0; start+window <= len(tokens); start += d.Size {
		end := start + d.Size
		for first < len(spans) && spans[first].Offset+spans[first].Length <= start {
			first++
		}
		names := few[:0]
		for i := first; i < len(spans) && spans[i].Offset < end; i++ {
			if spans[i].Length > 0 && spans[i].Offset+spans[i].Length > start {
				names = append(names, spans[i].Name)
			}
		}
		if len(names) > 0 && buf == nil {
			buf = make([]byte, 0, window*4+8*len(few))
		}
		dst = append(dst, d.local(buf, tokens[start:start+window], names))
	}
	return dst
}

// local hashes one block; names, in prompt order, may be sorted in place.
func (d Dynamo) local(buf []byte, tokens []uint32, names []uint64) uint64 {
	if len(names) == 0 || !d.Pads || !slices.Contains(tokens, d.ImageToken) {
		slices.Sort(names)
		return dynamoLocal(buf, tokens, names, d.Seed)
	}
	buf = buf[:0]
	run, inside := -1, false
	for _, t := range tokens {
		if t != d.ImageToken {
			inside = false
		} else {
			if !inside {
				run, inside = min(run+1, len(names)-1), true // runs beyond the last name use the last name
			}
			t = Pad(names[run])
		}
		buf = binary.LittleEndian.AppendUint32(buf, t)
	}
	return xxh3.HashSeed(buf, d.Seed)
}

// dynamoLocal hashes a block's tokens, and names after them.
func dynamoLocal(scratch []byte, tokens []uint32, names []uint64, seed uint64) uint64 {
	raw := bytesOf(tokens)
	if len(names) == 0 {
		return xxh3.HashSeed(raw, seed)
	}
	scratch = append(scratch[:0], raw...)
	for _, n := range names {
		scratch = binary.LittleEndian.AppendUint64(scratch, n)
	}
	return xxh3.HashSeed(scratch, seed)
}
