package fleet

import (
	"testing"
	"time"
)

// TestSetService: of two orders the later counts, whichever comes first, and one that changes nothing is none.
func TestSetService(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	w := &Worker{}
	for i, c := range []struct {
		to      Service
		at      int
		changes bool
		is      Service
	}{
		{InService, 5, false, InService},
		{Cordoned, 10, true, Cordoned},
		{Cordoned, 11, false, Cordoned},
		{Draining, 9, false, Cordoned}, // an older order that comes late
		{Draining, 20, true, Draining},
		{InService, 15, false, Draining},
		{InService, 30, true, InService},
		{Cordoned, 20, false, InService},
	} {
		if got := w.SetService(c.to, start.Add(time.Duration(c.at)*time.Second)); got != c.changes {
			t.Errorf("order %d: changes is %v, want %v", i, got, c.changes)
		}
		if got, _ := w.Service(); got != c.is || w.InService() != (c.is == InService) || w.IsDraining() != (c.is == Draining) {
			t.Errorf("order %d: the worker is %v, want %v", i, got, c.is)
		}
	}
	if !w.isNew(start.Add(31 * time.Second)) {
		t.Error("a worker that comes back after 20 s is no newcomer, want one")
	}
}
