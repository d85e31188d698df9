package router

import (
	"sync"
	"time"
)

// unserved are the model names that requests asked for and nobody serves: the first so many of the last hour, as shown makes
// them fit for people.
type unserved struct {
	mu   sync.Mutex
	last map[string]time.Time
}

const (
	mostUnserved = 64
	unservedFor  = time.Hour
)

// add notes a name.
func (u *unserved) add(name string, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.last == nil {
		u.last = map[string]time.Time{}
	}
	if _, known := u.last[name]; known || len(u.last) < mostUnserved {
		u.last[name] = now
	}
}

// count forgets those that were not asked for lately, and counts the others.
func (u *unserved) count(now time.Time) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	for name, at := range u.last {
		if now.Sub(at) > unservedFor {
			delete(u.last, name)
		}
	}
	return len(u.last)
}
