package fetch

import (
	"container/heap"
	"container/list"
	"sync"

	"github.com/sightline-router/sightline/internal/fair"
)

// shared is a cache whose room clients and image hosts share. Where there is no room, the least recently used entry of the client or
// host that holds most is evicted, so nobody evicts the entries of those who hold less. A client counts double: if one holds half of a
// host's entries, its own are evicted, not those of the host's other clients. An entry belongs to those who first brought it. Safe for
// concurrent use; a call costs the logarithm of the number of holders.
type shared[K comparable, V any] struct {
	capacity int64
	onEvict  func() // is called for each entry that is evicted or does not fit at all

	mu      sync.Mutex
	used    int64
	entries map[K]*item[K, V]
	holders map[fair.Client]*holder[K, V]
	most    byHeld[K, V]
}

type item[K comparable, V any] struct {
	key    K
	value  V
	weight int64
	of     [2]*holder[K, V]
	at     [2]*list.Element // in the holders' recency
}

// holder is a client or a host with entries.
type holder[K comparable, V any] struct {
	name    fair.Client
	held    int64
	counts  int64      // how many times held counts: once for a host, twice for a client
	recency *list.List // of *item, the most recent first
	index   int        // in most
}

func newShared[K comparable, V any](capacity int64, full func()) *shared[K, V] {
	return &shared[K, V]{capacity: capacity, onEvict: full, entries: make(map[K]*item[K, V]), holders: make(map[fair.Client]*holder[K, V])}
}

func (s *shared[K, V]) get(k K) (v V, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.entries[k]
	if it == nil {
		return v, false
	}
	it.touch()
	return it.value, true
}

// add stores a value that counts for weight, for a client and a host; a zero one is not known. It replaces an earlier value.
func (s *shared[K, V]) add(client, host fair.Client, k K, v V, weight int64) {
	if weight > s.capacity {
		s.onEvict()
		return
	}
	gone := 0
	s.mu.Lock()
	it := s.entries[k]
	if it == nil {
		it = &item[K, V]{key: k}
		s.entries[k] = it
		it.of[0] = s.holder(host, 1)
		if client != 0 {
			it.of[1] = s.holder(client, 2)
		}
		for i, h := range it.of {
			if h != nil {
				it.at[i] = h.recency.PushFront(it)
			}
		}
	}
	it.touch()
	it.value = v
	s.weigh(it, weight)
	for ; s.used > s.capacity; gone++ {
		s.remove(s.most[0].recency.Back().Value.(*item[K, V]))
	}
	s.mu.Unlock()
	for range gone {
		s.onEvict()
	}
}

func (s *shared[K, V]) holder(name fair.Client, counts int64) *holder[K, V] {
	h := s.holders[name]
	if h == nil {
		h = &holder[K, V]{name: name, counts: counts, recency: list.New()}
		s.holders[name] = h
		heap.Push(&s.most, h)
	}
	return h
}

// weigh sets what an item counts for.
func (s *shared[K, V]) weigh(it *item[K, V], weight int64) {
	more := weight - it.weight
	it.weight = weight
	s.used += more
	for _, h := range it.of {
		if h != nil {
			h.held += more
			heap.Fix(&s.most, h.index)
		}
	}
}

func (s *shared[K, V]) remove(it *item[K, V]) {
	s.weigh(it, 0)
	delete(s.entries, it.key)
	for i, h := range it.of {
		if h == nil {
			continue
		}
		h.recency.Remove(it.at[i])
		if h.recency.Len() == 0 {
			heap.Remove(&s.most, h.index)
			delete(s.holders, h.name)
		}
	}
}

func (it *item[K, V]) touch() {
	for i, h := range it.of {
		if h != nil {
			h.recency.MoveToFront(it.at[i])
		}
	}
}

// byHeld is a heap of holders, the largest first.
type byHeld[K comparable, V any] []*holder[K, V]

func (b byHeld[K, V]) Len() int           { return len(b) }
func (b byHeld[K, V]) Less(i, j int) bool { return b[i].held*b[i].counts > b[j].held*b[j].counts }
func (b byHeld[K, V]) Swap(i, j int) {
	b[i], b[j] = b[j], b[i]
	b[i].index, b[j].index = i, j
}

// Push implements heap.Interface.
func (b *byHeld[K, V]) Push(h any) {
	h.(*holder[K, V]).index = len(*b)
	*b = append(*b, h.(*holder[K, V]))
}

// Pop implements heap.Interface.
func (b *byHeld[K, V]) Pop() any {
	last := (*b)[len(*b)-1]
	*b = (*b)[:len(*b)-1]
	return last
}

// weight returns what an image counts for: its bytes and about the size of its entry.
func weight(b []byte) int64 { return int64(len(b)) + 256 }
