package tokenizer

import (
	"math"
	"slices"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/zeebo/xxh3"
)

// Cache caches the ids of the stretches of text between added tokens, so that a growing conversation costs only its last turn. The
// result is exact: added tokens are cut out of the raw text first, and the text between two of them is normalized, cut and encoded
// independently of its surroundings. (The only exception is whether it begins the input, for tokenizers that put a space there;
// that is part of the key.)
//
// The key is 128 bits of XXH3. Two different texts with one key would need a deliberate collision, and would cause a wrong
// prediction but no memory error. Safe for concurrent use: one lock, held for a look-up; a hit allocates nothing. A caller that
// needs a stretch which another is encoding waits for it, because the classes of one model read a request at the same time.
type Cache struct {
	t    *Tokenizer
	seed uint64
	size int // bytes

	mu      sync.Mutex
	entries *simplelru.LRU[xxh3.Uint128, []uint32] // ids are never modified, so they can be read without the lock
	room    int                                    // bytes left
	pending map[xxh3.Uint128]chan struct{}         // being encoded; closed when done
}

const (
	minCached = 64  // bytes; shorter stretches are encoded faster than looked up
	entryCost = 200 // bytes of an entry besides its ids: map slot, list element, headers
)

func costOf(ids []uint32) int { return entryCost + 4*len(ids) }

// NewCache returns a cache of about maxBytes for texts of t. seed should be a random number that clients do not know.
func (t *Tokenizer) NewCache(maxBytes int, seed uint64) *Cache {
	entries, _ := simplelru.NewLRU[xxh3.Uint128, []uint32](math.MaxInt, nil) // fails only for a size below 1
	return &Cache{t: t, seed: seed, size: maxBytes, room: maxBytes, entries: entries, pending: map[xxh3.Uint128]chan struct{}{}}
}

// Encode is Tokenizer.Encode through the cache.
func (c *Cache) Encode(dst []uint32, text string, opt Options) []uint32 {
	return c.t.encodeText(dst, text, opt, c)
}

// encodePart is Tokenizer.encodePart through the cache.
func (c *Cache) encodePart(dst []uint32, s *scratch, part []byte, first, plain bool) []uint32 {
	if len(part) < minCached {
		return c.t.encodePart(dst, s, part, first, plain)
	}
	seed := c.seed
	if first {
		seed++
	}
	if plain {
		seed += 2
	}
	key := xxh3.Hash128Seed(part, seed)
	for {
		ids, known, busy := c.get(key)
		if known {
			return append(dst, ids...)
		}
		if busy == nil || entryCost+4*len(part) > c.size { // do not wait for a result that may be too large to be kept
			break
		}
		select {
		case <-busy:
		case <-s.done:
			panic(stop{})
		}
	}
	defer c.done(key)
	start := len(dst)
	dst = c.t.encodePart(dst, s, part, first, plain)
	if !s.full(dst) { // otherwise the ids may be incomplete
		c.put(key, slices.Clone(dst[start:]))
	}
	return dst
}

// get returns the ids under key. If there are none, busy is a channel that closes when another caller has encoded them; if busy is
// nil, this caller must encode them and call done.
func (c *Cache) get(key xxh3.Uint128) (ids []uint32, known bool, busy chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ids, known = c.entries.Get(key)
	if known {
		return ids, true, nil
	}
	busy = c.pending[key]
	if busy == nil {
		c.pending[key] = make(chan struct{})
	}
	return nil, false, busy
}

func (c *Cache) done(key xxh3.Uint128) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if busy := c.pending[key]; busy != nil {
		close(busy)
		delete(c.pending, key)
	}
}

func (c *Cache) put(key xxh3.Uint128, ids []uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries.Contains(key) || costOf(ids) > c.size {
		return
	}
	for c.room -= costOf(ids); c.room < 0; {
		_, old, _ := c.entries.RemoveOldest()
		c.room += costOf(old)
	}
	c.entries.Add(key, ids)
}
