package fleetsim

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/workers/fleet"
)

// Workers that only encode images. A router names one of them for each image (x-encoder-hosts-ports). Each encodes sequentially
// and keeps what it has encoded, up to its cache size. If another encoder is asked for an image, or the same one after evicting
// it, the image is encoded again. A request is prefilled once all its images are encoded.

// naming selects one of n encoders for an image.
type naming func(v *View, m Image, of int) int

// Namings that this repository's is compared with.
func byName(_ *View, m Image, of int) int { return int(mix(m.ID, 77) % uint64(of)) }
func drawn(v *View, _ Image, of int) int  { return v.rand.IntN(of) }

// pool is a set of encoders.
type pool struct {
	workers []*fleet.Worker
	away    bool // the last one is away
	caches  []*recent
	free    []time.Duration // when each will have finished its work
	encoded map[uint64]int  // how often each image was encoded
}

// encoderCache is an encoder's cache size in tokens: that of vLLM's example of encoders with shared memory.
const encoderCache = 114688

// once returns the share of encoded images that were encoded only once.
func (p *pool) once() float64 {
	n := 0
	for _, times := range p.encoded {
		if times == 1 {
			n++
		}
	}
	return float64(n) / float64(max(1, len(p.encoded)))
}

// encoders adds a pool of encoders.
func (s *sightline) encoders(n int) {
	p := &pool{encoded: make(map[uint64]int), free: make([]time.Duration, n)}
	for i := range n {
		w := fleet.NewWorker(fmt.Sprint("encoder ", i), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), 8000), modelName, 0,
			func(int) indexer.SlotID { return s.index.Join(indexer.SlotOptions{}) })
		w.Role = fleet.Encode
		p.workers, p.caches = append(p.workers, w), append(p.caches, newRecent(encoderCache))
	}
	s.pool = p
}

// turn makes the last encoder of a pool leave for a while and return with an empty cache. It returns those present.
func (p *pool) turn(v *View) []*fleet.Worker {
	if p == nil {
		return nil
	}
	last, setup := len(p.workers)-1, v.sim.setup
	if away := v.Now >= setup.EncoderGoes && v.Now < setup.EncoderComes; away != p.away {
		p.away, p.caches[last] = away, newRecent(encoderCache)
	}
	if p.away {
		return p.workers[:last]
	}
	return p.workers
}

// take makes a request's images be encoded by the encoders that the router named, or that another naming selects.
func (p *pool) take(v *View, r *run, named string) {
	if named == "" {
		return // the worker has them
	}
	setup, homes := v.sim.setup, strings.Split(named, ",")
	for i, m := range r.req.Images {
		addr := homes[i%len(homes)] // as llm-d's sidecar does from 0.7 on
		at := slices.IndexFunc(p.workers, func(w *fleet.Worker) bool { return w.Addr == addr })
		if setup.Naming != nil {
			at = setup.Naming(v, m, len(p.turn(v)))
		}
		p.free[at] = max(p.free[at], v.Now)
		if !p.caches[at].has(m.ID, m.Tokens) {
			p.encoded[m.ID]++
			p.free[at] += inSeconds(setup.Engine.Encode * float64(m.Tokens))
		}
		r.encoded = max(r.encoded, p.free[at])
	}
}

// playEncoders judges pools whose encoders are named per image: all present, and one away for the middle third.
func playEncoders(sc Scenario, load float64, judge func(about, measured string, ok bool)) {
	for _, hot := range []float64{0, 0.3} {
		requests, what := reused(1, load*sc.Capacity, seconds), "half of the pictures seen before"
		if hot > 0 {
			requests, what = inBursts(images(1, 3*load*sc.Capacity, seconds/3, hot)), "bursts, a third about one image"
		}
		trace := prepare(requests, defaultEngine().BlockSize)
		for _, n := range []int{2, 4, 8} {
			setup := sc.setup()
			setup.Encoders = n
			play := func(how naming) (once float64, sum Summary) {
				var s *sightline
				setup.Naming = how
				sum = Run(setup, trace, func(v *View) Picker { s = newSightline(v).(*sightline); return s }).Summarise(warmUp, sc.Until)
				return s.pool.once(), sum
			}
			once, ours := play(nil)
			alone, named := play(byName)
			random, other := play(drawn)
			judge(fmt.Sprintf("%d encoders, %s: encoded once: at least 0.95 of the images that choice by image hash alone encodes once",
				n, what), fmt.Sprintf("%.3f, %.3f (random: %.3f)", once, alone, random), once >= 0.95*alone)
			mean, tail, means, tails := over(ours.Mean, named.Mean), over(ours.TTFT.P99, named.TTFT.P99), over(ours.Mean, other.Mean),
				over(ours.TTFT.P99, other.TTFT.P99)
			judge(fmt.Sprintf("%d encoders, %s: mean (and p99) at most 1.03 of choice by image hash's, and of random choice's",
				n, what), fmt.Sprintf("%.3f, %.3f; %.3f, %.3f", mean, tail, means, tails),
				max(mean, means) <= 1.03)
			if hot > 0 {
				continue
			}
			setup.EncoderGoes, setup.EncoderComes = seconds*time.Second/3, seconds*time.Second*2/3
			least := 0.95 * (1 - 1/float64(n))
			once, _ = play(nil)
			random, _ = play(drawn)
			judge(fmt.Sprintf("%d encoders, one leaves and returns: all images but its own encoded once", n),
				fmt.Sprintf("%.3f (random: %.3f)", once, random), once >= least)
		}
	}
}
