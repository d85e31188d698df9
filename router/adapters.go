package router

import (
	"cmp"
	"slices"
	"sync"

	"github.com/sightline-router/sightline/workers/fleet"
)

// A worker computes a request for a LoRA adapter only after it has loaded that adapter, and computes nothing else meanwhile. What
// it has loaded is estimated from the requests that it was sent: the last few adapters, as many as fit (models[].max_loras, or as
// the worker reports), because engines evict the least recently used one. Its metrics name the adapters in use, by any sender's
// requests.
//
// adapterLoad is the cost of a load until events show it: the tokens that could be prefilled meanwhile, in a quarter of a second.
const adapterLoad = 2500

// adapters records which adapters each slot was sent, the last one first.
type adapters struct {
	mu     sync.Mutex
	sentTo map[*fleet.Slot][]string
}

// loadCost returns the cost of loading an adapter on a slot, in tokens. It is doubled if another adapter has to be evicted, since
// that one will be requested again.
func (a *adapters) loadCost(slot *fleet.Slot, name string, room int) int {
	if name == "" {
		return 0
	}
	uses, told := slot.Worker.UsesAdapter(name)
	if uses {
		return 0
	}
	room = adapterCapacity(room, told)
	one := cmp.Or(slot.AdapterLoadTokens(), adapterLoad)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch has := a.sentTo[slot]; {
	case slices.Contains(has, name):
		return 0
	case len(has) < room:
		return one
	}
	return 2 * one
}

// adapterCapacity returns how many adapters a worker has loaded at once: as configured, else as it reports, else one.
func adapterCapacity(configured, told int) int {
	if configured > 0 {
		return configured
	}
	return max(1, told)
}

// recordSent records that a slot was sent a request for an adapter. It returns whether the slot has to load that.
func (a *adapters) recordSent(slot *fleet.Slot, name string, room int) (isNew bool) {
	if name == "" {
		return false
	}
	_, told := slot.Worker.UsesAdapter(name)
	room = adapterCapacity(room, told)
	a.mu.Lock()
	defer a.mu.Unlock()
	isNew = !slices.Contains(a.sentTo[slot], name)
	has := slices.DeleteFunc(a.sentTo[slot], func(n string) bool { return n == name })
	a.sentTo[slot] = slices.Insert(has, 0, name)[:min(len(has)+1, room)]
	for s := range a.sentTo { // workers that have left
		if !s.Worker.Present() {
			delete(a.sentTo, s)
		}
	}
	return isNew
}

// withdraw records that a slot has not loaded an adapter after all; "": none.
func (a *adapters) withdraw(slot *fleet.Slot, name string) {
	if name == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sentTo[slot] = slices.DeleteFunc(a.sentTo[slot], func(n string) bool { return n == name })
}
