package router

import (
	"cmp"
	"slices"
	"sync"

	"github.com/sightline-router/sightline/router/fleet"
)

// A worker computes a request of a LoRA adapter when it has loaded that adapter, and meanwhile nothing else. Which ones it has is
// known from what it was sent: the last few, as many as fit (models[].max_loras, or as it tells), for engines drop the one that was used
// least lately; and from its metrics, which name those in use, whoever asked for them.
const adapterLoad = 2500 // tokens that could be prefilled meanwhile, until events show it: a quarter of a second

// adapters are who was sent which, the last one first.
type adapters struct {
	mu sync.Mutex
	of map[*fleet.Slot][]string
}

// work is what loading costs on a slot, in tokens, and once more where another adapter has to go for it: that is asked for again.
func (a *adapters) work(slot *fleet.Slot, name string, room int) int {
	if name == "" {
		return 0
	}
	uses, told := slot.Worker.Uses(name)
	if uses {
		return 0
	}
	room = roomOf(room, told)
	one := cmp.Or(slot.Loading(), adapterLoad)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch has := a.of[slot]; {
	case slices.Contains(has, name):
		return 0
	case len(has) < room:
		return one
	}
	return 2 * one
}

// roomOf is how many adapters a worker has loaded at once: as configured, else as it tells, else one.
func roomOf(configured, told int) int {
	if configured > 0 {
		return configured
	}
	return max(1, told)
}

// use takes down that a slot was sent a request of an adapter.
func (a *adapters) use(slot *fleet.Slot, name string, room int) {
	if name == "" {
		return
	}
	_, told := slot.Worker.Uses(name)
	room = roomOf(room, told)
	a.mu.Lock()
	defer a.mu.Unlock()
	has := slices.DeleteFunc(a.of[slot], func(n string) bool { return n == name })
	a.of[slot] = slices.Insert(has, 0, name)[:min(len(has)+1, room)]
	for s := range a.of { // of workers that have left
		if !s.Worker.Present() {
			delete(a.of, s)
		}
	}
}
