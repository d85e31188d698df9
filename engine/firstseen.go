package engine

import (
	"sync"

	"github.com/sightline-router/sightline/mmhash"
)

// firstSeen remembers which picture a name stood for first, where clients' uuids are trusted: the engine keeps that one's
// features, and its token count, whatever comes later under the name (vLLM 0.32, processor cache).
type firstSeen struct {
	mu    sync.Mutex
	facts map[string]mmhash.Facts
	order []string
}

const maxFirst = 1 << 14

func (t *firstSeen) get(name string) (mmhash.Facts, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, ok := t.facts[name]
	return f, ok
}

// put notes a picture unless the name has one, and gives the one that counts.
func (t *firstSeen) put(name string, f mmhash.Facts) mmhash.Facts {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old, ok := t.facts[name]; ok {
		return old
	}
	if t.facts == nil {
		t.facts = make(map[string]mmhash.Facts)
	}
	if len(t.order) >= maxFirst {
		delete(t.facts, t.order[0])
		t.order = t.order[1:]
	}
	t.facts[name] = f
	t.order = append(t.order, name)
	return f
}
