package router

import (
	"maps"
	"sync"
	"time"

	"github.com/sightline-router/sightline/router/fleet"
)

// An engine that finds less than its own events promised has lost something that it has not told. One such answer may be
// an eviction between the decision and the prefill, and only its chain is dropped. When it happens again and again on one
// slot, the index is wrong about it, and the slot's feed starts anew. Of a slot that is in doubt anyway (doubt.go) some of that is to be
// expected: there it must be most of the answers.
const (
	doubts      = 3                // answers
	doubtWindow = time.Minute      // within which they must fall
	doubtRest   = 10 * time.Minute // the shortest time between two resyncs of a slot
)

// suspects counts those answers by slot, and forgets slots of which there were none for doubtRest.
type suspects struct {
	mu sync.Mutex
	by map[*fleet.Slot]*suspect
}

type suspect struct {
	at   [doubts]time.Time // the last ones, oldest first
	good int               // answers since the first of them that found what was predicted though it was in doubt
	rest time.Time         // no resync before
}

// count takes one such answer down and reports whether it is time for a resync.
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

// found takes down that a slot in doubt had what was predicted.
func (s *suspects) found(slot *fleet.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.by[slot]; one != nil {
		one.good++
	}
}
