package fleetsim

import (
	"testing"
	"time"

	"github.com/sightline-router/sightline/router/forecast"
	"github.com/sightline-router/sightline/workers/fleet"
)

// TestDeparture: a worker that leaves gets nothing more, and what it alone held is counted where it is computed again.
func TestDeparture(t *testing.T) {
	const at = 20 * time.Second
	s := scenario(t, "chats")
	setup := s.setup()
	setup.Workers, setup.Leave = 3, []departure{{at: at, which: func(*View) []int { return []int{1} }}}
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

// settling is this repository's router, which takes in several times a second what was decided, as Router.Run does.
type settling struct {
	*sightline
	settled time.Duration
}

func newSettling(v *View) *settling {
	ours := newSightline(v).(*sightline)
	ours.counted = true
	return &settling{sightline: ours}
}

func (f *settling) Pick(v *View, r *run) int {
	f.now = v.Now
	if f.now >= f.settled {
		f.settled = f.now + 250*time.Millisecond
		f.router.Removals()
	}
	return f.sightline.Pick(v, r)
}

// TestScaleIn: of a worker that is cordoned for two minutes before it leaves, others compute at most 0.7 times as many tokens again as of a
// worker that leaves at once, chosen at random. What is told of all choices by one run is what a departure then shows.
func TestScaleIn(t *testing.T) {
	if testing.Short() {
		t.Skip("a quarter of a minute of simulation")
	}
	const at, rate = 60 * time.Second, 8
	s := scenario(t, "chats")
	s.Workers = 4
	trace := prepare(chats.traffic(1, rate, 260), s.setup().Engine.BlockSize)
	play := func(o *stock, leaves []departure, of **settling) *Result {
		setup := s.setup()
		setup.Stock, setup.Leave = o, leaves
		return Run(setup, trace, func(v *View) Picker {
			p := newSettling(v)
			if of != nil {
				*of = p
			}
			return p
		})
	}
	o := &stock{at: at}
	play(o, nil, nil)
	best, mean := o.choices(4, 1)
	size := float64(s.setup().Engine.BlockSize)
	var p *settling
	chosen := -1
	cheapest := func(to fleet.Service) func(*View) []int {
		return func(v *View) []int {
			var least forecast.Removal
			for i, w := range p.workers {
				if r := p.router.Removals()[w]; chosen < 0 || r.Cost() < least.Cost() {
					chosen, least = i, r
				}
			}
			p.workers[chosen].SetService(to, time.Unix(1_000_000, 0).Add(v.sim.now))
			return []int{chosen}
		}
	}
	now := float64(play(nil, []departure{{at: at, which: cheapest(fleet.InService)}}, &p).Again) / size
	told := float64(o.lostWith(1 << chosen))
	if now < 0.7*told || now > 1.3*told || told < best {
		t.Errorf("%v blocks are computed again, want about %v as told, and %v at least", now, told, best)
	}
	chosen = -1
	cordoned := float64(play(nil, []departure{{at: at, which: cheapest(fleet.Cordoned), after: 2 * time.Minute}}, &p).Again) / size
	if cordoned > 0.7*mean {
		t.Errorf("%v blocks are computed again of a worker that was cordoned, want at most 0.7 of %v", cordoned, mean)
	}
	t.Logf("of %.0f blocks: best %.2f, ours %.2f, cordoned %.2f", mean, best/mean, now/mean, cordoned/mean)
}
