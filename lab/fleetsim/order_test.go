package fleetsim

import (
	"slices"
	"testing"
	"time"
)

// TestQueueByDue checks that a worker serves waiting requests by when they are due, equal ones as they come.
func TestQueueByDue(t *testing.T) {
	w := &worker{busy: true}
	s := &sim{}
	for i, due := range []int64{5, 3, 5, 1, 3} {
		s.queueAt(w, &run{due: due, input: i})
	}
	var got []int
	for _, r := range w.waiting {
		got = append(got, r.input)
	}
	if want := []int{3, 1, 4, 0, 2}; !slices.Equal(got, want) {
		t.Errorf("got served in the order %v, want %v", got, want)
	}
}

// TestInteractiveBeforeBatch checks that chats do not wait for others that are marked low, once engines serve by priority.
func TestInteractiveBeforeBatch(t *testing.T) {
	all := Scenarios()
	s := all[slices.IndexFunc(all, func(s Scenario) bool { return s.Name == "chats 14B" })]
	s.Until = 40 * time.Second
	s.Traffic = func(seed uint64, rate float64) []*Request {
		return slices.DeleteFunc(beside(seed, rate), func(r *Request) bool { return r.Prev != nil || r.At > s.Until })
	}
	came, due := s.playInOrder(8, 1, false), s.playInOrder(8, 1, true)
	if over(due.Mean, came.Mean) > 0.8 {
		t.Errorf("got a mean of %v beside batch work, want at most 0.8 of %v, without an order", due.Mean, came.Mean)
	}
}
