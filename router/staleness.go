package router

import (
	"time"

	"github.com/sightline-router/sightline/router/speculative"
	"github.com/sightline-router/sightline/workers/fleet"
)

// The index's view of a slot is as old as its event stream. A short disconnect costs nothing, since the missed events are
// replayed. During a long one the worker goes on storing and evicting, so the blocks known from before count as predicted only,
// and ever fewer of them, from the end of the prompt, because engines evict that first; finally they count for nothing. A stream
// that has lost messages for good counts like one disconnected for doubtAfter, until later events settle what the lost ones may
// have removed.
const (
	doubtAfter   = 10 * time.Second // of silence on a connection that is known to be dead
	unknownAfter = 5 * time.Minute
)

// Values of Decision.Why for doubtful slots.
const (
	eventsLate = "the worker's events have not come for long"
	eventsLost = "events of the worker were lost"
)

// indexAge returns how old the index's view of a slot counts as, and the reason if that makes it doubtful.
func indexAge(slot *fleet.Slot, now time.Time) (age time.Duration, why string) {
	if slot.EventAge != nil {
		age, why = slot.EventAge(now), eventsLate
	}
	if slot.Doubt != nil {
		if lost := slot.Doubt(now); lost > 0 && lost+doubtAfter > age {
			age, why = lost+doubtAfter, eventsLost
		}
	}
	return age, why
}

// trustedBlocks returns how many of the leading blocks known from a slot's events count, and whether they are doubtful.
func trustedBlocks(blocks int, age time.Duration) (n int, doubtful bool) {
	switch {
	case age < doubtAfter:
		return blocks, false
	case age >= unknownAfter:
		return 0, true
	}
	return int(float64(blocks) * float64(unknownAfter-age) / float64(unknownAfter-doubtAfter)), true
}

// sendsEvents reports whether a slot's events will show what it stores.
func sendsEvents(slot *fleet.Slot, now time.Time) bool {
	if slot.EventAge == nil {
		return false
	}
	age, _ := indexAge(slot, now)
	_, doubtful := trustedBlocks(0, age)
	return !doubtful
}

// predictionTTL returns how long a prediction for a slot counts, of ttl by default. Events confirm it only after the request's prefill, so
// the time of the queue ahead is added.
func predictionTTL(ttl time.Duration, slot *fleet.Slot, now time.Time) time.Duration {
	most := speculative.Longest(ttl)
	if !sendsEvents(slot, now) {
		return most
	}
	if load := slot.Load(now); load.Rate > 0 {
		ttl += time.Duration(min(most.Seconds(), load.Backlog/load.Rate) * float64(time.Second))
	}
	return min(most, ttl)
}

// predict predicts that a slot will hold the blocks of a chain from index from on, until its events say so.
func (m *memory) predict(slot *fleet.Slot, chain []uint64, from int, ttl time.Duration, now time.Time) *speculative.Promise {
	return m.predicted.Add(uint32(slot.ID), chain, from, predictionTTL(ttl, slot, now), now)
}
