package router

import (
	"time"

	"github.com/sightline-router/sightline/router/fleet"
)

// What the index says of a slot is as old as its event stream. A stream that has just broken costs nothing: it comes back
// with what was missed. One that stays away leaves behind what the worker held then, and the worker goes on storing and
// evicting: what was told counts as predicted, and for ever less of it, as engines evict from the ends of prompts to their
// beginnings; in the end it counts for nothing.
const (
	doubtAfter   = 10 * time.Second // of silence on a connection that is known to be dead
	unknownAfter = 5 * time.Minute
)

// eventsAway is why a decision is not exact then.
const eventsAway = "the worker's events have not come for long"

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
	_, doubtful := believed(0, slot.EventAge(now))
	return !doubtful
}
