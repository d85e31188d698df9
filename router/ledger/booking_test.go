package ledger

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/workers/fleet"
)

type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func twoWorkers(c *clock) (*Ledger, *fleet.Worker, *fleet.Worker) {
	f := fleet.New(c.now)
	a := fleet.NewWorker("a", netip.MustParseAddrPort("10.0.0.1:8000"), "m", 0, func(int) indexer.SlotID { return 0 })
	b := fleet.NewWorker("b", netip.MustParseAddrPort("10.0.0.2:8000"), "m", 2, func(r int) indexer.SlotID { return indexer.SlotID(1 + r) })
	f.Set([]*fleet.Worker{a, b})
	return New(f, c.now), a, b
}

const defaultRate = 10000 // of tokens prefilled, as in package fleet

// TestDoneFreesThePlace checks that a place is free once the worker has answered, however long the client takes to read, that it counts
// again if the request then goes to another worker, and that nothing is released twice.
func TestDoneFreesThePlace(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, a, b := twoWorkers(c)
	at := func(what string, here, there, tenants int) {
		t.Helper()
		one, two := a.Slots[0].Load(c.t), b.Slots[0].Load(c.t)
		if own, _, _ := f.InFlightOf("m", "x"); one.Places() != here || two.Places() != there || own != tenants {
			t.Errorf("%s: %d and %d places, tenant has %d; want %d, %d, %d", what, one.Places(), two.Places(), own, here, there, tenants)
		}
	}
	f.Book("r", Booking{Slot: a.Slots[0], Work: fleet.Work{Answers: 128, Tokens: 100}, Model: "m", Tenant: "x", Counted: true})
	f.Confirm("r", a.Addr, 1)
	at("at the worker", 128, 0, 128)
	if f.Done("r") == nil || f.Done("r") != nil || f.Done("unknown") != nil {
		t.Error("want the booking once")
	}
	at("answered", 0, 0, 0)
	f.Confirm("r", a.Addr, 1)
	at("reported again", 0, 0, 0)
	f.Confirm("r", b.Addr, 1)
	at("tried again elsewhere", 0, 128, 128)
	f.Done("r")
	f.EachOpen(func(*Booking, int) bool {
		t.Error("got an open booking told to other replicas, want none")
		return true
	})
	if _, ok := f.End("r", 1); !ok {
		t.Error("its end is not known, want ok")
	}
	at("read", 0, 0, 0)
}

// TestFreeAnswered checks that requests whose worker has reported for long that it does not have them keep no place, though Envoy has
// reported no end: their clients do not read. What the worker reports stays booked, as do young requests.
func TestFreeAnswered(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, a, b := twoWorkers(c)
	tells := func(s *fleet.Slot, running, waiting int) {
		s.SetReport(fleet.LoadReport{Running: running, Waiting: waiting, Usage: -1, ValidFor: 3 * time.Second}, c.t)
	}
	want := func(what string, here, there int) {
		t.Helper()
		f.Expire()
		f.FreeAnswered()
		one, two := a.Slots[0].Load(c.t), b.Slots[0].Load(c.t)
		if also := b.Slots[1].Load(c.t); one.Places() != here || two.Places()+also.Places() != there {
			t.Errorf("%s: %d and %d places, want %d and %d", what, one.Places(), two.Places()+also.Places(), here, there)
		}
	}
	start := func(id string, on Booking) {
		on.Model, on.Counted = "m", true
		f.Book(id, on)
		to := on.Slot
		if on.Decode != nil {
			to = on.Decode
		}
		f.Confirm(id, to.Worker.Addr, 1)
	}
	start("many", Booking{Slot: a.Slots[0], Work: fleet.Work{Answers: 8, Tokens: 1000}})
	start("one", Booking{Slot: a.Slots[0]})
	start("pair", Booking{Slot: b.Slots[0], Decode: a.Slots[0]})
	start("rank 0", Booking{Slot: b.Slots[0]})
	start("rank 0 too", Booking{Slot: b.Slots[0]})
	tells(a.Slots[0], 0, 0)
	want("young", 10, 3)
	c.t = c.t.Add(endsAfter)
	want("reports are too old", 10, 3)
	tells(a.Slots[0], -1, 0)
	tells(b.Slots[0], 0, 0)
	want("running is not reported, nor all ranks", 10, 3)
	tells(a.Slots[0], 2, 7)
	tells(b.Slots[1], 1, 1)
	want("reported, if on another rank", 10, 3)
	start("young", Booking{Slot: a.Slots[0]})
	tells(a.Slots[0], 0, 1)
	tells(b.Slots[1], 1, 0)
	want("one left of nine, the young one not counted", 3, 2)
	tells(a.Slots[0], 0, 0)
	tells(b.Slots[1], 0, 0)
	want("none left", 2, 1) // the young one's, and the pair's
	if own, _, _ := f.InFlightOf("m", ""); own != 2 {
		t.Errorf("%d requests of the tenant, want the pair and the young one", own)
	}
	if l := a.Slots[0].Load(c.t); l.Backlog != 0 {
		t.Errorf("%v tokens queued, want 0", l.Backlog)
	}
	f.Confirm("many", a.Addr, 1)
	want("its end is about to come", 2, 1)
	for _, id := range []string{"many", "one", "pair", "rank 0", "rank 0 too", "young"} {
		if _, ok := f.End(id, 1); !ok {
			t.Errorf("the end of %q is not known, want ok", id)
		}
	}
	want("read", 0, 0)
}

// TestBookingsGiveBackWhatTheyTook checks that bookings, whatever happens to them and in whichever order, release what they took:
// nothing is left in the end, and no count is ever negative.
func TestBookingsGiveBackWhatTheyTook(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 2))
		c := &clock{time.Unix(1000, 0)}
		f, a, b := twoWorkers(c)
		slots := append(a.Slots, b.Slots...)
		slots[0].EventAge = func(time.Time) time.Duration { return 0 }
		slots[1].EventAge = func(now time.Time) time.Duration { return time.Duration(now.Unix() % 2) }
		addrs := []string{a.Addr, b.Addr}
		for i := range 3000 {
			id := fmt.Sprint(r.IntN(i/4 + 1))
			switch r.IntN(10) {
			case 0, 1, 2:
				work := fleet.Work{Tokens: r.IntN(20000), Context: r.IntN(20000), Locals: make([]uint64, r.IntN(20)), From: r.IntN(10)}
				f.Book(id, Booking{Slot: slots[r.IntN(3)], Work: work, Decode: []*fleet.Slot{nil, a.Slots[0]}[r.IntN(2)], Source: uint64(r.IntN(4))})
			case 3, 4:
				f.Confirm(id, addrs[r.IntN(2)], uint64(r.IntN(4)))
			case 5:
				f.End(id, uint64(r.IntN(4)))
			case 6:
				f.Lost(uint64(1 + r.IntN(3)))
			case 7:
				c.t = c.t.Add(time.Duration(r.IntN(3000)) * time.Millisecond)
				f.Expire()
				slots[r.IntN(3)].SetReport(fleet.LoadReport{Running: r.IntN(20), ValidFor: time.Minute}, c.t)
				f.FreeAnswered()
			case 9:
				f.Done(id)
			case 8:
				slots[r.IntN(3)].Progress(func(locals []uint64) int { return r.IntN(len(locals) + 3) }, c.t)
			}
			for _, s := range slots {
				if l := s.Load(c.t); l.Inflight < 0 || l.Backlog < 0 || l.Recent < 0 || l.Context < 0 || l.Inflight == 0 && l.Backlog != 0 {
					t.Fatalf("seed %d, step %d: %+v, want l.Inflight >= 0, l.Backlog >= 0, l.Recent >= 0, l.Context >= 0, "+
						"l.Inflight != 0 or l.Backlog == 0", seed, i, l)
				}
			}
		}
		c.t = c.t.Add(longestGeneration)
		f.Expire()
		for i, s := range slots {
			if l := s.Load(c.t); l.Inflight != 0 || l.Backlog != 0 || l.Context != 0 {
				t.Errorf("seed %d: slot %d keeps %+v, want Inflight 0, Backlog 0, Context 0", seed, i, l)
			}
		}
		if f.Open() != 0 || f.bytes != 0 {
			t.Errorf("seed %d: got %d open, %d bytes, want 0, 0", seed, f.Open(), f.bytes)
		}
	}
}

// TestBacklogIsTheOpenRequests checks that the tokens of a request that ends early are removed with it, and that the others are
// prefilled in order.
func TestBacklogIsTheOpenRequests(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, a, b := twoWorkers(c)
	s := a.Slots[0]
	f.Book("long", Booking{Slot: s, Work: fleet.Work{Tokens: 72000}})
	f.Book("short", Booking{Slot: s, Work: fleet.Work{Tokens: 1000}})
	c.t = c.t.Add(time.Second)
	if got := s.Load(c.t).Backlog; got != 73000-defaultRate {
		t.Errorf("backlog %v, want %v", got, 73000-defaultRate)
	}
	f.End("long", 1)
	if got := s.Load(c.t).Backlog; got != 1000 {
		t.Errorf("backlog %v, want the short one's", got)
	}
	f.Confirm("short", b.Addr, 1)
	if l := s.Load(c.t); l.Backlog != 0 || l.Inflight != 0 || l.Recent > 72000 {
		t.Errorf("after it moved: got %+v, want Backlog 0, Inflight 0, Recent at most 72000", l)
	}
}

// TestLostStream checks that the end of a stream of reports ends the requests that it reported, unless another stream continues
// with one of them.
func TestLostStream(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, a, _ := twoWorkers(c)
	book := func(id string, source uint64) {
		f.Book(id, Booking{Slot: a.Slots[0]})
		if source != 0 {
			f.Confirm(id, a.Addr, source)
		}
	}
	left := func(want int) {
		t.Helper()
		f.Expire()
		if n := a.Slots[0].Load(c.t).Inflight; n != want {
			t.Errorf("%d in flight, want %d", n, want)
		}
	}
	for i := range 8 {
		book(fmt.Sprint("one", i), 1)
		book(fmt.Sprint("two", i), 2)
	}
	book("fresh", 0)
	f.Lost(1)
	left(17)
	c.t = c.t.Add(orphanTTL)
	left(9)
	f.Lost(2) // only its connection: a new stream reports the end of one of them
	c.t = c.t.Add(time.Second)
	f.End("two0", 3)
	f.Confirm("two1", a.Addr, 3)
	c.t = c.t.Add(unconfirmedTTL - 1)
	left(7)
	c.t = c.t.Add(1) // the ends of the other six were lost with the stream
	left(1)
	f.Lost(3)
	c.t = c.t.Add(orphanTTL)
	left(0)
	for i := range 3 { // decided over connection 4, and not reported on when it ends
		f.Book(fmt.Sprint("asked", i), Booking{Slot: a.Slots[0], Source: 4})
	}
	f.Book("other", Booking{Slot: a.Slots[0], Source: 5})
	f.Lost(4)
	f.Confirm("asked0", a.Addr, 6) // its Envoy lives
	c.t = c.t.Add(time.Minute)
	left(1)
	f.Book("asked", Booking{Slot: a.Slots[0], Source: 7})
	f.Lost(7)
	c.t = c.t.Add(orphanTTL)
	left(1)
}

// TestGone checks that a request whose own stream ended ends soon, unless a report comes.
func TestGone(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, a, _ := twoWorkers(c)
	for _, id := range []string{"gone", "reported", "running", "other"} {
		f.Book(id, Booking{Slot: a.Slots[0], Source: 1})
	}
	f.Confirm("running", a.Addr, 2)
	for _, id := range []string{"gone", "reported", "running", "unknown"} {
		f.Gone(id)
	}
	f.Confirm("reported", a.Addr, 2)
	for _, s := range []struct {
		after time.Duration
		want  int
	}{{0, 4}, {vanished, 3}, {unconfirmedTTL, 2}} {
		c.t = c.t.Add(s.after)
		f.Expire()
		if n := a.Slots[0].Load(c.t).Inflight; n != s.want {
			t.Errorf("%d in flight %v later, want %d", n, s.after, s.want)
		}
	}
}

// TestBookingsAreCopies checks that Confirm and End return a copy, which may be read while reports go on.
func TestBookingsAreCopies(t *testing.T) {
	f, a, b := twoWorkers(&clock{time.Unix(1000, 0)})
	f.Book("x", Booking{Slot: a.Slots[0], Work: fleet.Work{Tokens: 10}})
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for j := range 200 {
				addr := []string{a.Addr, b.Addr}[(i+j)%2]
				now, moved, ok := f.Confirm("x", addr, 1)
				if !ok || now.Slot.Worker.Addr != addr || moved != nil && moved.Slot.Worker == now.Slot.Worker {
					t.Errorf("%+v %+v %v, want ok, now.Slot.Worker.Addr == %v, moved == nil or moved.Slot.Worker != "+
						"now.Slot.Worker", now, moved, ok, addr)
				}
			}
		})
	}
	all.Wait()
}

// TestAnotherAtTheAddress checks that what was booked for a worker that left stays its own to the end, although another worker
// has its address.
func TestAnotherAtTheAddress(t *testing.T) {
	now := time.Unix(1000, 0)
	workers := fleet.New(func() time.Time { return now })
	f := New(workers, func() time.Time { return now })
	worker := func() *fleet.Worker {
		return fleet.NewWorker("w", netip.MustParseAddrPort("10.0.0.1:80"), "m", 0, func(int) indexer.SlotID { return 0 })
	}
	old, next := worker(), worker()
	workers.Set([]*fleet.Worker{old})
	for _, id := range []string{"a", "b", "c"} {
		f.Book(id, Booking{Slot: old.Slots[0], Work: fleet.Work{Tokens: 100, Context: 100}})
	}
	f.Confirm("a", old.Addr, 1)
	workers.Set(nil)
	workers.Set([]*fleet.Worker{next})
	f.Book("d", Booking{Slot: next.Slots[0], Work: fleet.Work{Tokens: 10, Context: 10}})
	for _, id := range []string{"a", "b"} {
		if b, moved, ok := f.Confirm(id, old.Addr, 1); !ok || moved != nil || b.Slot != old.Slots[0] {
			t.Errorf("%s: got %+v, moved %+v, %v, want it to stay at %s", id, b, moved, ok, old.Addr)
		}
		if w := f.FailedAt(id, old.Addr); w != old {
			t.Errorf("%s failed at %p, want %p", id, w, old)
		}
	}
	if f.FailedAt("d", next.Addr) != next || f.FailedAt("unknown", next.Addr) != next || f.FailedAt("d", "10.0.0.9:80") != nil {
		t.Errorf(`a failure of the next one's is somebody else's, want f.FailedAt("d", next.Addr) == %v, f.FailedAt("unknown", `+
			`next.Addr) == %v, f.FailedAt("d", "10.0.0.9:80") == nil`, next, next)
	}
	for i, id := range []string{"a", "b", "c"} {
		b, ok := f.End(id, 1)
		if !ok || f.ServedBy(b, old.Addr) != old {
			t.Errorf("%s: ended %v, served by %p, want %p", id, ok, f.ServedBy(b, old.Addr), old)
		}
		if l, was := next.Slots[0].Load(now), old.Slots[0].Load(now); l.Inflight != 1 || l.Context != 10 || was.Inflight != 2-i {
			t.Errorf("%s: the next one has %+v, the old one %+v, want Inflight 1, Context 10, Inflight %d", id, l, was, 2-i)
		}
	}
	f.End("d", 1)
	for _, w := range []*fleet.Worker{old, next} {
		if l := w.Slots[0].Load(now); l.Inflight != 0 || l.Context != 0 || l.Backlog != 0 {
			t.Errorf("%+v after all have ended, want Inflight 0, Context 0, Backlog 0", l)
		}
	}
}

func TestBookingsCountAndDrain(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, a, _ := twoWorkers(c)
	s := a.Slots[0]
	f.Book("1", Booking{Slot: s, Work: fleet.Work{Tokens: 20000}})
	f.Book("2", Booking{Slot: s, Work: fleet.Work{Tokens: 0}})
	if l := s.Load(c.t); l.Inflight != 2 || l.Backlog != 20000 {
		t.Errorf("got %+v, want Inflight 2, Backlog 20000", l)
	}
	c.t = c.t.Add(time.Second)
	if l := s.Load(c.t); l.Backlog != 20000-defaultRate {
		t.Errorf("backlog %v after a second, want %v", l.Backlog, 20000-defaultRate)
	}
	if _, ok := f.End("1", 0); !ok {
		t.Error("end of 1, want ok")
	}
	if _, ok := f.End("1", 0); ok {
		t.Error("1 ended twice, want !ok")
	}
	if l := s.Load(c.t); l.Inflight != 1 {
		t.Errorf("got %+v, want Inflight 1", l)
	}
}

// TestConfirmMoves checks that a request that went to another worker, by Envoy's report, loads that one.
func TestConfirmMoves(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, a, b := twoWorkers(c)
	f.Book("x", Booking{Slot: a.Slots[0], Work: fleet.Work{Tokens: 100}, Note: "n"})
	b.Slots[0].Charge(fleet.Work{}, c.t, c.t)
	now, moved, ok := f.Confirm("x", "10.0.0.2:8000", 1)
	if !ok || moved == nil || moved.Slot != a.Slots[0] || now.Slot != b.Slots[1] || now.Note != "n" {
		t.Fatalf("%+v %+v %v: want the less loaded rank of b", now, moved, ok)
	}
	if a.Slots[0].Load(c.t).Inflight != 0 || b.Slots[1].Load(c.t).Inflight != 1 {
		t.Error("got the load where it was, want it at the second rank of b")
	}
	if _, moved, ok := f.Confirm("x", "10.0.0.2:8000", 1); !ok || moved != nil {
		t.Errorf("a second report moved it again: got %v, %+v, want true, nil", ok, moved)
	}
	for _, bad := range [][2]string{{"x", "10.9.9.9:1"}, {"unknown", "10.0.0.2:8000"}} {
		if _, _, ok := f.Confirm(bad[0], bad[1], 1); ok {
			t.Errorf("%v accepted, want !ok", bad)
		}
	}
}

// TestLostReportsExpire checks that an unconfirmed booking ends after 30 s and a running one after 30 min if no report comes.
func TestLostReportsExpire(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, a, b := twoWorkers(c)
	for i := range 64 {
		f.Book(fmt.Sprint("lost", i), Booking{Slot: a.Slots[0]})
	}
	for i := range 64 {
		f.Book(fmt.Sprint("long", i), Booking{Slot: a.Slots[0]})
		f.Confirm(fmt.Sprint("long", i), "10.0.0.1:8000", 1)
	}
	tick := func(d time.Duration) {
		c.t = c.t.Add(d)
		f.Book("tick", Booking{Slot: b.Slots[0]})
		f.End("tick", 0)
	}
	tick(31 * time.Second)
	if l := a.Slots[0].Load(c.t); l.Inflight != 64 {
		t.Errorf("%d in flight after 31 s, want the 64 confirmed ones", l.Inflight)
	}
	tick(31 * time.Minute)
	if l := a.Slots[0].Load(c.t); l.Inflight != 0 {
		t.Errorf("%d in flight after 31 min, want 0", l.Inflight)
	}
	if f.Expired() != 128 || f.Open() != 0 {
		t.Errorf("expired %d, open %d, want 128, 0", f.Expired(), f.Open())
	}
}

// TestBookingsBounded checks that, with too many bookings or too much memory, the oldest end first, including running ones.
func TestBookingsBounded(t *testing.T) {
	for _, bytes := range []int{0, 4 * maxBookingBytes / maxBookings} {
		c := &clock{time.Unix(1000, 0)}
		f, a, _ := twoWorkers(c)
		room := maxBookings
		if bytes > 0 {
			room = maxBookingBytes / bytes
		}
		const running, more = 100, 150
		for i := range room + more {
			c.t = c.t.Add(time.Microsecond)
			f.Book(fmt.Sprint(i), Booking{Slot: a.Slots[0], Bytes: bytes})
			if i < running {
				f.Confirm(fmt.Sprint(i), "10.0.0.1:8000", 1)
			}
		}
		if f.Open() != room || f.Expired() != more || a.Slots[0].Load(c.t).Inflight != room {
			t.Errorf("%d bytes each: %d open, %d expired, want %d and %d", bytes, f.Open(), f.Expired(), room, more)
		}
		for i, want := range map[int]bool{0: false, running - 1: false, more - 1: false, more: true, room + more - 1: true} {
			if _, ok := f.End(fmt.Sprint(i), 0); ok != want {
				t.Errorf("%d bytes each: booking %d is open: got %v, want %v", bytes, i, ok, want)
			}
		}
	}
}
