package fleetsim

import (
	"math"

	"github.com/sightline-router/sightline/workers/fleet"
)

// Workers with a lower tier, like vLLM's offloading connector: blocks stored on the GPU are copied there, and remain there when the
// GPU evicts them; the lower tier evicts the least recently used. A prompt's blocks after those on the GPU are fetched before the
// rest is computed, in whole units, however long that takes.

// lower is one worker's lower tier.
type lower struct {
	*blocks
	unit int
	each float64 // seconds per token
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

// found returns how many leading tokens of a prompt a worker need not compute, and the seconds to fetch those that its GPU lacks.
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

// offload copies blocks that the GPU has stored, and reports the new ones.
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

// tiers is how a router treats events about lower tiers.
type tiers uint8

const (
	weighed tiers = iota // blocks count, less the time to fetch them
	asGPU                // blocks count like the GPU's
	unheard              // events are ignored
)

// forget makes a router that treats lower tiers like the GPU assume that fetching is free, whatever it has learned.
func (t tiers) forget(workers []*fleet.Worker) {
	if t == asGPU {
		for _, w := range workers {
			w.SetFetchRate(math.MaxInt32)
		}
	}
}

// tierPickers are the pickers for scenarios with lower tiers; the last of this repository's lack the feature under test.
func tierPickers() []Rival {
	pickers := Pickers()
	as := func(t tiers) func(*View) Picker {
		return func(v *View) Picker {
			s := newSightline(v).(*sightline)
			s.lower = t
			return s
		}
	}
	return append(pickers, Rival{"tiers as GPU", as(asGPU)}, Rival{"tiers unheard", as(unheard)})
}
