// Package fleet knows who the workers are and how loaded they are.
//
// A worker has one Slot for each data-parallel rank; a slot is what a request is sent to. Load is counted, not asked
// for: a request books its slot when it is decided, Envoy's access log moves the booking to the worker really used and
// ends it (booking.go). Booked prefill work drains at the rate that the slot has shown, the oldest first; a booking that
// nobody ends expires. Workers that fail are put out for a time (health.go).
package fleet

import (
	"container/list"
	"math"
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
	Prefill   bool // it only prefills: another of the model's workers decodes

	health health
}

// at tells whether a request that went to addr may have gone to this worker.
func (w *Worker) at(addr string) bool {
	return w.Instance != "" && slices.Contains(w.Frontends, addr)
}

// Slot is a worker or one of its data-parallel ranks.
type Slot struct {
	Worker *Worker
	Rank   int            // -1: the worker has no ranks
	ID     indexer.SlotID // what this slot holds, in the index
	// EventAge, if set, is how long the slot's events have not come as they happen (stream.Feed.Age). Set before the worker
	// is in the fleet.
	EventAge func(now time.Time) time.Duration

	mu       sync.Mutex
	inflight int
	queue    list.List // of *hold: those with tokens still to prefill, in the order of booking
	backlog  float64   // their sum, at the time since
	rate     float64   // tokens a second, learned
	recent   float64   // tokens booked lately, at the time since
	since    time.Time // of backlog and recent
	others   int       // requests that the worker told of and that were not booked here
	usage    float64   // of its KV cache, as told
}

// recently is the time in which booked work loses half its weight in Load.Recent.
const recently = time.Minute

// firstRate is the prefill rate (tokens a second) that a slot is taken to have until its answers tell.
const firstRate = 10000

// Load is a slot's state at one moment.
type Load struct {
	Inflight int     // requests: ours, and others' where the worker tells
	Backlog  float64 // tokens booked and not yet prefilled
	Recent   float64 // tokens booked, each half as heavy after each minute
	Usage    float64 // share of the KV cache in use, 0 to 1; 0 where the worker does not tell
}

// Load tells how loaded the slot is.
func (s *Slot) Load(now time.Time) Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain(now)
	return Load{Inflight: s.inflight + s.others, Backlog: s.backlog, Recent: s.recent, Usage: s.usage}
}

func (s *Slot) drain(now time.Time) {
	d := now.Sub(s.since)
	if d <= 0 {
		return
	}
	s.since = now
	s.recent *= half(d)
	for done := s.rate * d.Seconds(); done > 0 && s.queue.Len() > 0; {
		h := s.queue.Front().Value.(*hold)
		n := min(h.left, done)
		done -= n
		s.take(h, n)
	}
}

// half is what is left of recent work after a time.
func half(d time.Duration) float64 { return math.Exp2(-d.Seconds() / recently.Seconds()) }

// hold is what one booking takes of a slot: a request in flight, and tokens until they are prefilled.
type hold struct {
	slot   *Slot
	tokens float64
	left   float64 // of them, still to prefill
	at     time.Time
	place  *list.Element // in the slot's queue while there are some left
}

// take takes n of the tokens left off the slot's backlog.
func (s *Slot) take(h *hold, n float64) {
	h.left -= n
	s.backlog = max(0, s.backlog-n)
	if h.left <= 0 {
		s.queue.Remove(h.place)
	}
	if s.queue.Len() == 0 {
		s.backlog = 0 // no rounding stays
	}
}

func (s *Slot) book(tokens int, now time.Time) *hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain(now)
	h := &hold{slot: s, tokens: float64(tokens), left: float64(tokens), at: now}
	s.inflight++
	s.backlog += h.left
	s.recent += h.left
	if h.left > 0 {
		h.place = s.queue.PushBack(h)
	}
	return h
}

// release gives back the place and the tokens that are left. It must be called once.
func (h *hold) release(now time.Time) {
	s := h.slot
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain(now)
	s.inflight--
	if h.left > 0 {
		s.take(h, h.left)
	}
}

// undo releases what was never used: another worker got the request.
func (h *hold) undo(now time.Time) {
	h.release(now)
	s := h.slot
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recent = max(0, s.recent-h.tokens*half(now.Sub(h.at)))
}

// learn updates the rate: EWMA of tokens ÷ time to first byte, weight 0.3 up and 0.05 down, because a queue in the engine
// looks like slowness. Short prompts say nothing of it.
func (s *Slot) learn(tokens int, took time.Duration) {
	if tokens < 256 || took <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := float64(tokens) / took.Seconds()
	weight := 0.05
	if seen > s.rate {
		weight = 0.3
	}
	s.rate += weight * (seen - s.rate)
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
	byModel map[string][]*Slot // to choose among
	decode  map[string][]*Slot // where other workers decode
	slots   []*Slot            // to choose among, of all models
}

// New makes an empty fleet. now is the clock, time.Now if nil.
func New(now func() time.Time) *Fleet {
	if now == nil {
		now = time.Now
	}
	f := &Fleet{now: now, bookings: bookings{open: make(map[string]*booking)}}
	f.state.Store(&state{})
	return f
}

// NewWorker describes a worker with ranks data-parallel ranks (0: none); join gives each slot its slot in the index.
func NewWorker(name string, addr netip.AddrPort, model string, ranks int, join func(rank int) indexer.SlotID) *Worker {
	w := &Worker{Name: name, Addr: addr.String(), Model: model}
	for r := range max(1, ranks) {
		s := &Slot{Worker: w, Rank: r, ID: join(r), rate: firstRate}
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
	st := &state{workers: workers, byAddr: make(map[string]*Worker), byModel: make(map[string][]*Slot), decode: make(map[string][]*Slot)}
	models := make(map[string][]*Worker)
	for _, w := range workers {
		if w.Instance == "" {
			st.byAddr[w.Addr] = w
		}
		models[w.Model] = append(models[w.Model], w)
	}
	for _, w := range workers {
		if all := models[w.Model]; all[0] == w {
			st.byModel[w.Model], st.decode[w.Model] = divide(all)
			st.slots = append(st.slots, st.byModel[w.Model]...)
		}
	}
	f.state.Store(st)
}

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
