package fleetsim

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

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

// A scaleIn takes some workers out of a fleet that has served a traffic for a while.
type scaleIn struct {
	scenario   string
	traffic    func(seed uint64, rate float64) []*Request // of some minutes
	rate       float64                                    // of eight workers
	from, gone int
}

const (
	scaledIn = 60 * time.Second // when they are chosen
	cordoned = 2 * time.Minute  // for how long, before they leave
)

// blocksAgain are the blocks that others compute again: without the best choice of workers, as known afterwards, without an average one and
// without the newest, if they leave when those would that are cordoned; and if they leave when they are chosen, the least that is told, and
// what is told and comes of the cheapest.
type blocksAgain struct{ best, mean, newest, cordoned, least, told, cheapest float64 }

func (c *scaleIn) play(t *testing.T, seed uint64, both bool) (b blocksAgain) {
	s := scenario(t, c.scenario)
	s.Workers = c.from
	trace := prepare(c.traffic(seed, c.rate*float64(c.from)/8), s.setup().Engine.BlockSize)
	run := func(o *stock, leaves []departure, of **settling) float64 {
		setup := s.setup()
		setup.Stock, setup.Leave = o, leaves
		r := Run(setup, trace, func(v *View) Picker {
			*of = newSettling(v)
			return *of
		})
		return float64(r.Again) / float64(setup.Engine.BlockSize)
	}
	var p *settling
	var chosen []int
	cheapest := func(to fleet.Service) func(*View) []int {
		return func(v *View) []int {
			cost := make([]float64, c.from)
			chosen = make([]int, c.from)
			for i, w := range p.workers {
				of := p.router.Removals()[w]
				cost[i], chosen[i] = of.Cost(), i
			}
			slices.SortStableFunc(chosen, func(a, b int) int { return cmp.Compare(cost[a], cost[b]) })
			chosen = chosen[:c.gone]
			for _, i := range chosen {
				p.workers[i].SetService(to, time.Unix(1_000_000, 0).Add(v.sim.now))
			}
			return chosen
		}
	}
	o := &stock{at: scaledIn + cordoned}
	run(o, nil, &p)
	b.best, b.mean = o.choices(c.from, c.gone)
	b.newest = float64(o.lostWith((1<<c.gone - 1) << (c.from - c.gone)))
	if both {
		o = &stock{at: scaledIn}
		run(o, nil, &p)
		b.least, _ = o.choices(c.from, c.gone)
		b.cheapest = run(nil, []departure{{at: scaledIn, which: cheapest(fleet.InService)}}, &p)
		set := uint32(0)
		for _, i := range chosen {
			set |= 1 << i
		}
		b.told = float64(o.lostWith(set))
	}
	b.cordoned = run(nil, []departure{{at: scaledIn, which: cheapest(fleet.Cordoned), after: cordoned}}, &p)
	return b
}

// TestScaleIn: of a worker that is cordoned for two minutes before it leaves, others compute at most 0.7 times as many tokens again as of
// one that leaves then without that, chosen at random. What is told of all choices by one run is what a departure then shows.
func TestScaleIn(t *testing.T) {
	if testing.Short() {
		t.Skip("a quarter of a minute of simulation")
	}
	c := scaleIn{"chats", func(seed uint64, rate float64) []*Request { return chats.traffic(seed, rate, 260) }, 16, 4, 1}
	b := c.play(t, 1, true)
	if b.cheapest < 0.7*b.told || b.cheapest > 1.3*b.told || b.told < b.least {
		t.Errorf("%v blocks are computed again, want about %v as told, and %v at least", b.cheapest, b.told, b.least)
	}
	if b.cordoned > 0.7*b.mean {
		t.Errorf("%v blocks are computed again of a worker that was cordoned, want at most 0.7 of %v", b.cordoned, b.mean)
	}
	t.Logf("newest %.2f of %.0f, best %.2f, cordoned %.2f", b.newest/b.mean, b.mean, b.best/b.mean, b.cordoned/b.mean)
}

// TestScaleInFleets: of two of eight and of four of sixteen workers that are cordoned before they leave, others compute at most 0.6 times
// as many tokens again as of the newest (images: 0.7), and 0.7 times as many as of some chosen at random. Of the cordoned, what others
// compute in these two minutes counts too.
func TestScaleInFleets(t *testing.T) {
	if os.Getenv("SIGHTLINE_SCALEIN") == "" {
		t.Skip("half an hour of simulation: SIGHTLINE_SCALEIN=1")
	}
	for _, c := range []scaleIn{
		{scenario: "chats", traffic: func(seed uint64, rate float64) []*Request { return chats.traffic(seed, rate, 260) }},
		{scenario: "agents", traffic: func(seed uint64, rate float64) []*Request { return agents.traffic(seed, rate, 260) }},
		{scenario: "images", traffic: func(seed uint64, rate float64) []*Request { return images(seed, rate, 260, 0) }},
		{scenario: "screenshots", traffic: func(seed uint64, rate float64) []*Request { return screenshots(seed, rate, 260) }},
		{scenario: "hot prefix", traffic: func(seed uint64, rate float64) []*Request { return trending(seed, rate, 260) }},
	} {
		for _, c.from = range []int{8, 16} {
			c.gone, c.rate = c.from/4, 0.6*scenario(t, c.scenario).Capacity
			var all blocksAgain
			for seed := range uint64(3) {
				b := c.play(t, seed+1, false)
				all.best, all.mean, all.newest, all.cordoned = all.best+b.best, all.mean+b.mean, all.newest+b.newest, all.cordoned+b.cordoned
			}
			ofNewest, ofAny, most := all.cordoned/all.newest, all.cordoned/all.mean, 0.6
			if c.scenario == "images" {
				most = 0.7
			}
			fmt.Printf("scale-in of %s, %d of %d: newest %.2f of a random choice's blocks, best %.2f, cordoned %.2f\n", c.scenario, c.gone, c.from,
				all.newest/all.mean, all.best/all.mean, ofAny)
			if ofNewest > most || ofAny > 0.7 {
				t.Errorf("%s, without %d of %d: got %.2f of the newest's blocks computed again and %.2f of a random choice's, want at most %v and 0.7",
					c.scenario, c.gone, c.from, ofNewest, ofAny, most)
			}
		}
	}
}
