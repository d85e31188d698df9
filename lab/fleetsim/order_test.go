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

// TestPreemption checks what a worker does where the answers of two requests do not fit: the one admitted last makes room, or the one due
// last, and is computed again with what it had answered.
func TestPreemption(t *testing.T) {
	for _, c := range []struct {
		due  [2]int64
		lost int
	}{{[2]int64{0, 0}, 1}, {[2]int64{2, 1}, 0}, {[2]int64{1, 2}, 1}} {
		w := &worker{Engine: Engine{BlockSize: 16, Blocks: 8, Budget: 64, MaxSeqs: 2, Step: 1}, speed: 1, cache: newBlocks(8)}
		var runs [2]*run
		for i := range runs {
			r := &run{req: &Request{}, input: 32, output: 64, due: c.due[i]}
			for block := range int32(6) {
				r.blocks = append(r.blocks, 10*int32(i)+block)
			}
			runs[i], w.running = r, append(w.running, r)
			if _, ok := w.cache.admit(r, 16, &w.out); !ok {
				t.Fatal("a prompt of two blocks does not fit into eight")
			}
		}
		ended := 0
		for steps := 0; ended < 2; steps++ {
			if w.schedule() == 0 || steps > 200 {
				t.Fatalf("due at %v: nothing is done, %d have ended", c.due, ended)
			}
			_, done := w.finish()
			ended += len(done)
		}
		kept, lost := runs[1-c.lost], runs[c.lost]
		if kept.preempted || !lost.preempted || lost.again == 0 || w.cache.unused != 8 {
			t.Errorf("due at %v: got preempted %v, %v, after %d tokens of an answer, and %d blocks free; want number %d alone, and 8 blocks",
				c.due, runs[0].preempted, runs[1].preempted, lost.again, w.cache.unused, c.lost)
		}
	}
}
