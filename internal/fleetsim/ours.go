package fleetsim

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/fleet"
)

// sightline is the router itself, on the simulation's clock, with the view's index.
type sightline struct {
	v       *View
	now     time.Duration
	router  *router.Router
	fleet   *fleet.Fleet
	workers []*fleet.Worker
	matches indexer.Matches
	ids     []uint32
	alive   int
	next    int
}

// newSightline makes a rule of the router that this repository builds.
func newSightline(int) Rule { return &sightline{} }

const modelName = "simulated"

func (s *sightline) start(v *View) {
	s.v = v
	now := func() time.Time { return time.Unix(1_000_000, 0).Add(s.now) }
	s.fleet = fleet.New(now)
	for i := range v.Loads {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8000)
		w := fleet.NewWorker(fmt.Sprint(i), addr, modelName, 0, func(int) indexer.SlotID { return slotOf(i) })
		if !v.sim.setup.NoEvents {
			w.Slots[0].EventAge = func(time.Time) time.Duration { return 0 }
		}
		s.workers = append(s.workers, w)
	}
	s.router = router.New(router.Options{Models: []router.Model{{Name: modelName, Prompts: engine.Unread(engine.Server{Engine: "vllm", EngineVersion: "0.32.0", BlockSize: v.Size})}},
		Fleet: s.fleet, Index: v.Index, PredictedTTL: 10 * time.Second, Now: now, Seed: v.sim.setup.Seed + 1})
}

func (s *sightline) Pick(v *View, r *run) int {
	if s.v == nil {
		s.start(v)
	}
	s.now = v.Now
	if len(v.Alive) != s.alive {
		var in []*fleet.Worker
		for _, w := range v.Alive {
			in = append(in, s.workers[w])
		}
		s.fleet.Set(in)
		s.alive = len(in)
	}
	s.next++
	p := r.req.read(s.ids[:0])
	s.ids = p.IDs
	d := s.router.Place(fmt.Sprint(s.next), modelName, p)
	at := s.fleet.ByAddr(d.Targets[0].Addr)
	r.booked = d
	for i, w := range s.workers {
		if w == at {
			s.router.Observe(router.Outcome{ID: d.ID, Phase: router.Started, Addr: at.Addr})
			return i
		}
	}
	panic("a target that is no worker")
}

func (s *sightline) Began(*View, *run) {}

func (s *sightline) Ended(v *View, r *run, failed bool) {
	s.now = v.Now
	d := r.booked.(router.Decision)
	o := router.Outcome{ID: d.ID, Phase: router.Ended, Addr: d.Targets[0].Addr, Code: 200, Answered: true, CachedTokens: -1}
	if failed {
		o.Code = 503
	}
	s.router.Observe(o)
}

// Heard implements listener.
func (s *sightline) Heard(v *View, worker int, out []change) {
	if s.v == nil {
		return
	}
	s.now = v.Now
	for _, c := range out {
		if c.stored {
			s.workers[worker].Slots[0].Progress(func(locals []uint64) int {
				v.Index.Match(locals, &s.matches)
				for _, m := range s.matches.Slots {
					if m.Slot == slotOf(worker) {
						return int(m.Blocks)
					}
				}
				return 0
			}, time.Unix(1_000_000, 0).Add(s.now))
			return
		}
	}
}
