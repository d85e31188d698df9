package router

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/router/fleet"
)

// TestWithheld checks that three answers in a row change what is predicted of a slot, either way, and that workers that have left are
// forgotten, even if they withheld blocks.
func TestWithheld(t *testing.T) {
	now := time.Unix(1000, 0)
	one := fleet.NewWorker("one", netip.MustParseAddrPort("10.0.0.1:80"), "m", 0, func(int) indexer.SlotID { return 0 })
	two := fleet.NewWorker("two", netip.MustParseAddrPort("10.0.0.2:80"), "m", 0, func(int) indexer.SlotID { return 1 })
	f := fleet.New(func() time.Time { return now })
	f.Set([]*fleet.Worker{one, two})
	var w withheld
	for i, a := range []struct {
		less                         int
		notWhole, withholds, changed bool
	}{{less: 1}, {less: 1}, {less: 0}, {less: 1}, {less: 1}, {less: 1, withholds: true, changed: true},
		{less: -1}, {less: -1, notWhole: true}, {less: -1}, {less: -1}, {less: -1, changed: true},
		{less: 1}, {less: 1}, {less: 1, withholds: true, changed: true}} {
		if withholds, changed := w.count(one.Slots[0], a.less, !a.notWhole, now); withholds != a.withholds || changed != a.changed {
			t.Errorf("answer %d: %t, changed %t", i, withholds, changed)
		}
	}
	w.count(two.Slots[0], 1, true, now)
	if len(w.bySlot) != 2 {
		t.Errorf("%d slots, want both", len(w.bySlot))
	}
	f.Set([]*fleet.Worker{two})
	delete(w.bySlot, two.Slots[0])
	w.count(two.Slots[0], 1, true, now)
	if len(w.bySlot) != 1 {
		t.Errorf("%d slots, want only that of the worker that is still there", len(w.bySlot))
	}
}
