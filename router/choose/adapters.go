package choose

import (
	"cmp"
	"slices"
	"sync"

	"github.com/sightline-router/sightline/workers/fleet"
)

// A worker computes a request for a LoRA adapter only after it has loaded that adapter, and computes nothing else meanwhile. What
// it has loaded is estimated from the requests that it was sent: the last few adapters, as many as fit (as the
// worker reports), because engines evict the least recently used one. Its metrics name the adapters in use, by any sender's
// requests.
//
// adapterLoad is the cost of a load until events show it: the tokens that could be prefilled meanwhile, in a quarter of a second.
const adapterLoad = 2500

// Adapters records which adapters each slot was sent, the last one first. It is safe for concurrent use.
type Adapters struct {
	mu     sync.Mutex
	sentTo map[*fleet.Slot][]string
}

// NewAdapters returns an empty record.
func NewAdapters() *Adapters { return &Adapters{sentTo: make(map[*fleet.Slot][]string)} }

// addAdapterLoads adds what it costs each candidate to load the prompt's adapter.
func addAdapterLoads(in *Input, c *Choice) {
	if in.Adapter == "" {
		return
	}
	for i := range c.Candidates {
		one := &c.Candidates[i]
		one.AdapterLoad = in.Adapters.LoadCost(in.Slots[one.Slot], in.Adapter, in.MaxLoRAs)
	}
}

// LoadCost returns the cost of loading an adapter on a slot, in tokens. It is doubled if another adapter has to be evicted, since
// that one will be requested again.
func (a *Adapters) LoadCost(slot *fleet.Slot, name string, room int) int {
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

// Sent records that a slot was sent a request for an adapter. It returns whether the slot has to load that.
func (a *Adapters) Sent(slot *fleet.Slot, name string, room int) (isNew bool) {
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

// Withdraw records that a slot has not loaded an adapter after all; "": none.
func (a *Adapters) Withdraw(slot *fleet.Slot, name string) {
	if name == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sentTo[slot] = slices.DeleteFunc(a.sentTo[slot], func(n string) bool { return n == name })
}
