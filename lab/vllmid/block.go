package vllmid

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"
)

// Algo is a value of vLLM's --prefix-caching-hash-algo.
type Algo string

// The algorithms: SHA-256 or XXH3-128, over a pickle (protocol 5) or over canonical CBOR. SHA256 is vLLM's default.
const (
	SHA256     Algo = "sha256"
	SHA256CBOR Algo = "sha256_cbor"
	XXHash     Algo = "xxhash"
	XXHashCBOR Algo = "xxhash_cbor"
)

// DefaultSeed is what the sha256 algorithms hash for the root when PYTHONHASHSEED is not set (vLLM 0.29 on).
const DefaultSeed = "vllm-none-hash"

// Digest is a full block hash as raw bytes: 32 for SHA-256, 16 for XXH3-128. A string, so that it can be a map key.
type Digest string

// Uint64 is the number that KV events carry: the digest's last eight bytes, big endian.
func (d Digest) Uint64() uint64 {
	if len(d) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64([]byte(d[len(d)-8:]))
}

// Item is one medium's place in a prompt: tokens [Offset, Offset+Length), and the identifier that vLLM gave it.
type Item struct {
	Identifier     string
	Offset, Length int
}

// Scope is what sets one request's blocks apart besides tokens and media. Zero for a plain request.
type Scope struct {
	LoRA     string // the adapter's name
	LoRAPath string // as given to --lora-modules; enters tagged keys only
	Salt     string // the request's cache_salt
}

// KeyKind tells the kinds of extra keys apart.
type KeyKind uint8

// The kinds, in the order in which they stand in a block.
const (
	KeyLoRA KeyKind = iota
	KeyMedia
	KeySalt
)

// Key is one extra key of a block. Text is the adapter's name, the media identifier, or the salt.
type Key struct {
	Kind KeyKind
	Text string
	Path string // KeyLoRA: the adapter's path
	Rel  int    // KeyMedia: the item's offset less the block's first token; negative where the item began earlier
}

// Keys gives the extra keys of the block of tokens [start, end), in vLLM's order; nil for none. Items must be sorted by
// offset. An item that reaches past the block's end stops the scan, so an item that overlaps it does not count (vLLM
// does the same; it happens with Gemma 3's adjacent images).
func Keys(start, end int, items []Item, scope Scope) []Key {
	var keys []Key
	if scope.LoRA != "" {
		keys = append(keys, Key{Kind: KeyLoRA, Text: scope.LoRA, Path: scope.LoRAPath})
	}
	if n := len(items); n > 0 && items[n-1].Offset+items[n-1].Length > start {
		for _, it := range items {
			if it.Offset >= end {
				break
			}
			if it.Offset+it.Length <= start {
				continue
			}
			keys = append(keys, Key{Kind: KeyMedia, Text: it.Identifier, Rel: it.Offset - start})
			if it.Offset+it.Length > end {
				break
			}
		}
	}
	if scope.Salt != "" && start == 0 {
		keys = append(keys, Key{Kind: KeySalt, Text: scope.Salt})
	}
	return keys
}

// BlockHasher hashes the blocks of one worker. It is immutable; use it from any goroutine.
type BlockHasher struct {
	sum    func([]byte) Digest
	cbor   bool
	tagged bool
	root   Digest
}

// NewBlockHasher makes the hasher of a worker with that algorithm and seed (PYTHONHASHSEED, or DefaultSeed).
func NewBlockHasher(algo Algo, seed string, tagged bool) (*BlockHasher, error) {
	h := &BlockHasher{tagged: tagged}
	switch algo {
	case SHA256, SHA256CBOR:
		h.sum = func(b []byte) Digest { s := sha256.Sum256(b); return Digest(s[:]) }
	case XXHash, XXHashCBOR:
		h.sum = func(b []byte) Digest { s := xxh3.Hash128(b).Bytes(); return Digest(s[:]) }
	default:
		return nil, fmt.Errorf("block hash algorithm %q: want sha256, sha256_cbor, xxhash or xxhash_cbor", algo)
	}
	h.cbor = algo == SHA256CBOR || algo == XXHashCBOR
	if h.cbor {
		h.root = h.sum(cborText(nil, seed))
	} else {
		h.root = h.sum(pickleText(seed))
	}
	return h, nil
}

// Root is NONE_HASH, the parent of every first block.
func (h *BlockHasher) Root() Digest { return h.root }

// Block hashes one full block: H(parent, tokens, keys). The parent of a first block is Root.
func (h *BlockHasher) Block(parent Digest, tokens []uint32, keys []Key) Digest {
	if h.cbor {
		return h.sum(cborBlock(parent, tokens, keys, h.tagged))
	}
	return h.sum(pickleBlock(parent, tokens, keys, h.tagged))
}
