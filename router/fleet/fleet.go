// Package fleet knows who the workers are and how loaded they are.
//
// A worker has one Slot for each data-parallel rank; a slot is what a request is sent to. Load is counted, not asked
// for: a request books its slot when it is decided, Envoy's access log moves the booking to the worker really used and
// ends it (booking.go). What is left to prefill follows the worker's own events (load.go); a booking that nobody ends
// expires. What workers tell of their load corrects it for a while (told.go). Workers that fail are put out for a time
// (health.go), and those that come, or come back, get no more than their share at first (newcomer.go).
package fleet

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sightline-router/sightline/indexer"
)

// Worker is one engine server.
type Worker struct {
	Name  string // the configured name
	Addr  string // ip:port, what Envoy dials
	Model string // the configured model's name
	Class string // one of the model's classes; "": the model's own
	Slots []*Slot
	// Instance is the worker's id where it has no address of its own but is asked for at one of Frontends (NVIDIA Dynamo:
	// a pool of its front ends in direct mode). Addr is the first of them then; other workers have it too.
	Instance  string
	Frontends []string
	Role      Role
	Most      int           // requests that each slot may have, in place of the router's limit; 0: that
	Away      time.Duration // what it is farther from Envoy than a worker of its own zone, there and back

	health   health
	adapters atomic.Pointer[map[string]string] // as it listed them last, path by name
	loaded   atomic.Pointer[loadedNow]
	present  atomic.Bool  // in the fleet
	settles  atomic.Int64 // Unix ns until which it is a newcomer
}

// at tells whether a request that went to addr may have gone to this worker.
func (w *Worker) at(addr string) bool {
	if w.Instance == "" {
		return w.Addr == addr
	}
	return slices.Contains(w.Frontends, addr)
}

// Slot is a worker or one of its data-parallel ranks.
type Slot struct {
	Worker *Worker
	Rank   int            // -1: the worker has no ranks
	ID     indexer.SlotID // what this slot holds, in the index
	// EventAge, if set, is how long the slot's events have not come as they happen (stream.Feed.Age). Set before the worker
	// is in the fleet.
	EventAge func(now time.Time) time.Duration
	// Doubt, if set, is for how long what the index holds of the slot has been in doubt, because messages were lost; 0: it is not
	// (stream.Feed.Doubt). Set as EventAge is.
	Doubt func(now time.Time) time.Duration
	// Early: its stored blocks are told when the step that computes them begins (rules.Rules.StoredEarly). Set as EventAge is.
	Early bool

	encoded atomic.Uint64 // picture tokens, ever

	mu sync.Mutex
	load
}

// Fleet is the set of workers. Safe for concurrent use; the set itself is replaced whole when it changes.
type Fleet struct {
	now   func() time.Time
	state atomic.Pointer[state]
	setMu sync.Mutex

	bookings bookings
}

type state struct {
	workers []*Worker
	byAddr  map[string]*Worker
	byName  map[string]*Worker
	byModel map[string][]*Slot // to choose among
	encode  map[string][]*Slot // that encode for those
	slots   []*Slot            // to choose among, of all models
}

// New makes an empty fleet. now is the clock, time.Now if nil.
func New(now func() time.Time) *Fleet {
	if now == nil {
		now = time.Now
	}
	f := &Fleet{now: now, bookings: bookings{open: make(map[string]*booking), tenants: make(map[string]map[string]int)}}
	f.state.Store(&state{})
	return f
}

// NewWorker describes a worker with ranks data-parallel ranks (0: none); join gives each slot its slot in the index.
func NewWorker(name string, addr netip.AddrPort, model string, ranks int, join func(rank int) indexer.SlotID) *Worker {
	w := &Worker{Name: name, Addr: addr.String(), Model: model}
	for r := range max(1, ranks) {
		s := &Slot{Worker: w, Rank: r, ID: join(r), load: load{rate: firstRate}}
		if ranks == 0 {
			s.Rank = -1
		}
		w.Slots = append(w.Slots, s)
	}
	return w
}

// Set replaces the workers.
func (f *Fleet) Set(workers []*Worker) {
	f.setMu.Lock()
	defer f.setMu.Unlock()
	st := &state{workers: workers, byAddr: make(map[string]*Worker), byName: make(map[string]*Worker), byModel: make(map[string][]*Slot), encode: make(map[string][]*Slot)}
	models := make(map[string][]*Worker)
	for _, w := range workers {
		st.byName[w.Name] = w
		if w.Instance == "" {
			st.byAddr[w.Addr] = w
		}
		models[w.Model] = append(models[w.Model], w)
	}
	for _, w := range workers {
		if all := models[w.Model]; all[0] == w {
			st.byModel[w.Model], st.encode[w.Model] = divide(all)
			st.slots = append(st.slots, st.byModel[w.Model]...)
		}
	}
	now := f.now()
	stays := make(map[*Worker]bool, len(workers))
	for _, w := range workers {
		stays[w] = true
		if !w.present.Swap(true) {
			w.arrive(now)
		}
	}
	for _, w := range f.Workers() {
		w.present.Store(stays[w])
	}
	f.state.Store(st)
}

// Present tells whether the worker is in the fleet: known and ready.
func (w *Worker) Present() bool { return w.present.Load() }

// Workers lists the workers. The caller must not change the list.
func (f *Fleet) Workers() []*Worker { return f.state.Load().workers }

// Slots lists a model's slots to choose among; those of all models for "". The caller must not change the list.
func (f *Fleet) Slots(model string) []*Slot {
	st := f.state.Load()
	if model == "" {
		return st.slots
	}
	return st.byModel[model]
}

// ByAddr finds the worker behind an ip:port, nil if there is none.
func (f *Fleet) ByAddr(addr string) *Worker { return f.state.Load().byAddr[addr] }
