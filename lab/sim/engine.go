package sim

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/sightline-router/sightline/lab/vllmid"
)

// scheduler is one data-parallel rank, which works in steps, as vLLM's does.
//
// A step gives every running request one token, then admits waiting ones while there are seats and blocks. It takes the
// time that the model says (prefill is cut into chunks only by Config.StepTokens, and where a recurrent layer's state is
// kept, so a long prompt holds up the others for one step). At its end its events are published as one batch, and its
// tokens go out. Blocks are findable from the moment they are scheduled, so equal requests that meet in one step share
// them, states from the next step on.
type scheduler struct {
	rank   int
	time   TimeModel
	slow   float64 // how many times that
	budget int     // tokens a step; 0: no limit
	seats  int
	byDue  bool // --scheduling-policy priority
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
	served   func(Served) // nil: nobody wants to know
}

// Served is one prompt's way to its first token.
type Served struct {
	Arrived, Begun, First time.Time // in the queue; in its first step; after its last
	Prompt, Cached        int       // tokens
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
	request
	ctx      context.Context
	index    int      // among the prompts of one HTTP request
	size     int      // tokens of a hash
	tokens   []uint32 // prompt, then what was generated
	items    []vllmid.Item
	scope    vllmid.Scope
	adapter  int // the adapter's number; 0: none
	session  string
	answer   func(i int) uint32
	max      int // tokens to generate
	noRead   bool
	report   bool
	priority int64 // the lowest is served first, if the worker serves by it
	arrived  time.Time
	begun    time.Time     // its first step began
	out      chan<- output // has room for everything that the request can generate
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

// hash extends the chain to all known tokens.
func (s *sequence) hash(h *vllmid.BlockHasher) {
	s.Tokens = len(s.tokens)
	for i := len(s.Hashes); (i+1)*s.size <= s.Tokens; i++ {
		parent := h.Root()
		if i > 0 {
			parent = s.Hashes[i-1]
		}
		keys := vllmid.Keys(i*s.size, (i+1)*s.size, s.items, s.scope)
		s.Hashes = append(s.Hashes, h.Block(parent, s.tokens[i*s.size:(i+1)*s.size], keys))
	}
}

// endsWith is the hash of the first n tokens, "" of none.
func (s *sequence) endsWith(n int) vllmid.Digest {
	if n < s.size {
		return ""
	}
	return s.Hashes[n/s.size-1]
}

func (e *scheduler) submit(seqs ...*sequence) {
	for _, s := range seqs {
		s.Owner = s
		s.hash(e.hasher)
	}
	e.mu.Lock()
	for _, s := range seqs {
		e.queue(s)
	}
	e.counters.Requests += len(seqs)
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// queue puts a sequence where its turn comes: with byDue behind those of a lower or the same priority. e.mu is held.
func (e *scheduler) queue(s *sequence) {
	at := len(e.waiting)
	for e.byDue && at > 0 && s.before(e.waiting[at-1]) {
		at--
	}
	e.waiting = slices.Insert(e.waiting, at, s)
}

// before is vLLM's order of requests: by priority, then as they came.
func (s *sequence) before(o *sequence) bool {
	return s.priority < o.priority || s.priority == o.priority && s.arrived.Before(o.arrived)
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
	decodes := false
	e.running = slices.DeleteFunc(e.running, func(s *sequence) bool {
		if s.ctx.Err() == nil {
			return false
		}
		e.pool.Release(&s.request)
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
	e.pool.BeginStep()
	budget := e.budget
	if budget == 0 {
		budget = math.MaxInt
	}
	for i := 0; i < len(e.running) && budget > 0; i++ {
		s := e.running[i]
		n := e.pool.Chunk(&s.request, s.Computed, s.Junction, min(budget, s.Tokens-s.Computed))
		if n == 0 || !e.grow(s, n) {
			continue
		}
		budget -= n
		step = append(step, s)
		if n > 1 {
			cost += time.Duration(n) * e.time.Prefill
		} else {
			decodes = true
		}
	}
	for len(e.waiting) > 0 && len(e.running) < e.seats && budget > 0 {
		n, c := e.admit(e.waiting[0], budget)
		if n == 0 {
			break
		}
		budget -= n
		cost += c
		step = append(step, e.waiting[0])
		e.running = append(e.running, e.waiting[0])
		e.waiting = e.waiting[1:]
	}
	if decodes {
		cost += e.time.Decode
	}
	return step, time.Duration(float64(cost) * e.slow)
}

// grow makes room for a running sequence's next n tokens and stores the blocks that they fill. Without free blocks the request
// admitted last, or with byDue the last in its order, goes back to the queue, and starts again later (vLLM's preemption); false if that
// was s.
func (e *scheduler) grow(s *sequence, n int) bool {
	s.hash(e.hasher)
	for !e.pool.Allocate(&s.request, nil, n) {
		last := e.running[len(e.running)-1]
		for _, r := range e.running {
			if e.byDue && last.before(r) {
				last = r
			}
		}
		e.running = slices.DeleteFunc(e.running, func(r *sequence) bool { return r == last })
		e.pool.Release(&last.request)
		if e.byDue {
			e.queue(last)
		} else {
			e.waiting = slices.Insert(e.waiting, 0, last)
		}
		e.counters.Preempted++
		if last == s {
			return false
		}
	}
	return true
}

// admit gives a waiting sequence the blocks that are found of it, never of the whole prompt, since the last token must be computed,
// and new ones for the next tokens, at most budget. It returns how many, 0 if there are not enough blocks.
func (e *scheduler) admit(s *sequence, budget int) (n int, cost time.Duration) {
	s.hash(e.hasher)
	most := s.Tokens - 1
	if s.noRead {
		most = 0
	}
	hit := e.pool.Find(&s.request, most)
	if s.report {
		e.pool.TellAgain(&s.request, hit) // vllm_xargs.kv_cache_report_mode "full": again, though they are held
	}
	n = e.pool.Chunk(&s.request, hit.Tokens, hit.Junction, min(budget, s.Tokens-hit.Tokens))
	if n == 0 || !e.pool.Allocate(&s.request, hit, n) {
		return 0, 0
	}
	if !s.admitted { // a preempted sequence counts once
		s.admitted, s.begun, s.cached = true, time.Now(), hit.Tokens
		e.counters.PromptTokens += s.Prompt
		e.counters.CachedTokens += hit.Tokens
	}
	e.counters.PrefilledTokens += s.Tokens - hit.Tokens
	cost = time.Duration(n) * e.time.Prefill
	for _, it := range s.items {
		if it.Offset+it.Length > hit.Tokens && !e.encoder.use(it.Identifier, it.Length) {
			e.counters.ImagesEncoded++
			cost += e.time.Encode
		}
	}
	return n, cost
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
		if s.Computed < s.Tokens {
			continue
		}
		n := len(s.tokens) - s.Prompt + 1
		if n == 1 {
			e.ttft.observe(time.Since(s.arrived).Seconds())
			if e.served != nil {
				e.served(Served{s.arrived, s.begun, time.Now(), s.Prompt, s.cached})
			}
		}
		token := s.answer(n - 1)
		s.tokens = append(s.tokens, token)
		s.Tokens = len(s.tokens)
		s.out <- output{s.index, n, token, n >= s.max, s.cached}
		if n >= s.max {
			e.pool.Release(&s.request)
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
	msg := fmt.Appendf(nil, `{"num_waiting_reqs": %d, "kv_cache_usage": %g}`, len(e.waiting), e.pool.Usage())
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
