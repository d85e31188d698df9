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
	doubts      = 3                // answers
	doubtWindow = time.Minute      // within which they must fall
	doubtRest   = 10 * time.Minute // the shortest time between two resyncs of a slot
)

// suspects counts such answers by slot, and forgets slots that had none for doubtRest.
type suspects struct {
	mu sync.Mutex
	by map[*fleet.Slot]*suspect
}

type suspect struct {
	at   [doubts]time.Time // the last ones, oldest first
	good int               // answers of a doubtful slot since the first of at that found what was predicted
	rest time.Time         // no resync before
}

// count records such an answer and reports whether a resync is due.
func (s *suspects) count(slot *fleet.Slot, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = make(map[*fleet.Slot]*suspect)
	}
	maps.DeleteFunc(s.by, func(_ *fleet.Slot, one *suspect) bool { return now.Sub(one.at[doubts-1]) > doubtRest })
	one := s.by[slot]
	if one == nil {
		one = new(suspect)
		s.by[slot] = one
	}
	if now.Sub(one.at[doubts-1]) > doubtWindow {
		one.good = 0
	}
	copy(one.at[:], one.at[1:])
	one.at[doubts-1] = now
	if one.at[0].IsZero() || now.Sub(one.at[0]) > doubtWindow || now.Before(one.rest) {
		return false
	}
	few := one.good >= doubts
	one.at, one.good = [doubts]time.Time{doubts - 1: now}, 0
	if few {
		return false
	}
	one.rest = now.Add(doubtRest)
	return true
}

// found records that a slot in doubt had what was predicted.
func (s *suspects) found(slot *fleet.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.by[slot]; one != nil {
		one.good++
	}
}
