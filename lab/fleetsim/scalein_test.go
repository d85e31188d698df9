package fleetsim

import (
	"testing"
	"time"
)

// TestDeparture: a worker that leaves gets nothing more, and what it alone held is counted where it is computed again.
func TestDeparture(t *testing.T) {
	const at = 20 * time.Second
	s := scenario(t, "chats")
	setup := s.setup()
	setup.Workers, setup.Leave = 3, []departure{{at, func(*View) []int { return []int{1} }}}
	r := Run(setup, prepare(chats.traffic(1, 2, 40), setup.Engine.BlockSize), leastRequest)
	for _, one := range r.Served {
		if one.Worker == 1 && one.At > at {
			t.Fatalf("a request at %v went to the worker that left at %v", one.At, at)
		}
	}
	if r.Again == 0 {
		t.Error("got no token computed again, want some of the sessions of the worker that left")
	}
}
