package fleetsim

import (
	"fmt"
	"os"
	"testing"

	"github.com/sightline-router/sightline/router/forecast"
)

// neededGoals are those for which a fleet of four is asked how many workers it needs.
var neededGoals = []forecast.Goal{{Busy: 0.7}, {FirstToken: 0.5}, {FirstToken: 2}}

// askNeeded plays a traffic to four workers, and says by goal how many it is told to need, and how many do: the least number of one to
// twelve that holds the goal.
func askNeeded(s *Scenario, traffic []*Request) (told, least []int) {
	trace := prepare(traffic, s.setup().Engine.BlockSize)
	type held struct{ busy, first float64 }
	play := func(workers int, to *forecast.Forecast) (h held) {
		setup := s.setup()
		setup.Workers = workers
		r := Run(setup, trace, func(v *View) Picker {
			p := newSettling(v)
			if to == nil {
				return p
			}
			return &foretelling{sightline: p.sightline, told: to}
		})
		for _, n := range r.Tokens {
			h.busy += float64(n) * setup.Engine.Prefill / (float64(workers) * r.Took.Seconds())
		}
		for i := range r.Served {
			h.first += r.Served[i].TTFT.Seconds() / float64(len(r.Served))
		}
		return h
	}
	var now forecast.Forecast
	played := map[int]held{4: play(4, &now)}
	for _, g := range neededGoals {
		need := now.Needed(g, 0)
		holds := func(n int) bool {
			h, ok := played[n]
			if !ok {
				h = play(n, nil)
				played[n] = h
			}
			return (g.Busy == 0 || h.busy <= g.Busy) && (g.FirstToken == 0 || h.first <= g.FirstToken)
		}
		n := min(need, 12)
		for n > 1 && holds(n-1) {
			n--
		}
		for n < 12 && !holds(n) {
			n++
		}
		told, least = append(told, need), append(least, n)
	}
	return told, least
}

// TestNeeded: as many workers as a fleet of four is told to need for a share of the time, or for a mean time to the first token, or one
// fewer, is the least number that holds it.
func TestNeeded(t *testing.T) {
	type step struct {
		scenario string
		traffic  func(seed uint64, rate float64) []*Request
		rates    []float64
		seeds    uint64
	}
	talk := func(seed uint64, rate float64) []*Request { return chats.traffic(seed, rate, 150) }
	list := []step{{"chats", talk, []float64{5, 9}, 1}} // a quarter of a minute
	switch {
	case testing.Short():
		t.Skip("a quarter of a minute of simulation")
	case os.Getenv("SIGHTLINE_NEEDED") != "":
		list = []step{{"chats", talk, []float64{3, 5, 7, 9, 11}, 3},
			{"images", func(seed uint64, rate float64) []*Request { return images(seed, rate, 150, 0) }, []float64{5, 8, 11, 14}, 3},
			{"agents", func(seed uint64, rate float64) []*Request { return agents.traffic(seed, rate, 100) }, []float64{0.5, 1, 1.5}, 3},
			{"hot prefix", func(seed uint64, rate float64) []*Request { return trending(seed, rate, 150) }, []float64{8, 14, 20}, 3}}
	}
	right, steps := make([]int, len(neededGoals)), 0
	for _, c := range list {
		for seed := range c.seeds {
			for _, rate := range c.rates {
				s := scenario(t, c.scenario)
				s.Workers = 4
				told, least := askNeeded(s, c.traffic(seed+1, rate))
				steps++
				for i := range neededGoals {
					if told[i] == least[i] || told[i] == least[i]+1 {
						right[i]++
					}
				}
				line := fmt.Sprintf("%s, seed %d, %v a second: told to need %d, least %d", c.scenario, seed+1, rate, told, least)
				t.Log(line)
				if len(list) > 1 {
					fmt.Println(line)
				}
			}
		}
	}
	for i, g := range neededGoals {
		if 10*right[i] < 9*steps {
			t.Errorf("%+v: got as many workers as are needed, or one more, in %d of %d steps, want 90 %%", g, right[i], steps)
		}
	}
}
