// Package registry manages the life of workers: a worker joins the index, its feeds keep the index up to date, the fleet has it
// while it is ready, and when it leaves, index, fleet and audit forget it together.
//
//	found, ready      ─ in the fleet, its events are read
//	found, not ready  ─ out of the fleet at once; its events are still read, so that it returns with what it holds
//	no longer found   ─ its feeds end, the audit drops its requests, the index forgets it
//
// The caller decides how workers are found and how their events come: a finder reports its whole set of Specs after each change,
// and a Spec says where its events come from. What all feeds have in common is set here.
//
//	registry.go  Set: the current workers
//	show.go      metrics, listings and resyncs of the feeds
package registry

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/learned"
	"github.com/sightline-router/sightline/workers/fleet"
)

// Spec is a worker as its finder reports it.
type Spec struct {
	// ID, which must be comparable, identifies a worker of one finder: another ID is another worker, whatever its name or
	// address.
	ID           any
	Name         string // the address is appended if another worker has it already
	StableName   string // fleet.Worker.StableName, if it differs from Name
	Addr         netip.AddrPort
	Ready        bool // requests may go to it
	Terminating  bool // it is being deleted: it drains until it is gone
	Model, Class string
	Ranks        int  // data-parallel ranks; 0: none
	FirstRank    int  // what requests call the first of them
	CountsCopies bool // its events report each physical copy of a block
	// Instance, Frontends, Role and Revision as in fleet.Worker; with an Instance, Addr is not its own.
	Instance    string
	Frontends   []string
	Role        fleet.Role
	Revision    string
	ZoneDelay   time.Duration // as in fleet.Worker
	MaxInFlight int           // fleet.Worker.MaxInFlight
	// Listen sets how the events of one rank (from 0) come: Source, Decoder and whatever else o needs. It returns false if the
	// worker sends none. It is called once for each rank when the worker joins.
	Listen func(slot *fleet.Slot, rank int, o *stream.Options) (bool, error)
	// WhileMember, if set, runs while the worker is a member.
	WhileMember func(ctx context.Context, w *fleet.Worker)
}

// Options configure a Set.
type Options struct {
	Index   *indexer.Index
	Fleet   *fleet.Fleet
	Audit   *audit.Auditor   // nil: none
	Learner *learned.Learner // nil: none
	Log     *zap.Logger
	Metrics prometheus.Registerer
	// Linger returns how long the index keeps the slot ID of a worker that left from being reused, so that predictions under it,
	// by decisions that had begun before, expire first. nil: 0
	Linger func() time.Duration
	// Dials returns an error for an address that Envoy may not connect to: a worker there would only fail. nil: all are allowed
	Dials   func(netip.AddrPort) error
	Changed func([]*fleet.Worker) // called with every worker set that the fleet gets
	Forget  func(worker string)   // called with a name that no worker has had for an hour: its counters can be dropped
}

// counterTTL is how long a worker's counters outlive it, so that they are scraped. Pod names are never used again.
const counterTTL = time.Hour

// Set is the set of known workers. It is safe for concurrent use.
type Set struct {
	o       Options
	budget  *stream.Budget // of the feeds of all workers
	resyncs *prometheus.CounterVec

	mu       sync.Mutex
	members  []*member      // in the order of joining
	excluded map[int][]Spec // by finder: found and left out
}

type member struct {
	finder int
	spec   Spec
	worker *fleet.Worker
	slots  []Slot
	sinks  []*slotSink
	end    context.CancelFunc // ends what runs while it is a member
	runs   sync.WaitGroup
}

// Slot is a worker's rank and its feed.
type Slot struct {
	*fleet.Slot
	Feed  *stream.Feed // nil: the worker sends no events
	Ready bool
}

// New returns an empty Set. The caller must Close it.
func New(o Options) *Set {
	if o.Linger == nil {
		o.Linger = func() time.Duration { return 0 }
	}
	s := &Set{o: o, budget: stream.NewBudget(), excluded: make(map[int][]Spec)}
	s.register()
	return s
}

// Add adds a worker to those of a finder. 0 is not a finder: such workers stay until Close.
func (s *Set) Add(finder int, spec Spec) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.join(finder, spec); err != nil {
		return err
	}
	s.publish()
	return nil
}

// Update makes the workers of one finder those that it found. The workers of finders that are gone leave too. Workers that were left
// out, of any finder, are tried again: their address may be free now.
func (s *Set) Update(finder int, found []Spec, gone ...int) {
	s.mu.Lock()
	var left []*member
	stay := make(map[any]bool, len(found))
	s.members = slices.DeleteFunc(s.members, func(m *member) bool {
		if slices.Contains(gone, m.finder) {
			left = append(left, m)
			return true
		}
		if m.finder != finder {
			return false
		}
		at := slices.IndexFunc(found, func(f Spec) bool { return f.ID == m.spec.ID })
		if at < 0 {
			left = append(left, m)
			return true
		}
		m.spec.Ready, stay[m.spec.ID] = found[at].Ready, true
		m.terminate(found[at].Terminating)
		return false
	})
	for _, number := range gone {
		delete(s.excluded, number)
	}
	delete(s.excluded, finder)
	for _, f := range found {
		if !stay[f.ID] && !s.admit(finder, f, zap.WarnLevel) {
			s.excluded[finder] = append(s.excluded[finder], f)
		}
		stay[f.ID] = true
	}
	for other, list := range s.excluded {
		if other != finder {
			s.excluded[other] = slices.DeleteFunc(list, func(f Spec) bool { return s.admit(other, f, zap.DebugLevel) })
		}
	}
	s.publish()
	s.mu.Unlock()
	for _, m := range left {
		s.leave(m)
		name := m.worker.Name // to not retain the member
		time.AfterFunc(counterTTL, func() { s.forget(name) })
		s.o.Log.Info("worker left", zap.String("worker", name), zap.String("addr", m.worker.Addr))
	}
}

// admit joins a worker and reports whether that worked. The caller holds mu.
func (s *Set) admit(finder int, f Spec, say zapcore.Level) bool {
	if err := s.join(finder, f); err != nil {
		s.o.Log.Log(say, "worker rejected", zap.String("worker", f.Name), zap.Stringer("addr", f.Addr), zap.Error(err))
		return false
	}
	s.o.Log.Info("worker joined", zap.String("worker", f.Name), zap.Stringer("addr", f.Addr), zap.Int("ranks", f.Ranks),
		zap.Bool("ready", f.Ready))
	return true
}

// join adds a worker and starts its feeds; publish adds it to the fleet. The caller holds mu.
func (s *Set) join(finder int, spec Spec) error {
	addr, known := "", cmp.Or(spec.StableName, spec.Name)
	if spec.Addr.IsValid() {
		addr = spec.Addr.String()
		if answers := spec.Role == fleet.Any || spec.Role == fleet.Decode; answers && s.o.Dials != nil {
			if err := s.o.Dials(spec.Addr); err != nil {
				return err
			}
		}
	}
	for _, m := range s.members {
		if addr != "" && m.worker.Addr == addr && m.worker.Instance == "" && spec.Instance == "" {
			return fmt.Errorf("%s is already known as worker %q (name each address once)", addr, m.worker.Name)
		}
		if m.worker.Name == spec.Name { // several addresses behind one name, or pods of two namespaces
			spec.Name += "/" + addr
		}
		if m.worker.StableName == known {
			known += "/" + addr
		}
	}
	ctx, end := context.WithCancel(context.Background())
	m := &member{finder: finder, spec: spec, end: end}
	owner := fair.ClientOf(spec.Name)
	joined := indexer.SlotOptions{CountCopies: spec.CountsCopies, Owner: owner}
	m.worker = fleet.NewWorker(spec.Name, spec.Addr, spec.Model, spec.Ranks, func(int) indexer.SlotID {
		sink := &slotSink{IndexSink: stream.Join(s.o.Index, joined), linger: s.o.Linger, index: s.o.Index}
		m.sinks = append(m.sinks, sink)
		return sink.Slot()
	})
	m.worker.StableName = known
	m.worker.Addr, m.worker.Class, m.worker.Instance, m.worker.Frontends, m.worker.Role, m.worker.ZoneDelay,
		m.worker.MaxInFlight = addr, spec.Class, spec.Instance, spec.Frontends, spec.Role, spec.ZoneDelay, spec.MaxInFlight
	m.worker.Revision = spec.Revision
	for r, slot := range m.worker.Slots {
		slot.Rank += spec.FirstRank
		m.sinks[r].slot = slot
		o := stream.Options{Budget: s.budget, Worker: owner, Sink: m.sinks[r], Stored: s.storedSink(slot.ID)}
		o.OnEvent = func(e *kvevent.Event) {
			if e.Kind == kvevent.Lost {
				slot.EventsLost(time.Now())
			}
		}
		tells, err := spec.Listen(slot, r, &o)
		if err != nil {
			s.leave(m)
			return fmt.Errorf("events: %w", err)
		}
		known := Slot{Slot: slot, Ready: spec.Ready}
		if tells {
			known.Feed = stream.Start(o)
			slot.EventAge, slot.Doubt = known.Feed.Age, known.Feed.Doubt
		}
		m.slots = append(m.slots, known)
	}
	if spec.WhileMember != nil {
		m.runs.Go(func() { spec.WhileMember(ctx, m.worker) })
	}
	m.terminate(spec.Terminating)
	s.members = append(s.members, m)
	return nil
}

// terminate has a worker drain that is being deleted.
func (m *member) terminate(is bool) {
	if is {
		m.worker.SetService(fleet.Draining, time.Now())
	}
}

// Order changes what the first worker that is meant may have, as ordered at a time, and returns it; nil: there is none. It lasts until
// another order, or until the worker leaves.
func (s *Set) Order(worker func(*fleet.Worker) bool, to fleet.Service, at time.Time) *fleet.Worker {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.members {
		if worker(m.worker) {
			if m.worker.SetService(to, at) {
				s.o.Changed(s.o.Fleet.Workers())
			}
			return m.worker
		}
	}
	return nil
}

// storedSink returns a function that passes a slot's stored events to the audit and to the learner.
func (s *Set) storedSink(h indexer.SlotID) func(*kvevent.Event) {
	if s.o.Audit == nil && s.o.Learner == nil {
		return nil
	}
	return func(e *kvevent.Event) {
		s.o.Audit.Stored(h, e)
		s.o.Learner.Stored(h, e)
	}
}

// publish sets the fleet's workers to those that are ready. The caller holds mu.
func (s *Set) publish() {
	var now []*fleet.Worker
	for _, m := range s.members {
		for i := range m.slots {
			m.slots[i].Ready = m.spec.Ready
		}
		if m.spec.Ready {
			now = append(now, m.worker)
		}
	}
	if slices.Equal(now, s.o.Fleet.Workers()) {
		return
	}
	s.o.Fleet.Set(now)
	s.o.Changed(now)
}

// leave ends a member's feeds and forgets what it holds.
func (s *Set) leave(m *member) {
	m.end()
	m.runs.Wait()
	for i, sink := range m.sinks {
		if i < len(m.slots) && m.slots[i].Feed != nil {
			m.slots[i].Feed.Close() // this calls the sink's Leave
		} else {
			sink.Leave()
		}
		s.o.Audit.Leave(m.worker.Slots[i].ID)
		s.o.Learner.Leave(m.worker.Slots[i].ID)
	}
	s.o.Audit.WorkerLeft(m.worker.Name)
}

// forget drops the counters of a name, unless a worker has it again.
func (s *Set) forget(worker string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(s.members, func(m *member) bool { return m.worker.Name == worker }) {
		return
	}
	s.resyncs.DeletePartialMatch(prometheus.Labels{"worker": worker})
	s.o.Forget(worker)
}

// Slots returns the slots of all current members.
func (s *Set) Slots() (list []Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.members {
		list = append(list, m.slots...)
	}
	return list
}

// Close ends all feeds. The Set must not be used afterwards.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.members {
		s.leave(m)
	}
	s.members = nil
}

// slotSink is the index for one slot's feed. After each message with stored blocks it updates the progress of the slot's
// prefills.
//
// When it leaves it is emptied at once, but its slot ID stays reserved in the index for a while: what the router predicted under
// the ID must not count for the worker that gets it next.
type slotSink struct {
	*stream.IndexSink
	linger  func() time.Duration
	index   *indexer.Index
	slot    *fleet.Slot
	matches indexer.Matches
	stored  bool // since Done
}

// Store implements stream.Sink.
func (s *slotSink) Store(e *kvevent.Event) error {
	s.stored = true
	return s.IndexSink.Store(e)
}

// Done implements stream.Sink.
func (s *slotSink) Done(partial, upperBound bool) {
	s.IndexSink.Done(partial, upperBound)
	if s.stored {
		s.slot.Progress(s.held, time.Now())
	}
	s.stored = false
}

func (s *slotSink) held(locals []uint64) int {
	s.matches.Held = true
	s.index.Match(locals, &s.matches)
	for _, m := range s.matches.Slots {
		if m.Slot == s.slot.ID {
			return int(m.Blocks)
		}
	}
	return 0
}

// Leave implements stream.Sink.
func (s *slotSink) Leave() {
	s.Clear()
	time.AfterFunc(s.linger(), s.IndexSink.Leave)
}
