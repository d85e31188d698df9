// Package members is the life of the workers, from the first word of one to its last: it joins the index, its feeds keep
// the index true to it, the fleet has it while it is ready, and index, fleet and audit forget it together.
//
//	found, ready      ─ in the fleet, its events heard
//	found, not ready  ─ out of the fleet at once; its events are still heard, so that it comes back with what it holds
//	no longer found   ─ its feeds end, the audit lets go of its requests, the index forgets it
//
// Who finds workers, and how their events come, is the caller's: a finder tells its whole set of Specs after each change,
// and a Spec says where its events are heard. What every feed has in common is set here, once.
//
//	members.go  Set: who is there
//	show.go     what the feeds see: metrics, listings, resyncs
//	watch.go    what is wrong with them, as lines of the log
package members

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/fleet"
)

// Spec is a worker as its finder tells of it.
type Spec struct {
	// ID, comparable, tells workers of one finder apart: of another ID is another worker, whatever its name or address.
	ID           any
	Name         string // the address is added where another worker has it already
	Addr         netip.AddrPort
	Ready        bool // requests may go to it
	Model, Class string
	Ranks        int  // data-parallel ranks; 0: it has none
	Rate         int  // tokens a second that it is taken to prefill until events show it; 0: fleet's own start
	OffloadRate  int  // tokens a second that it is taken to fetch from its lower tiers until events show it; 0: not known
	Copies       bool // its events tell of each physical copy of a block
	// Instance, Frontends and Role as in fleet.Worker; with an Instance, Addr is not its own.
	Instance    string
	Frontends   []string
	Role        fleet.Role
	Away        time.Duration // as in fleet.Worker
	MaxInFlight int           // fleet.Worker.Most
	// Listen says how the events of one rank (from 0) come, by setting Source, Decoder and what else o needs; false: it
	// tells nothing. Called once a rank, when the worker joins.
	Listen func(slot *fleet.Slot, rank int, o *stream.Options) (bool, error)
	// WhileMember, if set, runs while the worker is a member.
	WhileMember func(ctx context.Context, w *fleet.Worker)
}

// Options are what a Set keeps in line.
type Options struct {
	Index   *indexer.Index
	Fleet   *fleet.Fleet
	Audit   *audit.Auditor // nil: none
	Log     *zap.Logger
	Metrics prometheus.Registerer
	Linger  func() time.Duration  // nil: 0; the index gives the number of a worker that left to no other for so long: predictions under it, of decisions that had begun before, end first
	Changed func([]*fleet.Worker) // told of every worker set that the fleet gets
	Forget  func(worker string)   // told of a name that no worker has had for an hour: what is counted by it can go
}

// counted is how long a worker's counters outlive it: until they were scraped. Pods' names come once and never again.
const counted = time.Hour

// Set are the workers that are known. Safe for concurrent use.
type Set struct {
	o       Options
	resyncs *prometheus.CounterVec

	mu      sync.Mutex
	members []*member // in the order of their joining
}

type member struct {
	finder int
	spec   Spec
	worker *fleet.Worker
	slots  []Slot
	sinks  []*slotSink
	end    context.CancelFunc // of what runs while it is one
	runs   sync.WaitGroup
}

// Slot is a worker-rank and its feed.
type Slot struct {
	*fleet.Slot
	Feed  *stream.Feed // nil: the worker tells nothing
	Ready bool
}

// New makes an empty Set. Close it.
func New(o Options) *Set {
	if o.Linger == nil {
		o.Linger = func() time.Duration { return 0 }
	}
	s := &Set{o: o}
	s.register()
	return s
}

// Add takes up a worker beside those of a finder that are known; 0 is no finder's: such workers stay until Close.
func (s *Set) Add(finder int, spec Spec) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.join(finder, spec); err != nil {
		return err
	}
	s.publish()
	return nil
}

// Update brings the workers of one finder in line with what it found. Those of finders that are gone leave too.
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
		return false
	})
	for _, f := range found {
		if stay[f.ID] {
			continue
		}
		if err := s.join(finder, f); err != nil {
			s.o.Log.Warn("a worker is left out", zap.String("worker", f.Name), zap.Stringer("addr", f.Addr), zap.Error(err))
		} else {
			s.o.Log.Info("worker joined", zap.String("worker", f.Name), zap.Stringer("addr", f.Addr), zap.Int("ranks", f.Ranks), zap.Bool("ready", f.Ready))
		}
		stay[f.ID] = true
	}
	s.publish()
	s.mu.Unlock()
	for _, m := range left {
		s.leave(m)
		name := m.worker.Name // not the whole member
		time.AfterFunc(counted, func() { s.forget(name) })
		s.o.Log.Info("worker left", zap.String("worker", name), zap.String("addr", m.worker.Addr))
	}
}

// join takes a worker up and starts listening to it; publish puts it into the fleet. The caller holds mu.
func (s *Set) join(finder int, spec Spec) error {
	addr := ""
	if spec.Addr.IsValid() {
		addr = spec.Addr.String()
	}
	for _, m := range s.members {
		if addr != "" && m.worker.Addr == addr && m.worker.Instance == "" && spec.Instance == "" {
			return fmt.Errorf("%s is already known as worker %q (name each address once)", addr, m.worker.Name)
		}
		if m.worker.Name == spec.Name { // several addresses behind one name, or pods of two namespaces
			spec.Name += "/" + addr
		}
	}
	ctx, end := context.WithCancel(context.Background())
	m := &member{finder: finder, spec: spec, end: end}
	m.worker = fleet.NewWorker(spec.Name, spec.Addr, spec.Model, spec.Ranks, func(int) indexer.SlotID {
		sink := &slotSink{IndexSink: stream.Join(s.o.Index, spec.Copies), linger: s.o.Linger, index: s.o.Index}
		m.sinks = append(m.sinks, sink)
		return sink.Slot()
	})
	m.worker.Addr, m.worker.Class, m.worker.Instance, m.worker.Frontends, m.worker.Role, m.worker.Away, m.worker.Most = addr, spec.Class, spec.Instance, spec.Frontends, spec.Role, spec.Away, spec.MaxInFlight
	m.worker.Expect(spec.Rate, spec.OffloadRate)
	for r, slot := range m.worker.Slots {
		m.sinks[r].slot = slot
		o := stream.Options{Sink: m.sinks[r], Stored: s.audited(slot.ID)}
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
	s.members = append(s.members, m)
	return nil
}

// audited shows a slot's stored events to the audit.
func (s *Set) audited(h indexer.SlotID) func(*kvevent.Event) {
	if s.o.Audit == nil {
		return nil
	}
	return func(e *kvevent.Event) { s.o.Audit.Stored(h, e) }
}

// publish gives the fleet the workers that are ready. The caller holds mu.
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

// leave ends a member's feeds; nothing of it is known afterwards.
func (s *Set) leave(m *member) {
	m.end()
	m.runs.Wait()
	for i, sink := range m.sinks {
		if i < len(m.slots) && m.slots[i].Feed != nil {
			m.slots[i].Feed.Close() // the sink leaves with it
		} else {
			sink.Leave()
		}
		s.o.Audit.Leave(m.worker.Slots[i].ID)
	}
}

// forget drops what is counted by a name, unless a worker has it again.
func (s *Set) forget(worker string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.ContainsFunc(s.members, func(m *member) bool { return m.worker.Name == worker }) {
		return
	}
	s.resyncs.DeletePartialMatch(prometheus.Labels{"worker": worker})
	s.o.Forget(worker)
}

// Slots lists the slots of all members, as they are now.
func (s *Set) Slots() (list []Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.members {
		list = append(list, m.slots...)
	}
	return list
}

// Close ends all feeds. Nothing may be told of the Set afterwards.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.members {
		s.leave(m)
	}
	s.members = nil
}

// slotSink is the index for one slot's feed. After each message with stored blocks it moves the slot's prefills on.
//
// It is emptied at once when it leaves, but keeps its number in the index for a while: what the router predicted under it
// must not count for the worker that gets the number next.
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
func (s *slotSink) Done(partial, recurrent bool) {
	s.IndexSink.Done(partial, recurrent)
	if s.stored {
		s.slot.Progress(s.held, time.Now())
	}
	s.stored = false
}

func (s *slotSink) held(locals []uint64) int {
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
