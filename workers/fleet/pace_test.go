package fleet

import (
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
)

// steps are workers of one model, of which each step takes 10 ms and 0.1 ms a token, times the worker's slowness.
type steps struct {
	c       *clock
	f       *requests
	workers []*Worker
	done    stored
}

func newSteps(n int) *steps {
	s := &steps{c: &clock{time.Unix(1000, 0)}, done: stored{}}
	s.f = newRequests(s.c.now)
	for i := range n {
		addr := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(1+i))
		w := NewWorker(fmt.Sprint(i), addr, "m", 0, func(int) indexer.SlotID { return 0 })
		w.Slots[0].EventAge = func(time.Time) time.Duration { return 0 }
		s.workers = append(s.workers, w)
	}
	New(s.c.now).Set(s.workers)
	return s
}

// step has a worker prefill a prompt in one step.
func (s *steps) step(worker, tokens int, slow float64) { s.stepAfter(worker, 0, tokens, slow) }

// stepAfter has it prefill the rest of a prompt, of which it holds so many tokens.
func (s *steps) stepAfter(worker, held, tokens int, slow float64) {
	slot, id := s.workers[worker].Slots[0], uint64(len(s.done)+1)
	s.f.Book("x", slot, Work{Tokens: tokens, Context: held + tokens, Locals: promptOf(id, (held+tokens)/16), From: held / 16})
	attention := 1 + float64(held+tokens/2)/80000
	s.c.t = s.c.t.Add(time.Duration(slow * (0.01 + 0.0001*attention*float64(tokens)) * float64(time.Second)))
	s.done[id] = (held + tokens) / 16
	slot.Progress(s.done.held, s.c.t)
	s.f.End("x")
}

func (s *steps) rate(worker int) float64 { return s.workers[worker].Slots[0].Load(s.c.t).Rate }

// TestRateIsTheWorkers checks that a worker with small prompts, whose steps consist mostly of their fixed cost, and one that shows
// nothing are as fast as the others.
func TestRateIsTheWorkers(t *testing.T) {
	s := newSteps(4)
	for range 30 {
		s.step(0, 160, 1)
		for range 3 {
			s.step(1, 1600, 1)
			s.step(2, 160, 1)
			s.step(2, 1600, 1)
		}
	}
	for i := range s.workers {
		if r := s.rate(i) / s.rate(1); s.rate(i) == 0 || math.Abs(r-1) > 0.1 {
			t.Errorf("worker %d: %v tokens a second, %.2f of another's", i, s.rate(i), r)
		}
	}
}

// TestLongPromptsAreNoSlowness checks that a worker whose prompts are long, so that each token costs more, is as fast as the others.
func TestLongPromptsAreNoSlowness(t *testing.T) {
	s := newSteps(4)
	for range 30 {
		s.stepAfter(0, 40000, 1600, 1)
		for w := range 3 {
			s.stepAfter(1+w, 1600, 1600, 1)
		}
	}
	if r := s.rate(0) / s.rate(1); math.Abs(r-1) > 0.05 {
		t.Errorf("it shows %.2f of another's rate", r)
	}
}

// TestSlownessIsFound checks that a worker of half the speed is found within 5 s, that one which was slow for its first three prompts
// is as fast as the others after three more, and that an idle one counts as such when it is to be tried, a slow one more rarely.
func TestSlownessIsFound(t *testing.T) {
	s := newSteps(6)
	slow := []float64{1, 2, 15, 1, 1, 1}
	for i := range 30 {
		if i == 3 {
			if r := s.rate(2) / s.rate(0); r > 0.7 {
				t.Errorf("after three slow steps it shows %.2f of another's rate", r)
			}
			slow[2] = 1
		}
		for w := range s.workers {
			s.step(w, 1600, slow[w])
		}
		if i == 5 {
			if r := s.rate(2) / s.rate(0); r < 0.8 {
				t.Errorf("after three steps that were as fast as others' it shows %.2f of their rate", r)
			}
		}
	}
	if r := s.rate(1) / s.rate(0); math.Abs(r-0.5) > 0.1 {
		t.Errorf("the worker of half the speed shows %.2f of another's rate", r)
	}
	s.c.t = s.c.t.Add(5 * time.Second)
	if r := s.rate(1) / s.rate(0); r > 0.7 {
		t.Errorf("after 5 s it is tried: %.2f", r)
	}
	s.c.t = s.c.t.Add(20 * time.Second)
	if r := s.rate(1) / s.rate(0); r < 0.9 {
		t.Errorf("after 25 s without a request it is not tried: %.2f", r)
	}
}

// TestSlowIsNamed: a worker of half the speed, or five times as slow, is named within 10 s, with how much slower it is; not so one that was
// disturbed for a moment, one whose class is slower, nor any of an equal fleet, be it of one worker. Once it is as fast again, it is not.
func TestSlowIsNamed(t *testing.T) {
	type change func(i int, slow []float64)
	for _, c := range []struct {
		name   string
		slow   []float64
		change change
		class  string // of worker 1
		tokens int
		want   float64 // of worker 1
	}{
		{"equal", []float64{1, 1, 1}, nil, "", 1600, 0},
		{"alone", []float64{3}, nil, "", 1600, 0},
		{"half the speed", []float64{1, 2, 1}, nil, "", 1600, 2},
		{"half the speed, of two", []float64{1, 2}, nil, "", 1600, 2},
		{"five times as slow", []float64{1, 5, 1, 1}, nil, "", 1600, 4},
		{"a little slower", []float64{1, 1.2, 1}, nil, "", 1600, 0},
		{"another class", []float64{1, 2, 1}, nil, "old", 1600, 0},
		{"steps of a fixed cost", []float64{0.1, 0.3, 0.1}, nil, "", 320, 0},
		{"disturbed", []float64{1, 1, 1}, func(i int, slow []float64) {
			slow[1] = 1
			if i == 3 {
				slow[1] = 4
			}
		}, "", 1600, 0},
	} {
		s := newSteps(len(c.slow))
		if c.class != "" {
			s.workers[1].Class = c.class
		}
		f := New(s.c.now)
		f.Set(s.workers)
		began, named := s.c.t, time.Time{}
		for i := range 30 {
			if c.change != nil {
				c.change(i, c.slow)
			}
			at := s.c.t
			for w := range s.workers {
				s.c.t = at // they work at the same time
				s.step(w, c.tokens, c.slow[w])
			}
			s.c.t = at.Add(500 * time.Millisecond)
			for _, slot := range f.JudgePace(s.c.t) {
				if !slot.Slow().Certain || slot.Worker != s.workers[min(1, len(s.workers)-1)] || c.want == 0 {
					t.Errorf("%s, step %d: got %s %+v, want the second worker, for certain, if any", c.name, i, slot.Worker.Name, slot.Slow())
				}
				named = s.c.t
			}
		}
		if c.want == 0 {
			continue
		}
		slow := s.workers[1].Slots[0].Slow()
		if took := named.Sub(began); named.IsZero() || took > 10*time.Second || math.Abs(slow.Times/c.want-1) > 0.3 {
			t.Errorf("%s: %+v after %v, want %v", c.name, slow, took, c.want)
		}
		for range 30 {
			for w := range s.workers {
				s.step(w, c.tokens, 1)
			}
			f.JudgePace(s.c.t)
		}
		if slow := s.workers[1].Slots[0].Slow(); slow.Times != 0 {
			t.Errorf("%s: as fast as the others for 30 steps, and %+v, want Times 0", c.name, slow)
		}
	}
}
