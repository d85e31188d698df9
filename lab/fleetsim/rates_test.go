package fleetsim

import (
	"slices"
	"testing"
	"time"
)

// ratesSeen is this repository's router, of which the rates of all workers are read at each decision after a time.
type ratesSeen struct {
	*sightline
	after time.Duration
	read  func(rates []float64)
}

func (w *ratesSeen) Pick(v *View, r *run) int {
	if v.Now >= w.after {
		rates := make([]float64, len(w.workers))
		for i := range rates {
			rates[i] = w.workers[i].Slots[0].Load(time.Unix(1_000_000, 0).Add(v.Now)).Rate
		}
		w.read(rates)
	}
	return w.sightline.Pick(v, r)
}

// TestEqualRates: workers that are equal show equal rates, whatever work each of them has; one of half the speed is found.
func TestEqualRates(t *testing.T) {
	play := func(name string, after time.Duration, read func(rates []float64)) {
		sc := scenario(t, name)
		setup, trace := sc.setup(), sc.at(0.7, 1)
		trace.Requests = slices.DeleteFunc(slices.Clone(trace.Requests), func(r *Request) bool { return r.Prev != nil || r.At > 40*time.Second })
		Run(setup, trace, func(v *View) Picker { return &ratesSeen{newSightline(v).(*sightline), after, read} })
	}
	for _, name := range []string{"chats 3B", "hot image", "agents"} {
		most, n := 0.0, 0
		play(name, 10*time.Second, func(rates []float64) { most, n = max(most, slices.Max(rates)/slices.Min(rates)), n+1 })
		if n < 50 || !(most <= 1.1) {
			t.Errorf("%s: the highest rate is up to %.2f times the lowest in %d decisions, want 1.1", name, most, n)
		}
	}
	found := 0.0
	play("slow worker", 10*time.Second, func(rates []float64) {
		if found == 0 {
			found = rates[0] / slices.Max(rates)
		}
	})
	if found <= 0 || found > 0.65 {
		t.Errorf("after 10 s the worker of half the speed shows %.2f of the highest rate, want 0.65 at most", found)
	}
}

// warming makes the last worker 15 times slower until three prompts have begun there.
type warming struct {
	*sightline
	begun int
}

func (w *warming) Began(v *View, r *run) {
	last := v.sim.workers[len(v.sim.workers)-1]
	if r.worker == last.id {
		w.begun++
		if w.begun == 3 {
			last.speed = 1
		}
	}
	w.sightline.Began(v, r)
}

// TestWarmingWorker: a worker whose first three prompts took 15 times as long gets its share again, though what was learned of it keeps
// requests from it.
func TestWarmingWorker(t *testing.T) {
	m := newGenerator(1, 1)
	for burst := range 9 {
		for i := range 12 {
			r := m.turn(nil, 0)
			r.At = time.Duration(burst)*2500*time.Millisecond + time.Duration(i)*50*time.Millisecond
			m.say(r, 1200, 2)
		}
	}
	setup := Setup{Workers: 4, Engine: defaultEngine(), Delays: defaultDelays(), Speeds: []float64{1, 1, 1, 1. / 15}}
	res := Run(setup, prepare(m.trace, setup.Engine.BlockSize), func(v *View) Picker {
		return &warming{sightline: newSightline(v).(*sightline)}
	})
	const slowest = 15 * 200 * time.Millisecond
	its := 0
	for _, s := range res.Served {
		if s.At > slowest && s.Worker == 3 {
			its++
		}
	}
	if its < 12 {
		t.Errorf("of the 84 requests after it warmed up it gets %d, want 12 at least", its)
	}
}
