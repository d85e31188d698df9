package router

import (
	"maps"
	"sync"
	"time"

	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/workers/fleet"
)

// An engine that finds less than its own events promised has lost something without reporting it. A single case may be an
// eviction between the decision and the prefill, and only that chain is dropped. If it repeats on one slot, the index is wrong
// about the slot and its feed is restarted. For a slot that is in doubt anyway (staleness.go) some misses are expected, so there most
// answers must miss.
const (
	missesForResync = 3                // answers
	missWindow      = time.Minute      // within which they must fall
	resyncRest      = 10 * time.Minute // the shortest time between two resyncs of a slot
)

// What one client's requests can do is limited, since it may know how to make an engine find less: the answers that correct the index,
// and the resyncs for which no other client's answers speak.
const (
	correctionsOfOne = 16 // answers of one client within missWindow
	resyncsOfOneRest = time.Hour
	maxCorrectors    = 1 << 16 // clients counted within missWindow; beyond it the others count as one
)

// suspects counts answers with fewer cached tokens than predicted: by slot, forgotten when a slot had none for resyncRest, and by
// client, forgotten after missWindow.
type suspects struct {
	mu       sync.Mutex
	bySlot   map[*fleet.Slot]*suspect
	byClient map[fair.Client]int // answers that corrected the index since began
	began    time.Time
	alone    map[fair.Client]time.Time // clients whose answers alone caused a resync, within resyncsOfOneRest
}

// mayCorrect counts an answer that found less, and reports whether its client may correct the index by it. A client that is not known is
// not limited.
func (s *suspects) mayCorrect(c fair.Client, now time.Time) bool {
	if c == 0 {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byClient == nil || now.Sub(s.began) > missWindow {
		s.byClient, s.began = make(map[fair.Client]int), now
	}
	if _, known := s.byClient[c]; !known && len(s.byClient) >= maxCorrectors {
		c = 0
	}
	s.byClient[c]++
	return s.byClient[c] <= correctionsOfOne
}

// mayResync reports whether a resync is due although all misses are of one client.
func (s *suspects) mayResync(of [missesForResync]fair.Client, now time.Time) bool {
	c := of[0]
	for _, other := range of {
		if other != c || c == 0 {
			return true
		}
	}
	maps.DeleteFunc(s.alone, func(_ fair.Client, at time.Time) bool { return now.Sub(at) > resyncsOfOneRest })
	if _, before := s.alone[c]; before || len(s.alone) >= maxCorrectors {
		return false
	}
	if s.alone == nil {
		s.alone = make(map[fair.Client]time.Time)
	}
	s.alone[c] = now
	return true
}

type suspect struct {
	at             [missesForResync]time.Time // the last ones, oldest first
	of             [missesForResync]fair.Client
	hits           int       // answers of a doubtful slot since the first of at that found what was predicted
	noResyncBefore time.Time // no resync before
}

// countMiss records such an answer to a client, and reports whether a resync is due.
func (s *suspects) countMiss(slot *fleet.Slot, c fair.Client, now time.Time) bool {
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
	copy(one.of[:], one.of[1:])
	one.at[missesForResync-1], one.of[missesForResync-1] = now, c
	if one.at[0].IsZero() || now.Sub(one.at[0]) > missWindow || now.Before(one.noResyncBefore) {
		return false
	}
	few := one.hits >= missesForResync
	one.at, one.hits = [missesForResync]time.Time{missesForResync - 1: now}, 0
	if few || !s.mayResync(one.of, now) {
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

// An engine that drafts with EAGLE or MTP may withhold the last block that it finds (vLLM up to 0.32, and 0.33 with a KV connector).
// No event says so, but its answers do: each finds one block less than the index has. After answersForWithheld of these in a row the
// index counts one block less for the slot, and again all of them after as many answers with one block more.
const answersForWithheld = 3

// withheld counts the answers in a row that contradict what the index has of a slot.
type withheld struct {
	mu     sync.Mutex
	bySlot map[*fleet.Slot]int
}

// count records whether an answer contradicts it, and returns true at the last one that is needed.
func (w *withheld) count(slot *fleet.Slot, contradicts bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.bySlot[slot] + 1
	if !contradicts || n == answersForWithheld {
		delete(w.bySlot, slot)
		return contradicts
	}
	if n == 1 { // a new entry takes those of workers that have left
		maps.DeleteFunc(w.bySlot, func(slot *fleet.Slot, _ int) bool { return !slot.Worker.Present() })
	}
	if w.bySlot == nil {
		w.bySlot = map[*fleet.Slot]int{}
	}
	w.bySlot[slot] = n
	return false
}
