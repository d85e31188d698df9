package fetch

import (
	"math"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/sightline-router/sightline/mmhash"
)

// byteCache caches images' bytes up to a total size and evicts the least recently used. Safe for concurrent use.
type byteCache struct {
	capacity int64
	onEvict  func() // is called for each image that is evicted or does not fit at all

	mu      sync.Mutex
	room    int64 // free bytes
	entries *simplelru.LRU[mmhash.ContentID, []byte]
}

func newByteCache(most int64, full func()) *byteCache {
	all, _ := simplelru.NewLRU[mmhash.ContentID, []byte](math.MaxInt, nil) // fails only for a size below 1
	return &byteCache{capacity: most, onEvict: full, room: most, entries: all}
}

// weight returns what an image counts for: its bytes and about the size of its entry.
func weight(b []byte) int64 { return int64(len(b)) + 128 }

func (k *byteCache) get(id mmhash.ContentID) ([]byte, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.entries.Get(id)
}

func (k *byteCache) add(id mmhash.ContentID, b []byte) {
	if weight(b) > k.capacity {
		k.onEvict()
		return
	}
	gone := 0
	k.mu.Lock()
	if old, ok := k.entries.Peek(id); ok {
		k.room += weight(old)
	}
	k.entries.Add(id, b)
	for k.room -= weight(b); k.room < 0; gone++ {
		_, old, _ := k.entries.RemoveOldest()
		k.room += weight(old)
	}
	k.mu.Unlock()
	for range gone {
		k.onEvict()
	}
}
