package router

import (
	"maps"
	"sync"
	"time"

	"github.com/sightline-router/sightline/router/fleet"
)

// An engine that drafts with EAGLE or MTP may withhold the last block that it finds (vLLM up to 0.32, and 0.33 with a KV connector).
// No event says so, but its answers do: each finds one block less than the index has. After answersForWithheld of these in a row the
// index counts one block less for the slot, and again all of them after as many answers with one block more.
const answersForWithheld = 3

// withheld counts such answers by slot. It forgets slots of workers that have left, and those that withhold nothing and had no answer
// for withheldRest.
type withheld struct {
	mu     sync.Mutex
	bySlot map[*fleet.Slot]*withholding
}

type withholding struct {
	withholds bool
	answers   int // in a row that contradict it
	last      time.Time
}

const withheldRest = time.Hour

// count records an answer that found so many whole blocks less than were predicted, and returns what changes: whether the slot
// withholds its last block.
func (w *withheld) count(slot *fleet.Slot, less int, whole bool, now time.Time) (withholds, changed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := w.bySlot[slot]
	if one == nil {
		if less != 1 || !whole { // most slots never have an entry
			return false, false
		}
		if w.bySlot == nil {
			w.bySlot = map[*fleet.Slot]*withholding{}
		}
		maps.DeleteFunc(w.bySlot, func(slot *fleet.Slot, one *withholding) bool {
			return !slot.Worker.Present() || now.Sub(one.last) > withheldRest && !one.withholds
		})
		one = &withholding{}
		w.bySlot[slot] = one
	}
	one.last = now
	contradicts := less == 1
	if one.withholds {
		contradicts = less == -1
	}
	switch {
	case !whole || !contradicts:
		one.answers = 0
		return false, false
	case one.answers+1 < answersForWithheld:
		one.answers++
		return false, false
	}
	one.withholds, one.answers = !one.withholds, 0
	return one.withholds, true
}
