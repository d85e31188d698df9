package router

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/workers/fleet"
)

// TestWithheld checks that three contradicting answers in a row count, and that workers that have left are forgotten.
func TestWithheld(t *testing.T) {
	now := time.Unix(1000, 0)
	one := fleet.NewWorker("one", netip.MustParseAddrPort("10.0.0.1:80"), "m", 0, func(int) indexer.SlotID { return 0 })
	two := fleet.NewWorker("two", netip.MustParseAddrPort("10.0.0.2:80"), "m", 0, func(int) indexer.SlotID { return 1 })
	f := fleet.New(func() time.Time { return now })
	f.Set([]*fleet.Worker{one, two})
	var w withheld
	for i, a := range []struct{ contradicts, enough bool }{{true, false}, {true, false}, {false, false}, {true, false}, {true, false},
		{true, true}, {true, false}, {true, false}, {true, true}, {false, false}} {
		if enough := w.count(one.Slots[0], a.contradicts); enough != a.enough {
			t.Errorf("answer %d: enough %t", i, enough)
		}
	}
	if len(w.bySlot) != 0 {
		t.Errorf("%d slots, want none", len(w.bySlot))
	}
	w.count(one.Slots[0], true)
	f.Set([]*fleet.Worker{two})
	w.count(two.Slots[0], true)
	if len(w.bySlot) != 1 {
		t.Errorf("%d slots, want only that of the worker that is still there", len(w.bySlot))
	}
}
