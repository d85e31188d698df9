package fleetsim

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/learned"
	"github.com/sightline-router/sightline/workers/fleet"
)

// sightline is the real router on the simulation's clock, with its own index.
type sightline struct {
	now     time.Duration
	flush   time.Duration // when the last message to other replicas is sent
	router  *router.Router
	index   *indexer.Index
	fleet   *fleet.Fleet
	workers []*fleet.Worker
	matches indexer.Matches
	ids     []uint32
	hashes  []uint64
	alive   int
	pool    *pool // nil: workers encode their own images
	lower   tiers
	groups  groupsKnown
	next    int     // number of the latest request, which no other replica has given
	counted bool    // ends tell how many tokens the engine has found cached
	memory  *memory // requests are known by what was learned alone; nil: every prompt is read
}

// adapters returns the adapter names that traffic uses.
func adapters() (names []string) {
	for i := range maxAdapters {
		names = append(names, (&Request{Adapter: uint64(i) + 1}).adapter())
	}
	return names
}

const maxAdapters = 16

const modelName = "simulated"

// newSightline returns a picker that runs this repository's router.
func newSightline(v *View) Picker { return newRouter(v, nil) }

// newRouter returns it with a memory; nil: it reads every prompt, else none.
func newRouter(v *View, m *memory) Picker {
	s := &sightline{index: indexer.New(indexer.Options{}), memory: m, next: len(v.sim.pickers) << 32}
	now := func() time.Time { return time.Unix(1_000_000, 0).Add(s.now) }
	s.fleet = fleet.New(now)
	for i := range v.Loads {
		s.index.Join(indexer.SlotOptions{CountCopies: v.sim.setup.Engine.Groups != nil})
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8000)
		w := fleet.NewWorker(fmt.Sprint(i), addr, modelName, 0, func(int) indexer.SlotID { return slotOf(i) })
		if n := v.sim.setup.Prefill; n > 0 {
			w.Role = fleet.Decode
			if i < n {
				w.Role = fleet.Prefill
			}
		}
		if v.sim.setup.ByDue {
			w.SetServing(rules.LowFirst)
		}
		if !v.sim.setup.NoEvents {
			w.Slots[0].EventAge = func(time.Time) time.Duration { return 0 }
		}
		s.workers = append(s.workers, w)
	}
	if n := v.sim.setup.Encoders; n > 0 {
		s.encoders(n)
	}
	var share func(*router.SharedBooking)
	var teach func(uint64, *learned.Lesson)
	if v.sim.setup.Sharing.Every > 0 {
		own := len(v.sim.pickers)
		share, teach = func(told *router.SharedBooking) { s.share(v, own, told) }, s.teachOthers(v, own)
		s.cut(v, own)
	}
	s.router = router.New(router.Options{Share: share, ShareLearned: teach, Models: []router.Model{{Name: modelName, Adapters: adapters(),
		MaxLoRAs: v.sim.setup.Engine.Adapters, Unit: v.sim.setup.Engine.Unit * v.Size,
		Prompts: engine.NewUnloaded(engine.Server{Engine: "vllm", EngineVersion: "0.32.0", BlockSize: v.Size,
			NoSessionIDs: m != nil && m.noNames})}},
		LearnedBytes: m.bytes(), Fleet: s.fleet, Index: s.index, PredictedTTL: cmp.Or(v.sim.setup.PredictedTTL, 10*time.Second),
		Now: now, Seed: v.sim.setup.Seed + 1})
	v.sim.after(time.Duration(v.rand.Int64N(int64(loadEvery))), func() { s.ask(v) }) // replicas begin at different moments
	return s
}

// How workers are asked: the configuration's default, and the values of workers/health and engine/vllm.
const (
	loadEvery = time.Second
	loadSoon  = loadEvery / 4   // while workers have others' requests
	loadOld   = 2 * time.Second // at most
	loadLasts = 3 * loadEvery
)

// ask reads every worker's metrics page, periodically from now on.
func (s *sightline) ask(v *View) {
	s.now = v.sim.now
	if until := v.sim.setup.ScrapedTo; until != 0 && s.now > until {
		return
	}
	now, next := time.Unix(1_000_000, 0).Add(s.now), loadEvery
	for i, w := range v.sim.workers {
		slot := s.workers[i].Slots[0]
		slot.SetReport(fleet.LoadReport{Running: len(w.running), Waiting: len(w.waiting), Usage: w.use(), Cache: w.Blocks * w.BlockSize,
			MaxAge: loadOld, ValidFor: loadLasts}, now)
		if slot.Load(now).OtherSenders > 0 {
			next = loadSoon
		}
	}
	v.sim.after(next, func() { s.ask(v) })
}

func slotOf(w int) indexer.SlotID { return indexer.SlotID(w) }

func (s *sightline) Pick(v *View, r *run) int {
	s.now = v.Now
	s.lower.forget(s.workers)
	encoders := s.pool.turn(v)
	if len(v.First)+len(v.Alive)+len(encoders) != s.alive {
		in := slices.Clone(encoders)
		for _, w := range append(slices.Clone(v.First), v.Alive...) {
			in = append(in, s.workers[w])
		}
		s.fleet.Set(in)
		s.alive = len(in)
	}
	s.next++
	d := s.decide(r)
	at := s.fleet.ByAddr(d.Targets[0].Addr)
	r.booked = d
	if v.sim.setup.ByDue {
		r.due, _ = strconv.ParseInt(d.Targets[0].Due.Value, 10, 64)
	}
	if s.pool != nil {
		s.pool.take(v, r, d.Encoder)
	}
	if named := d.Targets[0].Prefill; named != "" {
		r.first = slices.IndexFunc(s.workers, func(w *fleet.Worker) bool { return w.Addr == named })
	}
	for i, w := range s.workers {
		if w == at {
			if !v.sim.setup.NoReports { // at once: a server sends the headers of a streamed answer before its prefill
				s.router.Observe(router.Outcome{ID: d.ID, Phase: router.Started, Addr: at.Addr})
			}
			return i
		}
	}
	panic("a target that is no worker")
}

func (s *sightline) Began(*View, *run) {}

func (s *sightline) Ended(v *View, r *run, failed bool) {
	if v.sim.setup.NoReports {
		return
	}
	s.now = v.Now
	d := r.booked.(router.Decision)
	o := router.Outcome{ID: d.ID, Phase: router.Ended, Addr: d.Targets[0].Addr, Code: 200, Answered: true, CachedTokens: -1,
		PromptTokens: r.input, OutputTokens: r.output}
	if s.memory != nil && s.memory.noCounts {
		o.PromptTokens, o.OutputTokens = 0, 0
	}
	if s.counted {
		o.CachedTokens = r.cached
	}
	if failed {
		o.Code = 503
	}
	s.router.Observe(o)
}

// Heard implements listener.
func (s *sightline) Heard(v *View, worker int, out []change) {
	s.now = v.Now
	for _, c := range out {
		if c.group == 0 {
			s.apply(v, slotOf(worker), c)
		}
	}
	for _, c := range out { // the full group's blocks come first, as decoders have it
		if c.group > 0 {
			s.applyGroup(v, slotOf(worker), c)
		}
	}
	for _, c := range out {
		if c.stored && c.group == 0 {
			s.workers[worker].Slots[0].Progress(func(locals []uint64) int {
				s.index.Match(locals, &s.matches)
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

// Lost implements listener.
func (s *sightline) Lost(v *View, worker int) {
	s.workers[worker].Slots[0].EventsLost(time.Unix(1_000_000, 0).Add(v.Now))
}

func (s *sightline) apply(v *View, slot indexer.SlotID, c change) {
	s.hashes = s.hashes[:0]
	tier := indexer.GPU
	if c.lower {
		tier = indexer.CPU
		if s.lower == unheard {
			return
		}
	}
	if !c.stored {
		s.hashes = append(s.hashes, v.sim.trace.chain[c.block])
		_, _ = s.index.Remove(slot, tier, s.hashes)
		return
	}
	parent, has := uint64(0), c.from > 0
	if has {
		parent = v.sim.trace.chain[c.run.blocks[c.from-1]]
	}
	for _, b := range c.run.blocks[c.from:c.to] {
		s.hashes = append(s.hashes, v.sim.trace.chain[b])
	}
	s.teach(v, slot, c, parent)
	_ = s.index.Store(slot, tier, parent, has, s.hashes, c.run.req.locals[c.from:c.to])
}
