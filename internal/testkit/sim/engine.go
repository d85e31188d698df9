package sim

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sightline-router/sightline/internal/testkit/vllmid"
)

// scheduler is one data-parallel rank, which works in steps, as vLLM's does.
//
// A step gives every running request one token, then admits waiting ones while there are seats and blocks. It takes the
// time that the model says (prefill is not cut into chunks, so a long prompt holds up the others for one step). At its
// end its events are published as one batch, and its tokens go out. Blocks are findable from the moment they are
// scheduled, so equal requests that meet in one step share them.
type scheduler struct {
	rank   int
	time   TimeModel
	slow   float64 // how many times that
	size   int     // tokens a block
	seats  int
	hasher *vllmid.BlockHasher
	pub    teller
	load   *publisher // nil: its load is not told
	wake   chan struct{}

	mu       sync.Mutex
	pool     *pool
	encoder  *lru
	waiting  []*sequence
	running  []*sequence
	counters Counters
	ttft     histogram
}

// teller is where a rank's events go: a publisher or a drain.
type teller interface {
	start()
	publish([]event)
	told() (batches uint64, heard bool)
	stop()
}

// sequence is one prompt on its way through the engine. The engine owns it once it was submitted.
type sequence struct {
	ctx      context.Context
	index    int // among the prompts of one HTTP request
	size     int
	tokens   []uint32 // prompt, then what was generated
	prompt   int      // length of the prompt
	items    []vllmid.Item
	scope    vllmid.Scope
	adapter  int // the adapter's number; 0: none
	session  string
	answer   func(i int) uint32
	max      int // tokens to generate
	noRead   bool
	report   bool
	arrived  time.Time
	out      chan<- output // has room for everything that the request can generate
	chain    []vllmid.Digest
	keys     [][]vllmid.Key
	blocks   []int32
	admitted bool
	cached   int // prompt tokens found in the cache
}

// output is one generated token.
type output struct {
	index  int // of the sequence
	n      int // tokens generated so far, this one included
	token  uint32
	last   bool
	cached int // prompt tokens that were found in the cache
}

// hashTo extends the chain to the full blocks of the first n tokens.
func (s *sequence) hashTo(h *vllmid.BlockHasher, n int) {
	for i := len(s.chain); (i+1)*s.size <= n; i++ {
		parent := h.Root()
		if i > 0 {
			parent = s.chain[i-1]
		}
		keys := vllmid.Keys(i*s.size, (i+1)*s.size, s.items, s.scope)
		s.keys = append(s.keys, keys)
		s.chain = append(s.chain, h.Block(parent, s.tokens[i*s.size:(i+1)*s.size], keys))
	}
}

func (e *scheduler) submit(seqs ...*sequence) {
	for _, s := range seqs {
		s.hashTo(e.hasher, len(s.tokens))
	}
	e.mu.Lock()
	e.waiting = append(e.waiting, seqs...)
	e.counters.Requests += len(seqs)
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// run steps until ctx ends. It never idles while a sequence waits: with nothing running, every block is free.
func (e *scheduler) run(ctx context.Context) {
	for {
		tokens, cost := e.schedule()
		if tokens == nil {
			select {
			case <-ctx.Done():
				return
			case <-e.wake:
			}
			continue
		}
		if cost > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(cost):
			}
		} else if ctx.Err() != nil {
			return
		}
		e.finish(tokens)
	}
}

// schedule decides one step: which sequences get a token and how long it takes. Nil: nothing to do.
func (e *scheduler) schedule() (step []*sequence, cost time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running = slices.DeleteFunc(e.running, func(s *sequence) bool {
		if s.ctx.Err() == nil {
			return false
		}
		e.pool.release(s.blocks)
		e.counters.Aborted++
		return true
	})
	e.waiting = slices.DeleteFunc(e.waiting, func(s *sequence) bool {
		if s.ctx.Err() == nil {
			return false
		}
		e.counters.Aborted++
		return true
	})
	for i := 0; i < len(e.running); i++ {
		if s := e.running[i]; e.grow(s) {
			step = append(step, s)
		}
	}
	if len(step) > 0 {
		cost = e.time.Decode
	}
	for len(e.waiting) > 0 && len(e.running) < e.seats {
		c, ok := e.admit(e.waiting[0])
		if !ok {
			break
		}
		cost += c
		step = append(step, e.waiting[0])
		e.running = append(e.running, e.waiting[0])
		e.waiting = e.waiting[1:]
	}
	return step, time.Duration(float64(cost) * e.slow)
}

// grow makes room for a running sequence's newest token and stores the block that it fills. Without a free block the
// request admitted last goes back to the queue, and starts again later (vLLM's preemption); false if that was s.
func (e *scheduler) grow(s *sequence) bool {
	for len(s.blocks)*e.size < len(s.tokens) {
		if e.pool.free > 0 {
			s.blocks = e.pool.take(s.blocks, 1)
			continue
		}
		last := e.running[len(e.running)-1]
		e.running = e.running[:len(e.running)-1]
		e.pool.release(last.blocks)
		last.blocks = nil
		e.waiting = slices.Insert(e.waiting, 0, last)
		e.counters.Preempted++
		if last == s {
			return false
		}
	}
	before := len(s.chain)
	s.hashTo(e.hasher, len(s.tokens))
	e.pool.store(s, before, len(s.chain))
	return true
}

// admit gives a waiting sequence its blocks: the leading ones that are held, never the whole prompt, since the last
// token must be computed; new ones for the rest. False if there are not enough.
func (e *scheduler) admit(s *sequence) (cost time.Duration, ok bool) {
	s.hashTo(e.hasher, len(s.tokens))
	var hits []int32
	if !s.noRead {
		hits = e.pool.find(s.chain, (len(s.tokens)-1)/e.size)
	}
	need := (len(s.tokens)+e.size-1)/e.size - len(hits)
	if need > e.pool.freeAfter(hits) {
		return 0, false
	}
	e.pool.pin(hits)
	s.blocks = e.pool.take(hits, need)
	cached := len(hits) * e.size
	if s.report {
		e.pool.tell(s, 0, len(hits)) // vllm_xargs.kv_cache_report_mode "full": again, though they are held
	}
	e.pool.store(s, len(hits), len(s.chain))
	if !s.admitted { // a preempted sequence counts once
		s.admitted = true
		s.cached = cached
		e.counters.PromptTokens += s.prompt
		e.counters.CachedTokens += cached
	}
	e.counters.PrefilledTokens += len(s.tokens) - cached
	cost = time.Duration(len(s.tokens)-cached) * e.time.Prefill
	for _, it := range s.items {
		if it.Offset+it.Length > cached && !e.encoder.use(it.Identifier, it.Length) {
			e.counters.ImagesEncoded++
			cost += e.time.Encode
		}
	}
	return cost, true
}

// finish ends a step: events first, then tokens, then the blocks of those that are done.
func (e *scheduler) finish(step []*sequence) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.pool.events) > 0 {
		e.pub.publish(e.pool.events)
		e.pool.events = nil
	}
	e.tellLoad()
	for _, s := range step {
		n := len(s.tokens) - s.prompt + 1
		if n == 1 {
			e.ttft.observe(time.Since(s.arrived).Seconds())
		}
		token := s.answer(n - 1)
		s.tokens = append(s.tokens, token)
		s.out <- output{s.index, n, token, n >= s.max, s.cached}
		if n >= s.max {
			e.pool.release(s.blocks)
			e.running = slices.DeleteFunc(e.running, func(r *sequence) bool { return r == s })
			e.counters.GeneratedTokens += n
		}
	}
}

// tellLoad publishes what waits and how full the cache is, as NVIDIA's standalone example does. e.mu is held.
func (e *scheduler) tellLoad() {
	if e.load == nil {
		return
	}
	msg := fmt.Appendf(nil, `{"num_waiting_reqs": %d, "kv_cache_usage": %g}`, len(e.waiting), e.pool.usage())
	e.load.mu.Lock()
	defer e.load.mu.Unlock()
	e.load.send(zmtpMessage(msg))
}

// reset empties the prefix cache; false if requests are running.
func (e *scheduler) reset() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pool.reset()
}
