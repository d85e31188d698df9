package fetch

import (
	"math"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/sightline-router/sightline/mmhash"
)

// kept caches pictures' bytes up to a total size and evicts the least recently used. Safe for concurrent use.
type kept struct {
	most int64
	full func() // is called for each picture that is evicted or does not fit at all

	mu   sync.Mutex
	room int64 // free bytes
	all  *simplelru.LRU[mmhash.ContentID, []byte]
}

func keep(most int64, full func()) *kept {
	all, _ := simplelru.NewLRU[mmhash.ContentID, []byte](math.MaxInt, nil) // fails only for a size below 1
	return &kept{most: most, full: full, room: most, all: all}
}

// weight returns what a picture counts for: its bytes and about the size of its entry.
func weight(b []byte) int64 { return int64(len(b)) + 128 }

func (k *kept) get(id mmhash.ContentID) ([]byte, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.all.Get(id)
}

func (k *kept) add(id mmhash.ContentID, b []byte) {
	if weight(b) > k.most {
		k.full()
		return
	}
	gone := 0
	k.mu.Lock()
	if old, ok := k.all.Peek(id); ok {
		k.room += weight(old)
	}
	k.all.Add(id, b)
	for k.room -= weight(b); k.room < 0; gone++ {
		_, old, _ := k.all.RemoveOldest()
		k.room += weight(old)
	}
	k.mu.Unlock()
	for range gone {
		k.full()
	}
}
