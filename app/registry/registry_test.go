package registry

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/workers/fleet"
)

// publisher is a worker's events, offered by a test as one stored block each.
type publisher struct {
	mu    sync.Mutex
	feeds map[int]*stream.Feed // running ones, by rank
	fails error
}

type source struct {
	e    *publisher
	rank int
}

func (s source) Run(ctx context.Context, f *stream.Feed) error {
	s.e.mu.Lock()
	s.e.feeds[s.rank] = f
	s.e.mu.Unlock()
	<-ctx.Done()
	s.e.mu.Lock()
	delete(s.e.feeds, s.rank)
	s.e.mu.Unlock()
	return nil
}

func (source) Replay(context.Context, uint64, func(stream.Message) error) error {
	return errors.ErrUnsupported
}

// Decode reads one byte as the hash of a stored block of 16 tokens.
func (source) Decode(b []byte) (kvevent.Batch, error) {
	h := uint64(b[0])
	return kvevent.Batch{Events: []kvevent.Event{{Kind: kvevent.Stored, BlockSize: 16, EngineHashes: []uint64{h}, Locals: []uint64{h}}}}, nil
}

func (e *publisher) listen(_ *fleet.Slot, rank int, o *stream.Options) (bool, error) {
	o.Source, o.Decoder, o.BlockSize = source{e, rank}, source{}, 16
	return e.fails == nil, e.fails
}

func (e *publisher) running() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.feeds)
}

func (e *publisher) tell(rank int, seq uint64, block byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.feeds[rank].Offer(stream.Message{Seq: seq, Payload: []byte{block}})
}

type bench struct {
	*Set
	t     *testing.T
	ix    *indexer.Index
	fleet *fleet.Fleet
	reg   *prometheus.Registry
	sets  int      // number of sets reported
	gone  []string // names to forget
}

func newBench(t *testing.T, au func(*indexer.Index) *audit.Auditor) *bench {
	b := &bench{t: t, ix: indexer.New(indexer.Options{}), fleet: fleet.New(nil), reg: prometheus.NewRegistry()}
	b.Set = New(Options{Index: b.ix, Fleet: b.fleet, Audit: au(b.ix), Log: zap.NewNop(), Metrics: b.reg,
		Changed: func([]*fleet.Worker) { b.sets++ },
		Forget:  func(worker string) { b.gone = append(b.gone, worker) }})
	t.Cleanup(b.Close)
	return b
}

func noAudit(*indexer.Index) *audit.Auditor { return nil }

func (b *bench) names() (list []string) {
	for _, w := range b.fleet.Workers() {
		list = append(list, w.Name)
	}
	return list
}

func (b *bench) wait(what string, cond func() bool) {
	b.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatal(what)
		}
	}
}

// count sums a counter's or gauge's values with a label value.
func count(t *testing.T, reg *prometheus.Registry, name, label, value string) (sum float64) {
	t.Helper()
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if f.GetName() == name && l.GetName() == label && l.GetValue() == value {
					sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
	}
	return sum
}

func spec(e *publisher, name, addr string) Spec {
	if e.feeds == nil {
		e.feeds = map[int]*stream.Feed{}
	}
	at := netip.MustParseAddrPort(addr)
	return Spec{ID: at, Name: name, Addr: at, Ready: true, Model: "m", Listen: e.listen}
}

// TestLifeOfAWorker checks a worker that is found, not ready, ready again with what it holds, gone and forgotten, while the other
// finder's workers stay.
func TestLifeOfAWorker(t *testing.T) {
	b := newBench(t, noAudit)
	var one, two publisher
	first, second := spec(&one, "a", "10.0.0.1:8000"), spec(&two, "b", "10.0.0.2:8000")
	first.Ranks = 2
	var beside atomic.Int32
	first.WhileMember = func(ctx context.Context, w *fleet.Worker) { beside.Add(1); <-ctx.Done(); beside.Add(-1) }
	b.Update(1, []Spec{first})
	b.Update(2, []Spec{second})
	b.wait("feeds", func() bool { return beside.Load() == 1 && one.running() == 2 && two.running() == 1 })
	if got := b.names(); !slices.Equal(got, []string{"a", "b"}) {
		t.Fatalf("fleet %v, want %q", got, []string{"a", "b"})
	}
	slot := b.fleet.Workers()[0].Slots[1]
	one.tell(1, 0, 7)
	b.wait("an event", func() bool { return b.ix.HeldBlocks(slot.ID) == 1 })
	if n := count(t, b.reg, "sightline_events_total", "what", "blocks"); n != 1 {
		t.Errorf("metrics tell of %v blocks, want 1", n)
	}
	if list, err := b.Blocks("a", 1); err != nil || len(list) != 1 {
		t.Errorf("listed %+v, %v, want no error, 1 of them", list, err)
	}
	if _, err := b.Blocks("a", 2); err == nil {
		t.Errorf("the blocks of a rank that is not there: got %v, want an error", err)
	}
	first.Ready = false
	b.Update(1, []Spec{first})
	if got := b.names(); !slices.Equal(got, []string{"b"}) || one.running() != 2 {
		t.Errorf("not ready: fleet %v, %d feeds, want %q, 2", got, one.running(), []string{"b"})
	}
	first.Ready = true
	b.Update(1, []Spec{first})
	if len(b.names()) != 2 || b.fleet.Workers()[0].Slots[1] != slot || b.ix.HeldBlocks(slot.ID) != 1 {
		t.Errorf("ready again: another worker, or without what it held, want len(b.names()) == 2, b.fleet.Workers()[0].Slots[1] "+
			"== %v, b.ix.HeldBlocks(slot.ID) == 1", slot)
	}
	sets := b.sets
	b.Update(1, []Spec{first})
	if b.sets != sets {
		t.Errorf("told of a change where none was: got %d, want %d", b.sets, sets)
	}
	b.Update(1, nil)
	if got := b.names(); !slices.Equal(got, []string{"b"}) || beside.Load() != 0 || one.running() != 0 || two.running() != 1 {
		t.Errorf("gone: fleet %v, feeds %d and %d; got %d, want %q, 0, 0, 1", got, one.running(), two.running(), beside.Load(), []string{"b"})
	}
	if n := b.ix.HeldBlocks(slot.ID); n != 0 {
		t.Errorf("%d blocks of a worker that left, want 0", n)
	}
	b.Close()
	if two.running() != 0 {
		t.Error("a feed runs on after Close, want two.running() == 0")
	}
}

// TestLostMessages checks that a prompt of which messages may have been lost does not stay in its worker's queue while others' events
// come.
func TestLostMessages(t *testing.T) {
	b, e := newBench(t, noAudit), &publisher{}
	b.Update(1, []Spec{spec(e, "w", "10.0.0.1:8000")})
	b.wait("a feed", func() bool { return e.running() == 1 })
	slot := b.fleet.Workers()[0].Slots[0]
	e.tell(0, 0, 1)
	b.wait("an event", func() bool { return b.ix.HeldBlocks(slot.ID) == 1 })
	now := time.Now()
	slot.Charge(fleet.Work{Tokens: 4000, Locals: []uint64{1000}}, now, now)
	e.tell(0, 5, 2) // one of those between could have had its block
	seq := uint64(6)
	b.wait("an empty queue", func() bool {
		e.tell(0, seq, byte(seq))
		seq++
		return slot.Load(time.Now()).Backlog == 0
	})
	if took := time.Since(now); took < 300*time.Millisecond {
		t.Errorf("4,000 tokens took %v, want 0.4 s at the assumed rate", took)
	}
}

// If an address moves from one finder to another, and the new finder reports it first because the old one still has it (such as a DNS
// name), the worker joins when the address is free, unless it is no longer found or its finder is gone.
func TestAddressThatMoves(t *testing.T) {
	b := newBench(t, noAudit)
	var e publisher
	old, other, gone, never := spec(&e, "old", "10.0.0.1:8000"), spec(&e, "new", "10.0.0.1:8000"),
		spec(&e, "gone", "10.0.0.1:8000"), spec(&e, "never", "10.0.0.1:8000")
	other.Model = "another"
	b.Update(1, []Spec{old})
	b.Update(3, []Spec{gone})
	b.Update(4, []Spec{never})
	b.Update(2, []Spec{other})
	b.Update(4, nil)
	if got := b.names(); !slices.Equal(got, []string{"old"}) {
		t.Fatalf("fleet %v, want %q", got, []string{"old"})
	}
	b.Update(1, nil, 3)
	if got := b.names(); !slices.Equal(got, []string{"new"}) || b.fleet.Workers()[0].Model != "another" {
		t.Errorf(`fleet %v, want slices.Equal(got, []string{"new"}), b.fleet.Workers()[0].Model == "another"`, got)
	}
	b.Update(2, nil)
	b.Update(1, nil)
	if got := b.names(); len(got) > 0 {
		t.Errorf("fleet %v, want 0 of them", got)
	}
}

// Two workers cannot have one address; two with one name get different names; workers behind shared front ends have no own address.
func TestPlaces(t *testing.T) {
	b := newBench(t, noAudit)
	var e publisher
	if err := b.Add(0, spec(&e, "a", "10.0.0.1:8000")); err != nil {
		t.Fatal(err)
	}
	if err := b.Add(0, spec(&e, "x", "10.0.0.1:8000")); err == nil {
		t.Errorf("an address twice: got %v, want an error", err)
	}
	if err := b.Add(0, spec(&e, "a", "10.0.0.2:8000")); err != nil {
		t.Error(err)
	}
	for _, id := range []string{"7", "8"} {
		s := spec(&e, "dynamo-"+id, "10.0.0.9:8000")
		s.ID, s.Instance, s.Frontends = id, id, []string{"10.0.0.9:8000"}
		if err := b.Add(3, s); err != nil {
			t.Errorf("%q: got %v, want no error", id, err)
		}
	}
	if got := b.names(); !slices.Equal(got, []string{"a", "a/10.0.0.2:8000", "dynamo-7", "dynamo-8"}) {
		t.Errorf("fleet %v, want %q", got, []string{"a", "a/10.0.0.2:8000", "dynamo-7", "dynamo-8"})
	}
	bad := spec(&publisher{fails: errors.New("no socket")}, "c", "10.0.0.3:8000")
	if err := b.Add(0, bad); err == nil || len(b.names()) != 4 {
		t.Errorf("%v, fleet %v, want an error, len(b.names()) == 4", err, b.names())
	}
	var mute publisher
	silent := spec(&mute, "d", "10.0.0.4:8000")
	silent.Listen = func(*fleet.Slot, int, *stream.Options) (bool, error) { return false, nil }
	if err := b.Add(0, silent); err != nil || b.Slots()[4].Feed != nil {
		t.Errorf("a worker that tells nothing: got %v, want no error, b.Slots()[4].Feed == nil", err)
	}
	if n := b.Resync(func(*fleet.Slot) bool { return true }, "asked"); n != 4 {
		t.Errorf("%d feeds began anew, want 4", n)
	}
	b.Update(3, nil)
	b.forget("dynamo-7")
	b.forget("a") // it is still, or again, there
	if n := count(t, b.reg, "sightline_resyncs_total", "why", "asked"); n != 3 || !slices.Equal(b.gone, []string{"dynamo-7"}) {
		t.Errorf("%v resyncs counted of those that stay, %v forgotten, want 3, %q", n, b.gone, []string{"dynamo-7"})
	}
}

// TestAudit checks that every member's events are audited, and that the audit drops a member that leaves, since its slot ID may
// be reused.
func TestAudit(t *testing.T) {
	var au *audit.Auditor
	reg := prometheus.NewRegistry()
	b := newBench(t, func(ix *indexer.Index) *audit.Auditor {
		au = audit.New(audit.Options{Index: ix, Metrics: reg})
		return au
	})
	go au.Run(t.Context())
	var e publisher
	b.Update(1, []Spec{spec(&e, "a", "10.0.0.1:8000")})
	b.wait("feed", func() bool { return e.running() == 1 })
	expect := func(id string, local uint64) {
		au.Expect(audit.Expectation{ID: id, Slot: b.Slots()[0].ID, Worker: "a", Model: "m", Locals: []uint64{local}, Form: block.Form{Size: 16},
			Prompts: &engine.Model{}, Prompt: &engine.Prompt{IDs: make([]uint32, 16), Exact: true}})
	}
	expect("r1", 7)
	expect("r2", 8)
	e.tell(0, 0, 7)
	au.End("r1", true)
	b.wait("a verdict", func() bool { return count(t, reg, "sightline_audit_total", "verdict", "equal") == 1 })
	b.Update(1, nil)
	au.End("r2", true) // its worker is gone: no verdict
	b.Update(1, []Spec{spec(&e, "a", "10.0.0.1:8000")})
	b.wait("feed", func() bool { return e.running() == 1 })
	expect("r3", 9)
	au.End("r3", true)
	b.wait("the next verdict", func() bool { return len(au.Findings()) > 0 })
	if f := au.Findings(); len(f) != 1 || f[0].ID != "r3" || f[0].Verdict != audit.Nothing {
		t.Errorf("findings %+v, want that nothing came for r3", f)
	}
	au.Forget("a")
	if n := count(t, reg, "sightline_audit_total", "worker", "a"); n != 0 {
		t.Errorf("%v verdicts counted of a worker that is forgotten, want 0", n)
	}
}

// TestLeftIsFreed checks that only the name of a worker that left is kept, since pods never come back.
func TestLeftIsFreed(t *testing.T) {
	b := newBench(t, noAudit)
	e := &publisher{feeds: map[int]*stream.Feed{}}
	b.Update(1, []Spec{{ID: 1, Name: "a", Addr: netip.MustParseAddrPort("10.0.0.1:80"), Model: "m", Ready: true, Listen: e.listen}})
	left := weak.Make(b.members[0])
	b.Update(1, nil)
	b.wait("the member is still there", func() bool { runtime.GC(); return left.Value() == nil })
}

// TestOrder: what is ordered of a worker is told at once, and lasts until it leaves or another order comes; a pod that is being deleted
// drains by itself, and nothing brings it back.
func TestOrder(t *testing.T) {
	b, e := newBench(t, noAudit), &publisher{}
	one, two := spec(e, "one", "10.0.0.1:8000"), spec(e, "two", "10.0.0.2:8000")
	b.Update(1, []Spec{one, two})
	named := func(name string) func(*fleet.Worker) bool {
		return func(w *fleet.Worker) bool { return w.Name == name }
	}
	is := func(name string, want fleet.Service) {
		t.Helper()
		for _, slot := range b.Slots() {
			if got, _ := slot.Worker.Service(); slot.Worker.Name == name && got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
	}
	if b.Order(named("three"), fleet.Cordoned, time.Now()) != nil {
		t.Error(`an order for a worker that is not there was carried out, want b.Order(named("three"), fleet.Cordoned, ` +
			`time.Now()) == nil`)
	}
	if w := b.Order(named("one"), fleet.Cordoned, time.Now()); w == nil || w.Name != "one" {
		t.Errorf("the order is for %v, want one", w)
	}
	b.Update(1, []Spec{one, two})
	is("one", fleet.Cordoned)
	is("two", fleet.InService)
	b.Update(1, []Spec{two})
	b.Update(1, []Spec{one, two})
	is("one", fleet.InService) // it left and came back
	two.Ready, two.Terminating = false, true
	b.Update(1, []Spec{one, two})
	is("two", fleet.Draining)
	if got := b.fleet.Workers(); len(got) != 1 || got[0].Name != "one" {
		t.Errorf("the fleet has %d workers, want one alone", len(got))
	}
}
