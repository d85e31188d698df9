package fleet

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
)

// TestEased lists workers by their requests in flight: settled ones, then newcomers. Those that remain are named by their index.
func TestEased(t *testing.T) {
	for _, c := range []struct {
		name         string
		settled, new []int
		want         []int
	}{
		{"no newcomer", []int{9, 0}, nil, []int{0, 1}},
		{"all are new", nil, []int{9, 0}, []int{0, 1}},
		{"an idle fleet: four each", []int{0, 0}, []int{3, 4}, []int{0, 1, 2}},
		{"the mean of the others", []int{8, 4}, []int{0, 5, 6, 7}, []int{0, 1, 2, 3}},
		{"a share below four", []int{0, 0, 1}, []int{0, 3, 4}, []int{0, 1, 2, 3, 4}},
	} {
		start := time.Unix(1000, 0)
		now := start
		f := New(func() time.Time { return now })
		var workers []*Worker
		add := func(inflight []int) {
			for _, n := range inflight {
				w := NewWorker(fmt.Sprint(len(workers)), netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(1+len(workers))), "m", 0,
					func(int) indexer.SlotID { return 0 })
				workers = append(workers, w)
				for range n {
					w.Slots[0].Charge(Work{}, now, now)
				}
			}
			f.Set(workers)
		}
		add(c.settled)
		now = now.Add(newcomerTime)
		add(c.new)
		var into [8]*Slot
		check := func(want []int) {
			t.Helper()
			var got []int
			for _, s := range WithoutNewcomers(f.Slots("m"), into[:0], now) {
				var n int
				_, _ = fmt.Sscan(s.Worker.Name, &n)
				got = append(got, n)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s: %v are left, want %v", c.name, got, want)
			}
		}
		check(c.want)
		if n := testing.AllocsPerRun(10, func() { WithoutNewcomers(f.Slots("m"), into[:0], now) }); n > 0 {
			t.Errorf("%s: got %v allocations, want 0", c.name, n)
		}
		now = now.Add(newcomerTime)
		var all []int
		for i := range workers {
			all = append(all, i)
		}
		check(all)
	}
}

// TestWhoIsNew checks that a worker is a newcomer when it joins, is ready again, or is back in after failures, but not if it
// stays or was out briefly.
func TestWhoIsNew(t *testing.T) {
	now := time.Unix(1000, 0)
	f := New(func() time.Time { return now })
	w := NewWorker("w", netip.MustParseAddrPort("10.0.0.1:80"), "m", 0, func(int) indexer.SlotID { return 0 })
	expect := func(what string, isNew bool) {
		t.Helper()
		if w.isNew(now) != isNew {
			t.Errorf("%s: new %v", what, !isNew)
		}
		now = now.Add(newcomerTime)
	}
	f.Set([]*Worker{w})
	expect("joined", true)
	f.Set([]*Worker{w})
	expect("stays", false)
	f.Set(nil)
	if w.Present() {
		t.Error("present, and not in the fleet")
	}
	expect("not ready", false)
	f.Set([]*Worker{w})
	expect("ready again", true)
	for range failuresInARow {
		w.RecordFailure("503", now)
	}
	expect("out", false)
	w.RecordSuccess(now, now)
	expect("back in", true)
	w.RecordCheck("503", true, now)
	expect("out by a check", false)
	w.RecordCheck("", false, now)
	expect("back in by a check", true)
	w.RecordCheck("503", true, now)
	now = now.Add(time.Second)
	w.RecordCheck("", false, now)
	expect("out for a second", false)
	w.RecordCheck("", false, now)
	w.RecordSuccess(now, now)
	expect("is well", false)
}
