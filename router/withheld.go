package router

import (
	"maps"
	"sync"

	"github.com/sightline-router/sightline/workers/fleet"
)

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
