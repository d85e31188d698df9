package fleetsim

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/router/fleet"
)

// Workers that only encode pictures, for whom a router names one for each picture (x-encoder-hosts-ports). Played is who encodes what,
// and not for how long: each keeps what it has encoded, as much as its cache takes, and a picture that another one is asked for, or
// the same one after that is gone, is encoded again.

// pool is a few of them, as one way of naming them would have them be.
type pool struct {
	caches  []*recent
	encoded map[uint64]int // how often a picture was
}

// encoderCache is the tokens that one keeps: that of vLLM's example of encoders with shared memory.
const encoderCache = 114688

func newPool(n int) *pool {
	p := &pool{encoded: make(map[uint64]int)}
	for range n {
		p.caches = append(p.caches, newRecent(encoderCache))
	}
	return p
}

func (p *pool) take(m Image, at int) {
	if !p.caches[at].has(m.ID, m.Tokens) {
		p.encoded[m.ID]++
	}
}

// once is the share of the pictures that were encoded that were so no more than once.
func (p *pool) once() float64 {
	n := 0
	for _, times := range p.encoded {
		if times == 1 {
			n++
		}
	}
	return float64(n) / float64(max(1, len(p.encoded)))
}

// encoding is a pool under this repository's router, and beside it one of which each picture's encoder is drawn.
type encoding struct {
	workers     []*fleet.Worker
	ours, drawn *pool
	away        bool // the last one
}

// encoders adds a pool of workers.
func (s *sightline) encoders(n int) {
	e := &encoding{ours: newPool(n), drawn: newPool(n)}
	for i := range n {
		w := fleet.NewWorker(fmt.Sprint("encoder ", i), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), 8000), modelName, 0,
			func(int) indexer.SlotID { return s.index.Join(indexer.SlotOptions{}) })
		w.Role = fleet.Encode
		e.workers = append(e.workers, w)
	}
	s.pool = e
}

// turn has the last of a pool leave for a while; it comes back empty. It gives those that are there.
func (e *encoding) turn(v *View) []*fleet.Worker {
	if e == nil {
		return nil
	}
	last, setup := len(e.workers)-1, v.sim.setup
	if away := v.Now >= setup.EncoderGoes && v.Now < setup.EncoderComes; away != e.away {
		e.away = away
		e.ours.caches[last], e.drawn.caches[last] = newRecent(encoderCache), newRecent(encoderCache)
	}
	if e.away {
		return e.workers[:last]
	}
	return e.workers
}

// take has a request's pictures encoded by those whom the router named.
func (e *encoding) take(v *View, r *Request, named string) {
	if named == "" {
		return // the worker holds them
	}
	homes := strings.Split(named, ",")
	for i, m := range r.Images {
		addr := homes[i%len(homes)] // as llm-d's sidecar does from 0.7 on
		e.ours.take(m, slices.IndexFunc(e.workers, func(w *fleet.Worker) bool { return w.Addr == addr }))
		e.drawn.take(m, v.rand.IntN(len(e.turn(v))))
	}
}

// playEncoders judges pools of which each picture's encoder is named: all there, and one away for the middle third.
func playEncoders(sc Scenario, load float64, judge func(about, measured string, ok bool)) {
	trace := prepare(reused(1, load*sc.Capacity, seconds), defaultEngine().BlockSize)
	for _, n := range []int{2, 4, 8} {
		for _, leaves := range []bool{false, true} {
			setup, about, least := sc.setup(), fmt.Sprintf("%d encoders, half of the pictures seen before: 0.95 encoded once", n), 0.95
			setup.Encoders = n
			if leaves {
				about, least = fmt.Sprintf("%d encoders, one goes and comes: all but its pictures encoded once", n), 0.95*(1-1/float64(n))
				setup.EncoderGoes, setup.EncoderComes = seconds*time.Second/3, seconds*time.Second*2/3
			}
			var s *sightline
			Run(setup, trace, func(v *View) Rule { s = newSightline(v).(*sightline); return s })
			ours, drawn := s.pool.ours.once(), s.pool.drawn.once()
			judge(about, fmt.Sprintf("%.3f (drawn: %.3f)", ours, drawn), ours >= least)
		}
	}
}
