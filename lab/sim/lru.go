package sim

import "container/list"

// lru remembers weighted keys up to a total weight, the least recently used go first. It stands for vLLM's encoder cache
// (weight: embeddings) and processor cache (weight: 1), of which only hit or miss matters here.
type lru struct {
	limit, total int
	order        *list.List // front: most recent; values are entries
	at           map[string]*list.Element
}

type entry struct {
	key    string
	weight int
}

func newLRU(limit int) *lru {
	return &lru{limit: limit, order: list.New(), at: map[string]*list.Element{}}
}

// has reports a key without using it.
func (l *lru) has(key string) bool { return l.at[key] != nil }

// use reports whether key was there, and makes it the most recent one.
func (l *lru) use(key string, weight int) bool {
	if e := l.at[key]; e != nil {
		l.order.MoveToFront(e)
		return true
	}
	l.at[key] = l.order.PushFront(entry{key, weight})
	l.total += weight
	for l.total > l.limit && l.order.Len() > 0 {
		last := l.order.Remove(l.order.Back()).(entry)
		delete(l.at, last.key)
		l.total -= last.weight
	}
	return false
}
