package router

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// unserved records model names that requests asked for and no worker serves: the first maxUnserved of the last hour, as shown
// returns them.
type unserved struct {
	mu        sync.Mutex
	lastAsked map[string]time.Time
}

const (
	maxUnserved = 64
	unservedFor = time.Hour
)

// add records a name.
func (u *unserved) add(name string, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.lastAsked == nil {
		u.lastAsked = map[string]time.Time{}
	}
	if _, known := u.lastAsked[name]; known || len(u.lastAsked) < maxUnserved {
		u.lastAsked[name] = now
	}
}

// names drops names that were not asked for recently, and returns the others.
func (u *unserved) names(now time.Time) []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.lastAsked, func(_ string, at time.Time) bool { return now.Sub(at) > unservedFor })
	return slices.Sorted(maps.Keys(u.lastAsked))
}

// Unserved returns the model names that requests of the last hour asked for and no worker serves; 64 may stand for more.
func (r *Router) Unserved() []string { return r.unserved.names(r.opt.Now()) }
