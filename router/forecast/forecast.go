// Package forecast tells what share of a model's prompt tokens would be found in caches of another size, or of more or fewer workers, from
// the traffic that it has: at each decision, how deep in the chosen worker's LRU stack the prompt's blocks lie says how large its cache
// would have to be for a hit.
//
//	decision ─▶ depth of its blocks ─▶ histogram of sizes that would do (curve.go) ─▶ share of tokens below a size
//	         ─▶ its blocks are used ─▶ stacks, of sampled blocks (stack.go)
//	end      ─▶ its blocks are used, its answer takes room; what the engine counted as cached
//
// Blocks are sampled by their hash (C. Waldspurger and others, Efficient MRC construction with SHARDS, FAST 2015). What the chosen worker
// does not have counts with the depth at the worker that had it last, if that is less: if that one has evicted it, a larger cache there
// would have been chosen; if it has it and another worker was chosen, load was the reason, which no cache changes. What one worker has
// evicted and another computes again is from then on in that one's stack alone, as larger caches would have it once. The shares are moved
// by the difference between what engines count today and what the histogram says of today's size, which absorbs how they evict.
//
// Two of today's workers would share one cache if there were half as many. So a second histogram has depths in two stacks: where few long
// conversations fill a cache, one worker has more of them than another, and two together seldom have twice as many as one. What load has
// had computed again is found there if the worker that has it is the other of the two.
//
// With smaller caches or fewer workers more is computed, which takes longer, fills caches with what is in flight and makes requests wait
// while others evict what they would have found. From some load on that feeds itself, and no depth tells where it ends: such points are
// marked as bounds. So are larger ones if that is so today.
package forecast

import (
	"cmp"
	"maps"
	"math"
	"sync"
	"time"
)

// Request is a request to a slot, as far as its prompt is known.
type Request struct {
	Slot   uint32
	Chain  []uint64 // chain hashes of the prompt's whole blocks, from its beginning; kept, and not changed
	Size   int      // tokens of a block; 0: not known, nor is Whole, as of another replica's request: the slot's other requests tell
	Tokens int      // of the prompt, estimated if it is not read; 0: not known
	Whole  bool     // Chain has all whole blocks of the prompt
	Needs  *Needs   // nil: nobody asks

	Queued  float64 // tokens to compute before it at the slot
	Compute int     // its own, with images to encode; 0: this and the queue are not known
}

// Needs asks, with Decided, how large the slot's cache would have had to be for some blocks of a prompt. Settle answers.
type Needs struct {
	From, To int // blocks
	mu       sync.Mutex
	list     []Need
}

// Need is the size that blocks from one on need, up to the next one that is sampled, in sizes of today's; +Inf: it is not known. Pushed:
// today's would do, had requests in flight not taken the room.
type Need struct {
	Block  int
	Times  float64
	Pushed bool
}

// Answer returns the answer, as far as Settle has come.
func (n *Needs) Answer() []Need {
	if n == nil {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.list
}

// Cache is a slot's cache today.
type Cache struct {
	Slot   uint32
	Worker uint32  // equal for the ranks of one worker
	Held   int     // blocks now
	Leaves bool    // it is taken out of service: what it holds counts for no other one
	Blocks int     // 0: not known, and requests to it are not covered
	Tokens int     // that it has room for, as its engine reports, if they are more than Blocks; 0: it does not
	Rate   float64 // prompt tokens that its engine computes a second; 0: not known
	Used   float64 // share that requests in flight hold; below 0: not known
}

const (
	maxQueue   = 4096 // decisions and ends that wait for Settle
	maxEnds    = 1 << 14
	endBytes   = 2 * 42 * maxEnds
	maxNeeds   = 64 // that one request is told
	lastBytes  = 42 // an entry of Forecaster.last
	reach      = 5  // a stack keeps what a cache of this many times the size would hold
	someOthers = 4  // that a slot is compared with
	freshPart  = 64 // of the cache: blocks used that shortly ago keep their place

	longestAnswer = 1 << 17 // blocks: what engines say of answers and caches is believed up to it, as each block takes time
)

// Forecaster forecasts one model's hit rate. It is safe for concurrent use: Decided and Ended only queue what they are told, Settle takes
// it in.
type Forecaster struct {
	queue struct {
		sync.Mutex
		list []told
	}

	mu      sync.Mutex
	began   time.Time
	now     tenths // of what is taken in
	resized time.Time
	most    int   // sampled blocks of all stacks
	shift   uint8 // 1 of 2^shift blocks is sampled
	held    int   // of most
	blocks  int   // of all slots' caches
	tokens  int   // of a block, in the prompt used last
	slots   map[uint32]*slot
	last    map[uint64]uint32 // sampled block → the slot that used it last, with severalBit if another one has used it too
	reuse   reuse
	ends    ends
	spans   spans
	found   []found // of one request, used again
}

// told is a decision, or an end.
type told struct {
	Request
	at             time.Time
	end            bool
	cached, output int
}

type slot struct {
	stack
	size   int // blocks of its cache; 0: not known
	worker uint32
	held   int // blocks now
	leaves bool
	tokens int     // of a block
	rate   float64 // Cache.Rate
	others []*slot // some, of which one would share its cache if there were half as many
}

// needs returns how large the cache would have to be for what has a depth, in sizes of its own; +Inf: its size is not known.
func (s *slot) needs(depth int) float64 {
	return (float64(depth) + 0.5) * float64(int(1)<<s.shift) / float64(s.size)
}

// found is a sampled block of a prompt: its place, and the size of a cache that would hold it, in sizes of today's.
type found struct {
	at int
	needs
}

// needs are of a block with all before it; +Inf: it was not seen before.
type needs struct {
	own   float64
	two   float64 // of each of two caches, if one of their size had what goes to both
	share float64 // how likely that one has it: below 1 if load had the request sent to a worker without it, as one of the others has it
}

// New returns a forecast that takes at most a number of bytes, of which about 2 MB do not depend on traffic.
func New(bytes int) *Forecaster {
	m := &Forecaster{most: max(1024, (bytes-endBytes-spansBytes)/(stackBytes+lastBytes))}
	m.slots, m.last = make(map[uint32]*slot), make(map[uint64]uint32)
	return m
}

// maxPause is the longest time between two calls of Resize for which the former's rates are taken to have held.
const maxPause = 10 * time.Second

// Resize says which slots there are, and what is known of their caches. Others are forgotten. Call it about once a second.
func (m *Forecaster) Resize(caches []Cache, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if pause := at.Sub(m.resized).Seconds(); pause > 0 && pause <= maxPause.Seconds() {
		span := m.spans.at(at)
		for _, c := range caches {
			span.capacity += c.Rate * pause
			if c.Used >= 0 {
				span.used += c.Used * pause
				span.usedFor += pause
			}
		}
	}
	m.reuse.fade(at.Sub(m.resized))
	m.resized = at
	old, known := m.slots, make([]*slot, 0, len(caches))
	m.slots, m.held, m.blocks = make(map[uint32]*slot, len(caches)), 0, 0
	for _, c := range caches {
		s := old[c.Slot]
		if s == nil {
			s = &slot{stack: stack{shift: m.shift}}
		}
		s.size, s.worker, s.held, s.rate, s.leaves = c.Blocks, c.Worker, c.Held, c.Rate, c.Leaves
		if c.Tokens > 0 && s.tokens > 0 && s.size > 0 {
			s.size = max(c.Blocks, c.Tokens/s.tokens)
		}
		m.slots[c.Slot] = s
		m.held, m.blocks = m.held+s.len(), m.blocks+s.size
		delete(old, c.Slot)
		s.others = nil
		if s.size > 0 {
			known = append(known, s)
		}
	}
	for i, s := range known {
		for k := 1; k < len(known) && k <= someOthers; k++ {
			s.others = append(s.others, known[(i+k)%len(known)])
		}
	}
	if len(old) > 0 {
		maps.DeleteFunc(m.last, func(_ uint64, of uint32) bool { return m.slots[of&^severalBit] == nil })
	}
}

// Decided says where a request goes. It returns false if it was dropped because Settle was not called for long.
func (m *Forecaster) Decided(r Request, at time.Time) bool { return m.add(told{Request: r, at: at}) }

// Ended says that a request, of which Decided was called, was answered: with so many prompt tokens from a cache (-1: not known) and so many
// tokens of output.
func (m *Forecaster) Ended(r Request, cached, output int, at time.Time) bool {
	return m.add(told{Request: r, at: at, end: true, cached: cached, output: output})
}

func (m *Forecaster) add(t told) bool {
	q := &m.queue
	q.Lock()
	defer q.Unlock()
	if len(q.list) >= maxQueue {
		return false
	}
	q.list = append(q.list, t)
	return true
}

// Settle takes in what was told since it was last called. It costs some 0.3 µs a sampled block.
func (m *Forecaster) Settle() {
	m.queue.Lock()
	list := m.queue.list
	m.queue.list = nil
	m.queue.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range list {
		t := &list[i]
		s := m.slots[t.Slot]
		m.now = m.since(t.at)
		if t.Size == 0 {
			size := m.tokens
			if s != nil && s.tokens > 0 {
				size = s.tokens
				t.Size, t.Whole = size, len(t.Chain) == t.Tokens/size
			}
			if len(t.Chain) > 0 { // of another replica no more counts than its blocks show: else what it says would call for workers
				t.Tokens = min(t.Tokens, (len(t.Chain)+1)*max(1, size))
			}
		}
		switch readable := s != nil && s.size > 0 && t.Size > 0 && (t.Whole || len(t.Chain) > 0); {
		case !readable && !t.end:
			m.spans.at(t.at).told += float64(t.Tokens)
		case !readable:
		case t.end:
			m.ended(s, t)
		default:
			m.decided(s, t)
		}
	}
}

// since returns a time as stacks have it.
func (m *Forecaster) since(at time.Time) tenths {
	if m.began.IsZero() {
		m.began = at
	}
	return tenths(max(0, at.Sub(m.began)/(time.Second/10)))
}

// decided adds a request's tokens to the histogram.
func (m *Forecaster) decided(s *slot, t *told) {
	span := m.spans.at(t.at)
	known := min(len(t.Chain)*t.Size, t.Tokens)
	usable := min(max(0, t.Tokens-1)/t.Size, len(t.Chain)) // an engine always computes the last token
	m.find(s, t.Chain[:usable])
	if q := t.Needs; q != nil {
		q.mu.Lock()
		for _, f := range m.found {
			if f.at >= q.From && f.at < q.To && len(q.list) < maxNeeds {
				n := Need{f.at, f.own, f.own < 1}
				if n.Pushed { // no list tells which size would do
					n.Times = math.Inf(1)
				}
				q.list = append(q.list, n)
			}
		}
		q.mu.Unlock()
	}
	m.spread(s, span, t, usable)
	span.all += float64(t.Tokens - usable*t.Size)
	span.told += float64(t.Tokens)
	if t.Whole {
		known = t.Tokens
	}
	span.known += float64(known)
	if t.Compute > 0 && s.rate > 0 {
		own := float64(t.Compute) / s.rate
		span.timed, span.waited, span.own, span.squares = span.timed+1, span.waited+t.Queued/s.rate, span.own+own, span.squares+own*own
		span.computed, span.of = span.computed+float64(t.Compute), span.of+float64(t.Tokens)
	}
	m.use(s, t)
}

// find lists the sampled blocks of a prompt. An engine finds a block only after all before it, so a block needs what those need.
func (m *Forecaster) find(s *slot, chain []uint64) {
	m.found = m.found[:0]
	all := needs{share: 1}
	var asked with // blocks of one prompt were used at the same few times
	for i, key := range chain {
		if !sampled(key, m.shift) {
			continue
		}
		d, ok := s.depth(key)
		m.count(s, key, d, ok)
		one := needs{math.Inf(1), math.Inf(1), 1}
		if ok {
			one = asked.needs(s, key, d)
		}
		if last := m.lastOf(key); one.own >= 1 && last != nil && last != s {
			switch d, ok := last.depth(key); {
			case !ok || last.needs(d) >= one.own:
			case last.needs(d) >= 1:
				one = asked.needs(last, key, d)
			default:
				one.two, one.share = asked.needs(last, key, d).two, s.heldByOthers(key)
			}
		}
		all = needs{max(all.own, one.own), max(all.two, one.two), min(all.share, one.share)}
		m.found = append(m.found, found{i, all})
	}
}

// heldByOthers returns the share of some other slots whose caches have a block.
func (s *slot) heldByOthers(key uint64) (share float64) {
	for _, other := range s.others {
		if d, ok := other.depth(key); ok && other.needs(d) < 1 {
			share += 1 / float64(len(s.others))
		}
	}
	return share
}

// lastOf returns the slot that used a block last; nil: it has left, or none has.
func (m *Forecaster) lastOf(key uint64) *slot {
	if id, known := m.last[key]; known {
		return m.slots[id&^severalBit]
	}
	return nil
}

// with is what another slot has used since a time on average, in sizes of its cache: one of a slot's others.
type with struct {
	of   *slot
	at   tenths
	used float64
}

// needs returns what a slot's block needs that has a depth.
func (w *with) needs(s *slot, key uint64, depth int) needs {
	own := s.needs(depth)
	if len(s.others) == 0 {
		return needs{own, own, 1}
	}
	if at := s.when[s.at[key]]; w.of != s || w.at != at {
		*w = with{of: s, at: at}
		for _, other := range s.others {
			w.used += other.needs(other.since(at)) / float64(len(s.others))
		}
	}
	return needs{own, (own + w.used) / 2, 1}
}

// spread adds the usable blocks of a prompt to a span: the tokens between two sampled blocks count with either one, half and half. Where a
// prompt goes on behind one that has ended, it has that one's answer. Prompts of which no block is sampled are counted with those of their
// length that have one.
func (m *Forecaster) spread(s *slot, span *span, t *told, usable int) {
	if len(m.found) == 0 {
		return
	}
	each := float64(t.Size) / (1 - math.Pow(1-1/float64(int(1)<<m.shift), float64(usable)))
	known := -1
	for known+1 < len(m.found) && !math.IsInf(m.found[known+1].own, 1) {
		known++
	}
	from := 0.0
	for i, f := range m.found {
		to, next := float64(usable), usable
		if i+1 < len(m.found) {
			next = m.found[i+1].at
			to = float64(f.at+next+1) / 2
		}
		if i == known {
			if end := m.answered(s, t.Chain[:usable], f.at, next); end > 0 {
				to = max(from, float64(end))
			}
		}
		if to > from {
			span.add(f.needs, float64(m.blocks), each*(to-from))
			from = to
		}
	}
	span.all += each * (float64(usable) - from)
}

// answered returns where the answer to an earlier prompt ends that ended between two blocks of this one; 0: there was none. The answer's
// blocks have names from now on.
func (m *Forecaster) answered(s *slot, chain []uint64, from, to int) (end int) {
	for i := from; i < to; i++ {
		n := m.ends.get(chain[i])
		if n == 0 {
			continue
		}
		end = min(len(chain), i+1+n)
		m.held -= s.len()
		for j := range n {
			key := alias(chain[i], j)
			if d, ok := s.depth(key); ok {
				m.reused(s, key, d)
				s.drop(key)
			}
		}
		m.held += s.len()
	}
	return end
}

// ended adds what an engine counted, and has the answer's blocks used.
func (m *Forecaster) ended(s *slot, t *told) {
	if t.cached >= 0 {
		span := m.spans.at(t.at)
		span.measured += float64(t.Tokens)
		span.cached += float64(t.cached)
	}
	n := (t.Tokens+max(0, t.output-1))/t.Size - t.Tokens/t.Size // the last token is not stored (vLLM)
	n = min(n, s.size, longestAnswer)
	if n > 0 && t.Whole && len(t.Chain) > 0 {
		end := t.Chain[len(t.Chain)-1]
		m.ends.put(end, n)
		for j := n - 1; j >= 0; j-- {
			if key := alias(end, j); sampled(key, m.shift) {
				m.reuse.all++
				m.useOne(s, key)
			}
		}
	}
	m.use(s, t)
}

// use makes a prompt's blocks the most recently used ones, its first one last: engines free a request's blocks from the end (vLLM 0.32,
// v1/core/kv_cache_manager.py, free).
func (m *Forecaster) use(s *slot, t *told) {
	s.tokens, m.tokens = t.Size, t.Size
	for i := len(t.Chain) - 1; i >= 0; i-- {
		if key := t.Chain[i]; sampled(key, m.shift) {
			by, known := m.last[key]
			if last := m.lastOf(key); last != nil && last != s {
				if d, ok := last.depth(key); ok && last.needs(d) >= 1 {
					last.drop(key)
					m.held--
				}
			}
			if known && by != t.Slot {
				by = t.Slot | severalBit
			} else if !known {
				by = t.Slot
			}
			m.last[key] = by
			m.useOne(s, key)
		}
	}
}

// useOne makes one block the most recently used one. A stack keeps what a cache of reach times the size would hold; if all stacks are
// larger than they may be, every other block is sampled from then on.
func (m *Forecaster) useOne(s *slot, key uint64) {
	before := s.len()
	s.use(key, s.size>>m.shift/freshPart, m.now)
	m.held += s.len() - before
	if most := reach*s.size>>m.shift + 64; s.len() > most+most/8 {
		m.compact(s, s.len()-most)
	}
	for m.held > m.most {
		m.shift++
		for _, s := range m.slots {
			m.compact(s, 0)
		}
		last := make(map[uint64]uint32, len(m.last)) // a map does not give memory back
		maps.Copy(last, m.last)
		m.last = last
	}
}

func (m *Forecaster) compact(s *slot, without int) {
	m.held -= s.len()
	s.compact(without, m.shift, func(key uint64) {
		if m.slots[m.last[key]&^severalBit] == s {
			delete(m.last, key)
		}
	})
	m.held += s.len()
}

// alias is the name of block j of the answer to a prompt that ends with a block.
func alias(end uint64, j int) uint64 {
	h := end ^ uint64(j+1)*0x9E3779B97F4A7C15
	h = (h ^ h>>30) * 0xBF58476D1CE4E5B9
	h = (h ^ h>>27) * 0x94D049BB133111EB
	return h ^ h>>31
}

// ends are the last blocks of prompts, with the number of whole blocks that the answers fill: at least the last maxEnds, at most twice as
// many.
type ends struct{ now, before map[uint64]int32 }

func (e *ends) get(key uint64) int { return int(cmp.Or(e.now[key], e.before[key])) }

func (e *ends) put(key uint64, n int) {
	if len(e.now) >= maxEnds || e.now == nil {
		e.now, e.before = make(map[uint64]int32), e.now
	}
	e.now[key] = int32(n)
}
