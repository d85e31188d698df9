package tokenizer

import (
	"container/list"
	"slices"
	"sync"

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
	entries map[xxh3.Uint128]*list.Element
	used    list.List                      // of *cacheEntry, most recently used first
	room    int                            // bytes left
	pending map[xxh3.Uint128]chan struct{} // being encoded; closed when done
}

type cacheEntry struct {
	key xxh3.Uint128
	ids []uint32 // never modified, so they can be read without the lock
}

const (
	minCached = 64  // bytes; shorter stretches are encoded faster than looked up
	entryCost = 200 // bytes of an entry besides its ids: map slot, list element, headers
)

func (e *cacheEntry) cost() int { return entryCost + 4*len(e.ids) }

// NewCache returns a cache of about maxBytes for texts of t. seed should be a random number that clients do not know.
func (t *Tokenizer) NewCache(maxBytes int, seed uint64) *Cache {
	return &Cache{t: t, seed: seed, size: maxBytes, room: maxBytes,
		entries: map[xxh3.Uint128]*list.Element{}, pending: map[xxh3.Uint128]chan struct{}{}}
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
		e, busy := c.get(key)
		if e != nil {
			return append(dst, e.ids...)
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
		c.put(&cacheEntry{key, slices.Clone(dst[start:])})
	}
	return dst
}

// get returns the entry under key. If there is none, busy is a channel that closes when another caller has encoded it; if busy is
// nil, this caller must encode it and call done.
func (c *Cache) get(key xxh3.Uint128) (e *cacheEntry, busy chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.entries[key]; ok {
		c.used.MoveToFront(at)
		return at.Value.(*cacheEntry), nil
	}
	busy = c.pending[key]
	if busy == nil {
		c.pending[key] = make(chan struct{})
	}
	return nil, busy
}

func (c *Cache) done(key xxh3.Uint128) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if busy := c.pending[key]; busy != nil {
		close(busy)
		delete(c.pending, key)
	}
}

func (c *Cache) put(e *cacheEntry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.entries[e.key]; ok || e.cost() > c.size {
		return
	}
	for c.room -= e.cost(); c.room < 0; {
		old := c.used.Remove(c.used.Back()).(*cacheEntry)
		delete(c.entries, old.key)
		c.room += old.cost()
	}
	c.entries[e.key] = c.used.PushFront(e)
}
