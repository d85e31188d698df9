package router

import (
	"maps"
	"sync"
	"time"

	"github.com/sightline-router/sightline/router/fleet"
)

// An engine that finds less than its own events promised has lost something without reporting it. A single case may be an
// eviction between the decision and the prefill, and only that chain is dropped. If it repeats on one slot, the index is wrong
// about the slot and its feed is restarted. For a slot that is in doubt anyway (doubt.go) some misses are expected, so there most
// answers must miss.
const (
	missesForResync = 3                // answers
	missWindow      = time.Minute      // within which they must fall
	resyncRest      = 10 * time.Minute // the shortest time between two resyncs of a slot
)

// suspects counts such answers by slot, and forgets slots that had none for resyncRest.
type suspects struct {
	mu     sync.Mutex
	bySlot map[*fleet.Slot]*suspect
}

type suspect struct {
	at             [missesForResync]time.Time // the last ones, oldest first
	hits           int                        // answers of a doubtful slot since the first of at that found what was predicted
	noResyncBefore time.Time                  // no resync before
}

// countMiss records such an answer and reports whether a resync is due.
func (s *suspects) countMiss(slot *fleet.Slot, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bySlot == nil {
		s.bySlot = make(map[*fleet.Slot]*suspect)
	}
	maps.DeleteFunc(s.bySlot, func(_ *fleet.Slot, one *suspect) bool { return now.Sub(one.at[missesForResync-1]) > resyncRest })
	one := s.bySlot[slot]
	if one == nil {
		one = new(suspect)
		s.bySlot[slot] = one
	}
	if now.Sub(one.at[missesForResync-1]) > missWindow {
		one.hits = 0
	}
	copy(one.at[:], one.at[1:])
	one.at[missesForResync-1] = now
	if one.at[0].IsZero() || now.Sub(one.at[0]) > missWindow || now.Before(one.noResyncBefore) {
		return false
	}
	few := one.hits >= missesForResync
	one.at, one.hits = [missesForResync]time.Time{missesForResync - 1: now}, 0
	if few {
		return false
	}
	one.noResyncBefore = now.Add(resyncRest)
	return true
}

// countHit records that a slot in doubt had what was predicted.
func (s *suspects) countHit(slot *fleet.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.bySlot[slot]; one != nil {
		one.hits++
	}
}
