package router

import (
	"time"

	"github.com/sightline-router/sightline/router/fleet"
)

// What the index says of a slot is as old as its event stream. A stream that has just broken costs nothing: it comes back
// with what was missed. One that stays away leaves behind what the worker held then, and the worker goes on storing and
// evicting: what was told counts as predicted, and for ever less of it, as engines evict from the ends of prompts to their
// beginnings; in the end it counts for nothing. A stream that has lost messages for good counts from then on like one that has been
// dead for doubtAfter, until its later events have settled what the lost ones may have taken away.
const (
	doubtAfter   = 10 * time.Second // of silence on a connection that is known to be dead
	unknownAfter = 5 * time.Minute
)

// Why a decision is not exact then.
const (
	eventsAway = "the worker's events have not come for long"
	eventsLost = "events of the worker were lost"
)

// ageOf is how old what the index says of a slot counts as, and why it is in doubt if that makes it so.
func ageOf(slot *fleet.Slot, now time.Time) (age time.Duration, why string) {
	if slot.EventAge != nil {
		age, why = slot.EventAge(now), eventsAway
	}
	if slot.Doubt != nil {
		if lost := slot.Doubt(now); lost > 0 && lost+doubtAfter > age {
			age, why = lost+doubtAfter, eventsLost
		}
	}
	return age, why
}

// believed is how many of the leading blocks that a slot's events told of count, and whether they are no proof any more.
func believed(blocks int, age time.Duration) (n int, doubtful bool) {
	switch {
	case age < doubtAfter:
		return blocks, false
	case age >= unknownAfter:
		return 0, true
	}
	return int(float64(blocks) * float64(unknownAfter-age) / float64(unknownAfter-doubtAfter)), true
}

// tells reports whether a slot's events will tell of what it is given.
func tells(slot *fleet.Slot, now time.Time) bool {
	if slot.EventAge == nil {
		return false
	}
	age, _ := ageOf(slot, now)
	_, doubtful := believed(0, age)
	return !doubtful
}
