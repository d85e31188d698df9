package block

import (
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"
)

// The second rule: how NVIDIA Dynamo (1.6) hashes blocks, for workers whose events carry such hashes ready. It differs
// from ours in media, salts and windows:
//
//	media   as names, sorted, behind the tokens; or, where the publisher knows the picture's token id and all that
//	        touches the block is pictures, in place of the tokens: the k-th run of that id becomes Pad(k-th name)
//	salt    part of the seed, so of every block
//	eagle   windows of one token more than the block, which overlap by one
//
// The names are Dynamo's 64 bits: two pictures whose pads agree (30 bits of them) look alike there, and so here.
type Dynamo struct {
	Size int
	Seed uint64 // DynamoSeed's value
	// Pads: the publisher knows the pictures' token id, ImageToken, and puts pads in its place. Off, names stand behind.
	Pads       bool
	ImageToken uint32
	Eagle      bool // the workers draft with EAGLE: their events speak of pairs of tokens
}

// DynamoSeed is the seed of an adapter's and a cache namespace's blocks ("" for none).
func DynamoSeed(lora, namespace string) uint64 {
	seed := SeedFor(lora)
	if namespace != "" {
		seed += xxh3.HashStringSeed(namespace, 1)
	}
	return seed
}

// Pad is the token id that stands for a picture of that name (Dynamo 1.6 and SGLang, pad_value).
func Pad(name uint64) uint32 { return 1_000_000 + uint32(name&(1<<30-1)) }

// Locals appends the local hash of every full block. spans must be sorted by Offset; an empty one touches nothing. It allocates
// to grow dst and, once, room for one block with media.
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
	first := 0 // spans before it end before the current block
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
		return Local(buf, tokens, names, d.Seed)
	}
	buf = buf[:0]
	run, inside := -1, false
	for _, t := range tokens {
		if t != d.ImageToken {
			inside = false
		} else {
			if !inside {
				run, inside = min(run+1, len(names)-1), true // runs beyond the last name take that one
			}
			t = Pad(names[run])
		}
		buf = binary.LittleEndian.AppendUint32(buf, t)
	}
	return xxh3.HashSeed(buf, d.Seed)
}
