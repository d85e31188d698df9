package fleetsim

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// orderSeeds is the number of seeds over which an order is judged: at saturation a single p99 differs by a fifth by chance.
const orderSeeds = 4

// others makes conversations different from those of another seed, but for their system prompts, whose ids are small.
func others(trace []*Request) []*Request {
	other := func(s *Segment) {
		if s.ID >= 1<<20 {
			s.ID = mix(s.ID, 13)
		}
	}
	for _, r := range trace {
		r.Session = mix(r.Session, 13)
		other(&r.Answer)
		for i := range r.Prompt {
			other(&r.Prompt[i])
		}
	}
	return trace
}

// beside adds conversations that can wait to those that cannot.
func beside(seed uint64, rate float64) []*Request {
	urgent, batch := chats.traffic(seed, rate/2, seconds), others(chats.traffic(seed+100, rate/2, seconds))
	for _, r := range batch {
		r.Priority = -1
	}
	return append(urgent, batch...)
}

// burst has ten times the chats for 20 s.
func burst(seed uint64, rate float64) []*Request {
	usual, more := chats.traffic(seed, rate, 100), others(chats.traffic(seed+100, 9*rate, 20))
	for _, r := range more {
		if r.Prev == nil {
			r.At += 40 * time.Second
		}
	}
	return append(usual, more...)
}

// ordered lists what is played with engines that serve waiting requests as the router says, and at which loads.
func ordered(find func(string) Scenario) (list []Scenario) {
	for _, one := range []struct {
		name  string
		loads []float64
	}{{"chats", []float64{1.6}}, {"images", []float64{1.3, 1.6}}, {"agents", []float64{1.3}}, {"documents among chats", []float64{1.3}},
		{"chats 14B", []float64{1, 1.3}}} {
		s := find(one.name)
		s.Loads = one.loads
		list = append(list, s)
	}
	more := find("chats")
	more.Name, more.Traffic, more.Loads, more.Until = "ten times for 20 s", burst, []float64{0.5}, 100*time.Second
	mixed := find("chats")
	mixed.Name, mixed.Traffic, mixed.Loads = "beside batch", beside, []float64{0.9, 1.3}
	return append(list, more, mixed)
}

// playOrder judges engines that serve waiting requests as the router says, against the same that serve them as they come. What is said
// of batch work is about the requests beside it.
func playOrder(find func(string) Scenario, judge func(name string, load float64, about, measured string, ok bool)) {
	for _, s := range ordered(find) {
		for _, load := range s.Loads {
			came, due := s.inOrder(load, false), s.inOrder(load, true)
			mean, tail, end := over(due.Mean, came.Mean), over(due.TTFT.P99, came.TTFT.P99), over(due.E2E, came.E2E)
			judge(s.Name, load, "engines serve by priority: mean, p99, end ≤ 1.03, 1.10, 1.03 of as they come",
				fmt.Sprintf("%.3f, %.3f, %.3f", mean, tail, end), mean <= 1.03 && tail <= 1.1 && end <= 1.03)
		}
	}
}

// inOrder returns the mean over the seeds of playInOrder's figures.
func (s *Scenario) inOrder(load float64, byDue bool) (sum Summary) {
	var all sync.WaitGroup
	var of [orderSeeds]Summary
	for seed := range of {
		all.Go(func() { of[seed] = s.playInOrder(load, uint64(seed)+1, byDue) })
	}
	all.Wait()
	for _, one := range of {
		sum.Mean, sum.TTFT.P99, sum.E2E = sum.Mean+one.Mean/orderSeeds, sum.TTFT.P99+one.TTFT.P99/orderSeeds, sum.E2E+one.E2E/orderSeeds
	}
	return sum
}

// playInOrder returns the figures of requests that are not marked as able to wait.
func (s *Scenario) playInOrder(load float64, seed uint64, byDue bool) Summary {
	setup := s.setup()
	setup.ByDue = byDue
	r := Run(setup, s.at(load, seed), newSightline)
	r.Served = slices.DeleteFunc(r.Served, func(one Served) bool { return one.Req.Priority < 0 })
	return r.Summarise(min(warmUp, s.Until/7), s.Until)
}
