package tokenizer

import (
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"
)

// Cache remembers what the stretches of text between added tokens were encoded to, so that a growing conversation pays
// only for its last turn. That is exact, not a guess: added tokens are cut out of the raw text first, and what lies between
// two of them is normalised, cut and encoded with no sight of its surroundings (of its place it matters only whether it
// stands at the very start, for tokenizers that put a space there; that is part of the key).
//
// A stretch is known by 128 bits of XXH3; two different texts under one key would need a collision made on purpose, and
// would cost a wrong prediction, never memory. Safe for concurrent use; a hit allocates nothing. Who asks for a stretch that
// somebody is at work on waits for it: the classes of one model read a request at the same time.
type Cache struct {
	t            *Tokenizer
	seed         uint64
	shards       [cacheShards]cacheShard
	hits, misses atomic.Uint64
}

const (
	cacheShards = 16
	minCached   = 64  // bytes; shorter stretches are encoded faster than they are looked up
	entryCost   = 160 // bytes of an entry beside its ids: map slot, list links, headers
)

type cacheShard struct {
	mu      sync.Mutex
	entries map[xxh3.Uint128]*cacheEntry
	pending map[xxh3.Uint128]chan struct{} // being encoded; closed when done
	newest  cacheEntry                     // head of a ring in order of use
	size    int                            // bytes
	room    int                            // bytes left
}

type cacheEntry struct {
	key        xxh3.Uint128
	ids        []uint32
	prev, next *cacheEntry
}

// NewCache makes a cache of about maxBytes for texts of t. seed should be a random number that clients do not know.
func (t *Tokenizer) NewCache(maxBytes int, seed uint64) *Cache {
	c := &Cache{t: t, seed: seed}
	for i := range c.shards {
		s := &c.shards[i]
		s.pending = map[xxh3.Uint128]chan struct{}{}
		s.entries, s.size, s.room = map[xxh3.Uint128]*cacheEntry{}, maxBytes/cacheShards, maxBytes/cacheShards
		s.newest.prev, s.newest.next = &s.newest, &s.newest
	}
	return c
}

// Encode is Tokenizer.Encode with the cache before it.
func (c *Cache) Encode(dst []uint32, text string, opt Options) []uint32 {
	return c.t.encodeText(dst, text, opt, c)
}

// Stats gives how many stretches were found and how many had to be encoded.
func (c *Cache) Stats() (hits, misses uint64) { return c.hits.Load(), c.misses.Load() }

// encodePart is Tokenizer.encodePart with the cache before it.
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
	shard := &c.shards[key.Lo%cacheShards]
	for {
		ids, busy, ok := shard.get(key)
		if ok {
			c.hits.Add(1)
			return append(dst, ids...)
		}
		if busy == nil || entryCost+4*len(part) > shard.size { // one that may be too long to keep is not waited for
			break
		}
		select {
		case <-busy:
		case <-s.done:
			panic(stop{})
		}
	}
	defer shard.done(key)
	c.misses.Add(1)
	start := len(dst)
	dst = c.t.encodePart(dst, s, part, first, plain)
	if !s.full(dst) { // else it may be a part of them
		shard.put(key, dst[start:])
	}
	return dst
}

// get gives the ids under key; they are never written again, so they may be read without the lock. Where there are none,
// busy is what closes when somebody has encoded them; nil: the caller is to do it, and to call done.
func (s *cacheShard) get(key xxh3.Uint128) (ids []uint32, busy chan struct{}, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[key]
	if !ok {
		if busy = s.pending[key]; busy == nil {
			s.pending[key] = make(chan struct{})
		}
		return nil, busy, false
	}
	s.unlink(e)
	s.link(e)
	return e.ids, nil, true
}

func (s *cacheShard) done(key xxh3.Uint128) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if busy := s.pending[key]; busy != nil {
		close(busy)
		delete(s.pending, key)
	}
}

func (s *cacheShard) put(key xxh3.Uint128, ids []uint32) {
	cost := entryCost + 4*len(ids)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.entries[key]; ok || cost > s.size {
		return
	}
	for cost > s.room {
		oldest := s.newest.prev
		s.unlink(oldest)
		delete(s.entries, oldest.key)
		s.room += entryCost + 4*len(oldest.ids)
	}
	e := &cacheEntry{key: key, ids: append(make([]uint32, 0, len(ids)), ids...)}
	s.entries[key] = e
	s.link(e)
	s.room -= cost
}

func (s *cacheShard) link(e *cacheEntry) {
	e.prev, e.next = &s.newest, s.newest.next
	e.next.prev, s.newest.next = e, e
}

func (s *cacheShard) unlink(e *cacheEntry) { e.prev.next, e.next.prev = e.next, e.prev }
