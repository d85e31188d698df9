package fleetsim

import (
	"slices"
	"time"

	"github.com/sightline-router/sightline/lab/vllmcache"
)

// Engine describes one simulated engine on one GPU: sizes, and the cost of a step.
type Engine struct {
	BlockSize int
	Blocks    int // of the KV cache
	Budget    int // tokens per step (max_num_batched_tokens)
	MaxSeqs   int
	Encoder   int // tokens of the encoder cache
	Adapters  int // that can be loaded at once

	Step    float64 // seconds per step: reading weights, launching kernels
	Prefill float64 // seconds per prompt token
	Pair    float64 // seconds per pair of a prompt token and a token before it (attention)
	Decode  float64 // seconds per sequence
	Context float64 // seconds per context token of a decoding sequence
	Encode  float64 // seconds per image token
	Load    float64 // seconds to load an adapter

	Handover float64 // seconds for the second request per answer, if another worker prefills
	Fetch    float64 // seconds to transfer the KV blocks of a token from one worker to another

	Groups    []vllmcache.Group // KV cache groups of a hybrid model; nil: full attention alone
	Retention int               // see vllmcache.Options

	AtEnd bool // blocks of an answer are stored, and told, when it ends, and none is told twice: SGLang's and TensorRT-LLM's trees

	Lower int // blocks of the lower tier; 0: there is none
	Unit  int // blocks that it returns at once
}

// defaultEngine resembles vLLM with an 8 B vision-language model on one large GPU: 12,000 prompt tokens a second, 8 ms per step,
// room for 400,000 tokens. The figures are a rough guess, not a measurement.
func defaultEngine() Engine {
	return Engine{BlockSize: 16, Blocks: 25000, Budget: 8192, MaxSeqs: 256, Encoder: 8192, Adapters: 4,
		Step: 8e-3, Prefill: 80e-6, Pair: 0.9e-9, Decode: 40e-6, Context: 40e-9, Encode: 60e-6, Load: 0.3,
		Handover: 5e-3, Fetch: 5.2e-6} // 128 KB per token at 25 GB/s
}

// Other machines, rough guesses like defaultEngine. smallGPU and experts are held out: nothing is tuned on them.
func smallModel(e *Engine) {
	e.Blocks, e.Step, e.Prefill, e.Pair = 50000, 4e-3, 25e-6, 0.4e-9
	e.Decode, e.Context, e.Encode = 20e-6, 15e-9, 40e-6
}

func largeModel(e *Engine) {
	e.Blocks, e.Step, e.Prefill, e.Pair = 40000, 22e-3, 180e-6, 1.5e-9
	e.Decode, e.Context, e.Encode = 120e-6, 60e-9, 30e-6
}

func smallGPU(e *Engine) {
	e.Blocks, e.Budget, e.Step, e.Prefill, e.Pair = 6000, 2048, 32e-3, 260e-6, 3e-9
	e.Decode, e.Context, e.Encode = 80e-6, 90e-9, 150e-6
}

func experts(e *Engine) {
	e.Blocks, e.Budget, e.Step, e.Prefill, e.Pair = 50000, 16384, 12e-3, 45e-6, 0.8e-9
	e.Decode, e.Context, e.Encode = 150e-6, 50e-9, 50e-6
}

// worker is one simulated engine.
type worker struct {
	Engine
	id       int
	speed    float64 // a step takes 1/speed of Engine's time
	fails    failure
	cache    *blocks
	lower    *lower  // nil: it has none
	hybrid   *hybrid // in place of cache; nil: there is one group
	encoder  *recent
	adapters *recent
	waiting  []*run
	running  []*run
	admitted []*run        // those whose KV blocks must be fetched, from the prefill worker or from the lower tier
	fetching int           // how many of them are being fetched
	fetched  time.Duration // until when
	busy     bool
	out      []change // reported at the step's end
	lost     *lost    // nil: no worker has left
	left     bool     // it has
	stock    *stock   // nil: none is taken

	done    float64 // seconds of work done
	prefill int     // tokens computed
	loads   int     // of adapters
}

// failure is a worker's fault.
type failure uint8

const (
	fine     failure = iota
	refusing         // answers 503 at once
)

// run is one request at a worker.
type run struct {
	req       *Request
	arrived   time.Duration // at the router
	blocks    []int32       // numbers of the full blocks of prompt and answer
	input     int
	output    int
	computed  int     // prompt tokens
	made      int     // tokens generated
	again     int     // those that had been when it lost its blocks: they are computed again with the prompt
	cached    int     // prompt tokens found in the cache
	held      []int32 // cells of the cache
	stored    int     // blocks whose hash is in the cache
	chunk     int     // of this step
	there     int     // prompt tokens available once they are fetched
	worker    int
	first     int           // the worker that prefills it for this one; -1: this one does
	lent      *run          // if it was prefilled elsewhere: that run, whose blocks are held until they are fetched
	lends     bool          // it is such a run
	encoded   time.Duration // when other workers have encoded its images; 0: it encodes them itself
	booked    any           // used by the picker
	due       int64         // the lowest is served first; 0 of all: as they come
	hybrid    *hybridRun    // its blocks in a hybrid worker's cache
	preempted bool          // it has lost its blocks once at least
	calls     calls
}

// known returns how many tokens are computed before the next one is made.
func (r *run) known() int { return r.input + r.again }

// prompt returns the numbers of the prompt's full blocks.
func (r *run) prompt(size int) []int32 { return r.blocks[:r.input/size] }

// calls are callbacks on a run's progress.
type calls struct{ began, ended func() }

// change is one KV event.
type change struct {
	stored bool
	lower  bool // in the lower tier
	run    *run
	from   int // stored: run.chain[from:to]
	to     int
	block  int32 // removed

	group   int     // of a hybrid worker
	kept    []int32 // stored, of another group than the full one: the numbers of the blocks
	remains bool    // removed: the worker has another copy
}

// outstanding returns the true work before a new request: tokens of prompts still to compute, including images.
func (w *worker) outstanding() (tokens int) {
	for _, list := range [][]*run{w.running, w.waiting} {
		for _, r := range list {
			left := r.known() - r.computed
			if r.held == nil && r.hybrid == nil { // not yet admitted
				left -= w.hits(r)
			}
			tokens += max(0, left)
		}
	}
	return tokens
}

// use returns the share of the KV cache that runs hold.
func (w *worker) use() float64 {
	if w.hybrid != nil {
		return w.hybrid.Usage()
	}
	return 1 - float64(w.cache.unused)/float64(w.Blocks)
}

// schedule begins a step and returns how long it takes; 0: there is nothing to do.
func (w *worker) schedule() time.Duration {
	budget, cost := w.Budget, 0.0
	if w.hybrid != nil {
		w.hybrid.BeginStep()
	}
	preempted := w.grow()
	for _, r := range w.running {
		if r.computed == r.known() {
			r.chunk = w.advance(r, 1)
			budget--
			cost += w.Decode + w.Context*float64(r.input+r.made)
		}
	}
	for _, r := range w.running {
		if r.computed < r.known() {
			r.chunk = w.advance(r, min(budget, r.known()-r.computed))
			cost += w.take(r, &budget)
		}
	}
	for !preempted && len(w.waiting) > 0 && len(w.running) < w.MaxSeqs && budget > 0 {
		r := w.waiting[0]
		hit, ok := 0, false
		if w.hybrid != nil {
			hit, ok = w.admitHybrid(r, budget)
		} else {
			hit, ok = w.cache.admit(r, w.BlockSize, &w.out)
			if ok {
				r.chunk = min(budget, r.known()-hit)
			}
		}
		if !ok {
			break
		}
		r.computed, r.stored = hit, hit/w.BlockSize
		w.stock.used(r.blocks[:hit/w.BlockSize])
		w.waiting = w.waiting[1:]
		if r.req.Adapter != 0 && !w.adapters.has(r.req.Adapter, 1) {
			cost += w.Load
			w.loads++
		}
		r.there = hit
		if w.lower != nil {
			r.there, _ = w.found(r)
		}
		if r.lent != nil {
			r.there = r.input - 1
		} else if !r.preempted {
			r.cached = r.there
		}
		if r.there > hit || r.lent != nil {
			w.admitted = append(w.admitted, r)
			continue
		}
		w.running = append(w.running, r)
		cost += w.take(r, &budget)
	}
	if len(w.running) == 0 {
		return 0
	}
	seconds := (cost + w.Step) / w.speed
	w.done += seconds
	return inSeconds(seconds)
}

// grow gives decoding runs the blocks of their next tokens. Where none is left it takes those of other runs, which then wait and compute
// all again (vLLM 0.32, v1/core/sched/scheduler.py): first of the one due last, of equal ones of the one admitted last. Hybrid workers
// admit only what they have room for to its end.
func (w *worker) grow() (preempted bool) {
	if w.hybrid != nil {
		return false
	}
	for i := 0; i < len(w.running); {
		r := w.running[i]
		switch {
		case r.computed < r.known() || len(r.held)*w.BlockSize >= r.input+r.made:
			i++
		case w.cache.unused > 0:
			r.held = append(r.held, w.cache.take(&w.out))
		default:
			last := 0
			for k, one := range w.running {
				if one.due >= w.running[last].due {
					last = k
				}
			}
			w.preempt(last)
			preempted = true
			if last < i {
				i--
			}
		}
	}
	return preempted
}

// preempt takes a running run's blocks.
func (w *worker) preempt(i int) {
	r := w.running[i]
	w.running = slices.Delete(w.running, i, i+1)
	w.release(r)
	r.held, r.computed, r.stored, r.again, r.lent, r.preempted = nil, 0, 0, r.made, nil, true
	if r.due == 0 {
		w.waiting = slices.Insert(w.waiting, 0, r)
		return
	}
	w.await(r)
}

// await puts a run among those that wait.
func (w *worker) await(r *run) {
	at := len(w.waiting)
	for at > 0 && r.due < w.waiting[at-1].due { // among equal ones as they come (vLLM 0.32, v1/core/sched/request_queue.py)
		at--
	}
	w.waiting = slices.Insert(w.waiting, at, r)
}

// take gives a prefilling run its share of the step, r.chunk.
func (w *worker) take(r *run, budget *int) (cost float64) {
	*budget -= r.chunk
	w.prefill += r.chunk
	to := r.computed + r.chunk
	for _, m := range r.req.Images {
		if m.Offset < to && m.Offset+m.Tokens > r.computed && !w.encoder.has(m.ID, m.Tokens) && r.encoded == 0 {
			cost += w.Encode * float64(m.Tokens)
		}
	}
	n := float64(r.chunk)
	cost += w.Prefill*n + w.Pair*n*(float64(r.computed)+n/2)
	w.store(r, to)
	return cost
}

// store puts the full blocks up to a token into the cache.
func (w *worker) store(r *run, to int) {
	full := min(to/w.BlockSize, len(r.blocks))
	if full <= r.stored || w.hybrid != nil { // which has stored them
		return
	}
	from := r.stored
	for w.AtEnd && from < full && w.cache.at.get(r.blocks[from]) != 0 {
		from++
	}
	for i := from; i < full; i++ {
		w.cache.name(r.held[i], r.blocks[i])
	}
	r.stored = full
	w.lost.computed(w, r.blocks[from:full])
	w.stock.used(r.blocks[from:full])
	if from < full {
		w.out = append(w.out, change{stored: true, run: r, from: from, to: full})
		w.offload(r, from, full)
	}
}

// finish ends a step. It returns the runs that have produced their first token and those that are over.
func (w *worker) finish() (began, ended []*run) {
	keep := w.running[:0]
	for _, r := range w.running {
		if r.computed < r.known() {
			r.computed += r.chunk
			r.chunk = 0
			if r.computed < r.known() {
				keep = append(keep, r)
				continue
			}
		}
		r.made++
		if r.made == 1 {
			began = append(began, r)
		}
		if !w.AtEnd || r.made >= r.output {
			w.store(r, r.input+r.made-1)
		}
		if r.made >= r.output {
			ended = append(ended, r)
			if !r.lends {
				w.release(r)
			}
			continue
		}
		keep = append(keep, r)
	}
	w.running = keep
	return began, ended
}

// blocks is a prefix cache like vLLM's: unused blocks keep their content until they are needed, the least recently used are evicted
// first, and of one request the last ones first.
type blocks struct {
	at     sparseArray // number of a block → its cell
	cells  []cell      // cells[0] is the sentinel of the ring of unused cells; its next is evicted first
	fresh  int         // cells never used so far; they are taken before those of the ring
	unused int         // cells of the ring plus fresh ones
}

type cell struct {
	block      int32 // number of its content; none: -1
	users      int32
	prev, next int32
}

func newBlocks(n int) *blocks { return &blocks{cells: []cell{{block: -1}}, fresh: n, unused: n} }

func (b *blocks) push(c int32) {
	last := b.cells[0].prev
	b.cells[c].prev, b.cells[c].next = last, 0
	b.cells[last].next, b.cells[0].prev = c, c
	b.unused++
}

func (b *blocks) pull(c int32) {
	prev, next := b.cells[c].prev, b.cells[c].next
	b.cells[prev].next, b.cells[next].prev = next, prev
	b.unused--
}

// hits counts the leading blocks of a prompt that are held, up to most.
func (b *blocks) hits(prompt []int32, most int) (n int) {
	for n < most && b.at.get(prompt[n]) != 0 {
		n++
	}
	return n
}

// admit allocates the blocks of what a run has to compute. ok is false if there are too few. vLLM 0.32 checks the same at this point
// (scheduler_reserve_full_isl), but allocates the blocks as they are computed.
func (b *blocks) admit(r *run, size int, out *[]change) (hit int, ok bool) {
	n := b.hits(r.blocks, (r.known()-1)/size)
	need := (r.known()+size-1)/size - n
	idle := 0
	for _, h := range r.blocks[:n] {
		if b.cells[b.at.get(h)].users == 0 {
			idle++
		}
	}
	if b.unused-idle < need {
		return 0, false
	}
	r.held = make([]int32, 0, n+need)
	for _, h := range r.blocks[:n] {
		c := b.at.get(h)
		if b.cells[c].users == 0 {
			b.pull(c)
		}
		b.cells[c].users++
		r.held = append(r.held, c)
	}
	for range need {
		r.held = append(r.held, b.take(out))
	}
	return n * size, true
}

// take evicts and returns the next cell.
func (b *blocks) take(out *[]change) int32 {
	if b.fresh > 0 {
		b.fresh--
		b.unused--
		b.cells = append(b.cells, cell{block: -1, users: 1})
		return int32(len(b.cells) - 1)
	}
	at := b.cells[0].next
	b.pull(at)
	c := &b.cells[at]
	if c.block >= 0 {
		b.at.set(c.block, 0)
		*out = append(*out, change{block: c.block})
		c.block = -1
	}
	c.users = 1
	return at
}

// touch makes an unused block the most recent one.
func (b *blocks) touch(block int32, out *[]change) {
	c := b.at.get(block)
	if c == 0 {
		c = b.take(out)
		b.name(c, block)
	} else {
		b.pull(c)
	}
	b.cells[c].users = 0
	b.push(c)
}

// name gives a cell its content. A second cell with the same content stays without.
func (b *blocks) name(c, block int32) {
	if b.cells[c].block < 0 && b.at.get(block) == 0 {
		b.cells[c].block = block
		b.at.set(block, c)
	}
}

func (b *blocks) release(held []int32) {
	for i := len(held) - 1; i >= 0; i-- {
		c := &b.cells[held[i]]
		c.users--
		if c.users == 0 {
			b.push(held[i])
		}
	}
}

// sparseArray is an array of mostly zeros.
type sparseArray []*[1024]int32

func (p sparseArray) get(i int32) int32 {
	if at := int(i >> 10); at < len(p) && p[at] != nil {
		return p[at][i&1023]
	}
	return 0
}

func (p *sparseArray) set(i, x int32) {
	at := int(i >> 10)
	for at >= len(*p) {
		*p = append(*p, nil)
	}
	if (*p)[at] == nil {
		(*p)[at] = new([1024]int32)
	}
	(*p)[at][i&1023] = x
}

// recent is an LRU cache bounded by size: encoded images by tokens, adapters by number.
type recent struct {
	room int
	used int
	at   map[uint64]int // content → turn of its last use
	size map[uint64]int
	turn int
}

func newRecent(room int) *recent {
	return &recent{room: room, at: make(map[uint64]int), size: make(map[uint64]int)}
}

// has reports whether something is held, and inserts it if not.
func (e *recent) has(id uint64, size int) bool {
	e.turn++
	_, ok := e.at[id]
	e.at[id] = e.turn
	if ok {
		return true
	}
	e.size[id] = size
	for e.used += size; e.used > e.room && len(e.at) > 1; {
		oldest := uint64(0)
		for id, at := range e.at {
			if _, known := e.at[oldest]; !known || at < e.at[oldest] {
				oldest = id
			}
		}
		e.used -= e.size[oldest]
		delete(e.at, oldest)
		delete(e.size, oldest)
	}
	return false
}
