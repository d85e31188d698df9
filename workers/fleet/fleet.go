// Package fleet keeps the workers and their load.
//
// A worker has one Slot for each data-parallel rank; requests are sent to slots. Load is counted rather than polled: a request
// is charged to its slot from its decision to its end (package ledger). The tokens left to prefill follow the worker's own events
// (load.go). What workers report about their load corrects it for a while (loadreport.go). Failing workers are taken
// out for a time (health.go), operators take workers out (service.go), and workers that join or return get no more than
// their share at first (slowstart.go).
package fleet

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer"
)

// Worker is one engine server.
type Worker struct {
	Name       string // the configured name; if a DNS name has several addresses, all but the first one found have theirs appended
	StableName string // its name in messages to replicas, which does not depend on the order of discovery; NewWorker sets Name
	Addr       string // ip:port that Envoy dials
	Model      string // the configured model's name
	Class      string // one of the model's classes; "": the model's own
	Slots      []*Slot
	// Instance is the worker's id if it has no address of its own but is reached through Frontends (NVIDIA Dynamo: a pool of
	// front ends in direct mode). Addr is then the first of them, which other workers share.
	Instance    string
	Frontends   []string
	Role        Role
	Revision    string        // of the deployment; workers of several revisions make no pair. "": not known
	MaxInFlight int           // requests that each slot may have; 0: the router's limit
	ZoneDelay   time.Duration // additional round-trip time from Envoy, compared with a worker in Envoy's zone

	health        health
	adapters      atomic.Pointer[map[string]string] // as listed last, path by name
	loaded        atomic.Pointer[loadedAdapters]
	service       atomic.Pointer[serviceSince] // nil: always in service
	serving       atomic.Int32                 // rules.Serving, as it says
	present       atomic.Bool                  // in the fleet
	newcomerUntil atomic.Int64                 // Unix ns until which it is a newcomer
	pace          atomic.Pointer[pace]         // of its model's workers in the fleet; its own until it is in one
}

// ReachedAt reports whether a request that went to addr may have gone to this worker.
func (w *Worker) ReachedAt(addr string) bool {
	if w.Instance == "" {
		return w.Addr == addr
	}
	return slices.Contains(w.Frontends, addr)
}

// Slot is a worker or one of its data-parallel ranks.
type Slot struct {
	Worker *Worker
	Rank   int            // -1: the worker has no ranks
	ID     indexer.SlotID // the slot in the index
	// EventAge, if set, returns for how long the slot's events have not arrived as they happen (stream.Feed.Age). It is set
	// before the worker joins the fleet.
	EventAge func(now time.Time) time.Duration
	// Doubt, if set, returns for how long the index's content of the slot has been in doubt because messages were lost; 0: it is
	// not (stream.Feed.Doubt). It is set like EventAge.
	Doubt func(now time.Time) time.Duration
	// EarlyEvents: events report a stored block when the step that computes it begins (rules.Rules.StoredEarly). It is set like
	// EventAge.
	EarlyEvents bool

	encoded atomic.Uint64 // image tokens in total

	mu sync.Mutex
	load
}

// Fleet is the set of workers. It is safe for concurrent use; a change replaces the whole set.
type Fleet struct {
	now   func() time.Time
	state atomic.Pointer[state]
	setMu sync.Mutex
	paces map[string]*pace // by model, under setMu
}

type state struct {
	workers      []*Worker
	byAddr       map[string]*Worker
	byStableName map[string]*Worker
	byModel      map[string][]*Slot // slots that may be chosen
	encode       map[string][]*Slot // slots that encode for the model
	slots        []*Slot            // slots that may be chosen, of all models
}

// New returns an empty fleet. now is the clock, time.Now if nil.
func New(now func() time.Time) *Fleet {
	if now == nil {
		now = time.Now
	}
	f := &Fleet{now: now, paces: make(map[string]*pace)}
	f.state.Store(&state{})
	return f
}

// NewWorker returns a worker with ranks data-parallel ranks (0: none). join returns the index slot of each rank.
func NewWorker(name string, addr netip.AddrPort, model string, ranks int, join func(rank int) indexer.SlotID) *Worker {
	w := &Worker{Name: name, StableName: name, Addr: addr.String(), Model: model}
	w.pace.Store(&pace{})
	for r := range max(1, ranks) {
		s := &Slot{Worker: w, Rank: r, ID: join(r), load: load{expectedRate: defaultRate}}
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
	st := &state{workers: workers, byAddr: make(map[string]*Worker), byStableName: make(map[string]*Worker),
		byModel: make(map[string][]*Slot), encode: make(map[string][]*Slot)}
	models, paces := make(map[string][]*Worker), make(map[string]*pace)
	for _, w := range workers {
		st.byStableName[w.StableName] = w
		if w.Instance == "" {
			st.byAddr[w.Addr] = w
		}
		models[w.Model] = append(models[w.Model], w)
		if paces[w.Model] == nil {
			paces[w.Model] = cmp.Or(f.paces[w.Model], &pace{})
		}
	}
	for _, w := range workers {
		if all := models[w.Model]; all[0] == w {
			st.byModel[w.Model], st.encode[w.Model] = splitByRole(all)
			st.slots = append(st.slots, st.byModel[w.Model]...)
		}
	}
	f.paces = paces
	now := f.now()
	stays := make(map[*Worker]bool, len(workers))
	for _, w := range workers {
		stays[w] = true
		w.pace.Store(paces[w.Model])
		if !w.present.Swap(true) {
			w.becomeNewcomer(now)
		}
	}
	for _, w := range f.Workers() {
		w.present.Store(stays[w])
	}
	f.state.Store(st)
}

// SetServing sets the order in which the worker says that it serves waiting requests.
func (w *Worker) SetServing(s rules.Serving) { w.serving.Store(int32(s)) }

// Serving returns it; rules.Unsaid: the worker has not been asked yet, or does not say.
func (w *Worker) Serving() rules.Serving { return rules.Serving(w.serving.Load()) }

// Present reports whether the worker is in the fleet: known and ready.
func (w *Worker) Present() bool { return w.present.Load() }

// Workers returns the workers. The caller must not change the list.
func (f *Fleet) Workers() []*Worker { return f.state.Load().workers }

// Slots returns a model's slots that may be chosen; for "" those of all models. The caller must not change the list.
func (f *Fleet) Slots(model string) []*Slot {
	st := f.state.Load()
	if model == "" {
		return st.slots
	}
	return st.byModel[model]
}

// Find returns a worker's slot by its stable name and rank (-1: the worker has no ranks); nil: there is none.
func (f *Fleet) Find(worker string, rank int) *Slot {
	if w := f.state.Load().byStableName[worker]; w != nil {
		for _, s := range w.Slots {
			if s.Rank == rank {
				return s
			}
		}
	}
	return nil
}

// ByAddr returns the worker with the address ip:port; nil: there is none.
func (f *Fleet) ByAddr(addr string) *Worker { return f.state.Load().byAddr[addr] }
