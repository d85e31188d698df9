package fleetsim

import (
	"math"

	"github.com/sightline-router/sightline/router/fleet"
)

// Workers with a lower tier, as vLLM's offloading connector has it: what the GPU stores is copied there, and stays, the least recently
// used going first, when the GPU needs the room. A prompt's blocks behind those of the GPU are fetched before the rest is computed, in
// whole units, however long that takes.

// lower is one worker's.
type lower struct {
	*blocks
	unit int
	each float64 // seconds a token
}

func newLower(setup *Setup, worker int) *lower {
	if setup.Engine.Lower == 0 {
		return nil
	}
	l := &lower{newBlocks(setup.Engine.Lower), setup.Engine.Unit, setup.Engine.Fetch}
	if worker < len(setup.Lower) {
		l.each = setup.Lower[worker]
	}
	return l
}

// found is how many leading tokens of a prompt a worker need not compute, and the seconds that it takes to fetch those that its GPU has not.
func (w *worker) found(r *run) (tokens int, seconds float64) {
	most := (r.input - 1) / w.BlockSize
	gpu := w.cache.hits(r.blocks, most)
	if w.lower == nil {
		return gpu * w.BlockSize, 0
	}
	end := gpu + w.lower.hits(r.blocks[gpu:], most-gpu)
	end = max(gpu, end/w.lower.unit*w.lower.unit)
	return end * w.BlockSize, w.lower.each * float64((end-gpu)*w.BlockSize)
}

// offload copies blocks that the GPU has stored, and tells of those that were not there.
func (w *worker) offload(r *run, from, to int) {
	if w.lower == nil {
		return
	}
	for i := from; i < to; i++ {
		known, at := w.lower.at.get(r.blocks[i]) != 0, len(w.out)
		w.lower.touch(r.blocks[i], &w.out)
		for k := range w.out[at:] {
			w.out[at+k].lower = true
		}
		if !known {
			w.out = append(w.out, change{stored: true, lower: true, run: r, from: i, to: i + 1})
		}
	}
}

// tiers is what a router makes of what it is told of lower tiers.
type tiers uint8

const (
	weighed tiers = iota // worth computing less fetching
	asGPU                // as good as what the GPU has
	unheard              // nothing
)

// forget has a router that takes them for the GPU's take fetching for nothing, whatever it has learned.
func (t tiers) forget(workers []*fleet.Worker) {
	if t == asGPU {
		for _, w := range workers {
			w.Expect(0, math.MaxInt32)
		}
	}
}

// tierRules are those that scenarios with lower tiers are played under: the last of ours go without what is judged.
func tierRules() []Rival {
	rules := Rules()
	as := func(t tiers) func(*View) Rule {
		return func(v *View) Rule {
			s := newSightline(v).(*sightline)
			s.lower = t
			return s
		}
	}
	return append(rules, Rival{"tiers as GPU", as(asGPU)}, Rival{"tiers unheard", as(unheard)})
}
