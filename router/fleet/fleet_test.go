package fleet

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
)

type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func twoWorkers(c *clock) (*Fleet, *Worker, *Worker) {
	f := New(c.now)
	a := NewWorker("a", netip.MustParseAddrPort("10.0.0.1:8000"), "m", 0, func(int) indexer.SlotID { return 0 })
	b := NewWorker("b", netip.MustParseAddrPort("10.0.0.2:8000"), "m", 2, func(r int) indexer.SlotID { return indexer.SlotID(1 + r) })
	f.Set([]*Worker{a, b})
	return f, a, b
}

func TestSlots(t *testing.T) {
	f, a, b := twoWorkers(&clock{})
	if len(f.Slots("m")) != 3 || len(f.Slots("")) != 3 || len(f.Slots("other")) != 0 {
		t.Error("slots")
	}
	if a.Slots[0].Rank != -1 || b.Slots[1].Rank != 1 || f.ByAddr("10.0.0.2:8000") != b {
		t.Error("ranks or addresses")
	}
}

func TestBookingsCountAndDrain(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, a, _ := twoWorkers(c)
	s := a.Slots[0]
	f.Book("1", Booking{Slot: s, Tokens: 20000})
	f.Book("2", Booking{Slot: s, Tokens: 0})
	if l := s.Load(c.t); l.Inflight != 2 || l.Backlog != 20000 {
		t.Errorf("%+v", l)
	}
	c.t = c.t.Add(time.Second)
	if l := s.Load(c.t); l.Backlog != 20000-defaultRate {
		t.Errorf("backlog %v after a second", l.Backlog)
	}
	if _, ok := f.End("1", 0); !ok {
		t.Error("end of 1")
	}
	if _, ok := f.End("1", 0); ok {
		t.Error("1 ended twice")
	}
	if l := s.Load(c.t); l.Inflight != 1 {
		t.Errorf("%+v", l)
	}
}

// TestConfirmMoves checks that a request that went to another worker, by Envoy's report, loads that one.
func TestConfirmMoves(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, a, b := twoWorkers(c)
	f.Book("x", Booking{Slot: a.Slots[0], Tokens: 100, Note: "n"})
	b.Slots[0].book(&Booking{}, c.t, c.t)
	now, moved, ok := f.Confirm("x", "10.0.0.2:8000", 1)
	if !ok || moved == nil || moved.Slot != a.Slots[0] || now.Slot != b.Slots[1] || now.Note != "n" {
		t.Fatalf("%+v %+v %v: want the less loaded rank of b", now, moved, ok)
	}
	if a.Slots[0].Load(c.t).Inflight != 0 || b.Slots[1].Load(c.t).Inflight != 1 {
		t.Error("load did not move")
	}
	if _, moved, ok := f.Confirm("x", "10.0.0.2:8000", 1); !ok || moved != nil {
		t.Error("a second report moved it again")
	}
	for _, bad := range [][2]string{{"x", "10.9.9.9:1"}, {"unknown", "10.0.0.2:8000"}} {
		if _, _, ok := f.Confirm(bad[0], bad[1], 1); ok {
			t.Errorf("%v accepted", bad)
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
		t.Errorf("%d in flight after 31 min", l.Inflight)
	}
	if f.Expired() != 128 || f.Open() != 0 {
		t.Errorf("expired %d, open %d", f.Expired(), f.Open())
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
				t.Errorf("%d bytes each: booking %d is open: %v", bytes, i, ok)
			}
		}
	}
}
