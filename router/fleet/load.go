package fleet

import (
	"math"
	"slices"
	"time"
)

// The work queued at a slot is computed from what it was given and what it reports:
//
//	booked ─▶ tokens queued ── blocks stored (KV events) ─▶ fewer ── last block stored, or the request ends ─▶ none
//	                        ── between events, or without any ─▶ fewer, at the slot's measured rate
//
// Events come once a scheduler step, after its computation (vLLM 0.30 to 0.32 after update_from_output, SGLang since 0.5.9 after
// process_batch_result_prefill, TensorRT-LLM's drain after update_resources). So the last block of a prompt marks the end of its
// prefill, and the time between two events gives the rate. TensorRT-LLM's V2 manager sends them a step early: there, a message
// means that the blocks of the previous one are computed (Slot.Early). Response headers give neither: those of a streamed answer
// come before the prefill, others after the last token. See docs/choice.md.
const (
	firstRate   = 10000           // tokens a second, assumed until events show the rate
	recently    = time.Minute     // half-life of booked work in Load.Recent
	believed    = 2 * time.Second // for how long after an event a slot is assumed to go on at its rate, if its events come
	mostAsked   = 8               // oldest prefills that are looked up after an event: engines prefill in order of arrival
	sampleSize  = 4096            // minimum tokens of one sample of the rate
	sampleTime  = 5 * time.Second // maximum duration of one sample
	longestLoad = 30.             // seconds, limit of the measured time to load an adapter
	fewFetched  = 1024            // tokens: fetching fewer does not show the rate
	shortest    = 1e-3            // seconds, lower limit of the measured time to fetch
)

// Load is a slot's state at one moment.
type Load struct {
	Inflight int     // requests: ours, other replicas', and other senders' if the worker reports them
	Others   int     // the part of Inflight that no known replica has booked
	Lost     int     // the part of Others that replicas had booked that are gone
	Theirs   int     // the part of Inflight that other replicas booked
	Backlog  float64 // tokens booked and not yet prefilled
	Context  float64 // prompt tokens of the requests in flight, which each decode step reads
	Recent   float64 // tokens booked, weighted by half for each minute of age
	Rate     float64 // tokens prefilled a second, measured by events; 0: not known yet
	Usage    float64 // share of the KV cache in use, 0 to 1; 0 if the worker does not report it
	Tells    bool    // it reports its usage
}

// Places returns how many places of max_in_flight are taken: other senders' requests count against their own limits.
func (l *Load) Places() int { return l.Inflight - l.Others + l.Lost }

// load is a Slot's state under its lock.
type load struct {
	inflight int
	theirs   int // part of inflight
	fetches  int // the part of inflight that others prefill
	context  float64
	queue    []*hold   // holds with tokens to prefill, in the order of booking
	backlog  float64   // sum of hold.left, at the time since
	recent   float64   // at the time since
	since    time.Time // time of backlog and recent
	unheard  time.Duration
	rate     float64
	shown    bool // rate was measured
	sample   struct {
		from   time.Time
		tokens float64
		took   time.Duration
	}
	loading float64 // seconds
	loaded  bool    // loading was measured
	fetch   float64 // seconds for each token from a lower tier; 0: not known
	fetched bool    // fetch was measured
	told    told
}

// hold is what one booking takes of a slot: requests in flight, and tokens until they are prefilled.
type hold struct {
	slot    *Slot
	tokens  float64
	rest    float64  // tokens that events have not reported yet
	left    float64  // tokens estimated to be left; ≤ rest
	locals  []uint64 // the prompt's blocks, for events; nil: none will come
	from    int      // blocks held at the decision
	told    int      // blocks held at the previous message; of an Early slot only these are computed
	context float64
	answers int // decoded at once, each a request to the engine
	at      time.Time
	over    bool
	theirs  bool    // another replica's
	fetched bool    // others prefill it
	fetches float64 // tokens that come from lower tiers or another worker before it is computed
	alone   bool    // nothing was queued before it, and fetches are from lower tiers only
	loads   float64 // the part of tokens for loading an adapter; 0 if others were queued before it
}

// Load returns the slot's load.
func (s *Slot) Load(now time.Time) Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain(now)
	l := Load{Inflight: s.inflight, Theirs: s.theirs, Backlog: s.backlog, Context: s.context, Recent: s.recent}
	if k := &s.told; now.Before(k.ends) {
		l.Others, l.Usage, l.Tells = k.others, max(0, k.word.Usage), k.word.Usage >= 0
		l.Inflight += k.others
		if now.Before(k.lostEnds) {
			l.Lost = k.lost
		}
	}
	if s.shown {
		l.Rate = s.rate
	}
	return l
}

// Expect sets the rates in tokens a second at which the slots prefill and fetch from lower tiers until events show them. It is
// for a worker that is not in the fleet yet. 0: keep the default.
func (w *Worker) Expect(rate, fetch int) {
	for _, s := range w.Slots {
		if rate > 0 {
			s.rate = float64(rate)
		}
		if fetch > 0 {
			s.fetch = 1 / float64(fetch)
		}
	}
}

// Encoded adds n picture tokens given to the slot to encode, and returns the total.
func (s *Slot) Encoded(n int) uint64 { return s.encoded.Add(uint64(n)) }

// hears reports whether the slot's events arrive as they happen.
func (s *Slot) hears(now time.Time) bool { return s.EventAge != nil && s.EventAge(now) == 0 }

// drain subtracts what the slot should have done since the last call, oldest first. Every decision calls it for every slot, so it
// touches only holds that progressed, and tidies only if one of them is done.
func (s *Slot) drain(now time.Time) {
	d := now.Sub(s.since)
	if d <= 0 {
		return
	}
	s.since = now
	s.recent *= half(d)
	if s.backlog == 0 {
		return
	}
	if s.hears(now) {
		d = min(d, believed-s.unheard)
		s.unheard += d
	}
	done, ended := s.rate*d.Seconds(), false
	for _, h := range s.queue {
		if done <= 0 {
			break
		}
		if n := min(h.left, done); n > 0 {
			h.left, done, s.backlog = h.left-n, done-n, max(0, s.backlog-n)
			ended = ended || h.left == 0
		}
	}
	if ended {
		s.tidy()
	}
}

// tidy drops the holds that are done and expect no more events, and sums up the others.
func (s *Slot) tidy() {
	s.backlog = 0
	s.queue = slices.DeleteFunc(s.queue, func(h *hold) bool {
		s.backlog += h.left
		return h.left <= 0 && (h.rest <= 0 || h.locals == nil)
	})
}

// half returns the share of recent work that remains after a time.
func half(d time.Duration) float64 { return math.Exp2(-d.Seconds() / recently.Seconds()) }

// book charges a request to the slot, which has had it since the given time.
func (s *Slot) book(b *Booking, now, since time.Time) *hold { return s.hold(b, now, since, false) }

func (s *Slot) hold(b *Booking, now, since time.Time, theirs bool) *hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain(now)
	h := &hold{slot: s, theirs: theirs, fetched: b.fetched, fetches: float64(b.Fetch + b.Pull), tokens: float64(b.Tokens), rest: float64(b.Tokens), left: float64(b.Tokens), from: b.From, told: b.From, context: float64(b.Context), answers: max(1, b.Answers), at: now}
	if b.From < len(b.Locals) && s.hears(now) {
		h.locals = b.Locals
	}
	if s.backlog == 0 {
		s.unheard, h.loads, h.alone = 0, float64(b.Load), b.Pull == 0
	}
	if !slices.ContainsFunc(s.queue, func(h *hold) bool { return h.locals != nil }) {
		s.sample.from = since
	}
	if s.inflight += h.answers; theirs {
		s.theirs += h.answers
	}
	if h.fetched {
		s.fetches++
	}
	s.told.most[0] = max(s.told.most[0], s.inflight)
	s.context += h.context
	s.recent += h.left
	if h.left > 0 {
		s.queue = append(s.queue, h)
		s.backlog += h.left
	}
	return h
}

// Progress updates the slot's prefills from its events. held returns how many leading blocks of a prompt the slot holds. Call it
// after each message with stored blocks; it costs at most eight lookups, and none unless prompts are being prefilled.
//
// Events report blocks that a slot fetches like those that it computes, and fetching can overtake earlier requests. So while a
// slot decodes what others prefill, a message shows what is held, but neither that earlier prompts are done nor the rate. A
// prompt that waits for blocks from a lower tier is overtaken by later ones, and does not show the rate either.
func (s *Slot) Progress(held func(locals []uint64) int, now time.Time) {
	var list [mostAsked]*hold
	asked := s.unfinished(list[:0])
	if len(asked) == 0 {
		return
	}
	var blocks [mostAsked]int
	for i, h := range asked {
		blocks[i] = held(h.locals)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain(now)
	done, last, fetches := 0.0, 0, s.fetches > 0
	for i, h := range asked {
		if h.over {
			continue
		}
		fetches = fetches || h.fetches > 0
		computed := min(blocks[i], len(h.locals))
		if s.Early {
			computed, h.told = h.told, computed
		}
		missing := float64(len(h.locals)-computed) / float64(len(h.locals)-h.from)
		if rest := min(h.rest, h.tokens*missing); rest < h.rest {
			done += h.rest - rest
			h.rest = rest
		}
		if h.rest == 0 {
			last = i
			s.learnFetching(h, now)
			s.learnLoading(h, now)
		}
	}
	if s.fetches > 0 {
		last = 0
	}
	for _, h := range asked[:last] { // an event of theirs was lost
		if h.fetches == 0 {
			h.rest = 0
		}
	}
	if done == 0 {
		return
	}
	if !fetches {
		s.learn(done, now)
	}
	s.sample.from = now
	s.unheard = 0
	for _, h := range s.queue {
		if h.locals != nil {
			h.left = h.rest
		}
	}
	s.tidy()
}

// unfinished appends the oldest holds on which events will report more.
func (s *Slot) unfinished(list []*hold) []*hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.queue {
		if h.locals != nil && h.rest > 0 {
			if list = append(list, h); len(list) == cap(list) {
				break
			}
		}
	}
	return list
}

// learn records tokens prefilled since the previous event. The rate is an EWMA of tokens ÷ time, weight 0.1 for each sample.
func (s *Slot) learn(tokens float64, now time.Time) {
	p := &s.sample
	p.tokens += tokens
	p.took += now.Sub(p.from)
	p.from = now
	if p.tokens < sampleSize && p.took < sampleTime || p.took <= 0 {
		return
	}
	seen := p.tokens / p.took.Seconds()
	p.tokens, p.took = 0, 0
	if !s.shown {
		s.rate, s.shown = seen, true
		return
	}
	s.rate += 0.1 * (seen - s.rate)
}

// learnLoading records the time that a request took to prefill beyond its tokens' own time, if its adapter was assumed not to be
// loaded and nothing was queued before it. Cases in which the adapter was loaded after all count too, so the result is the
// expected cost of loading. EWMA, weight 0.2.
func (s *Slot) learnLoading(h *hold, now time.Time) {
	if h.loads == 0 || !s.shown {
		return
	}
	took := min(max(0, now.Sub(h.at).Seconds()-(h.tokens-h.loads)/s.rate), longestLoad)
	if h.loads = 0; !s.loaded {
		s.loading, s.loaded = took, true
		return
	}
	s.loading += 0.2 * (took - s.loading)
}

// learnFetching records the time that a request took beyond its tokens' own time, if its prompt had to be fetched from a lower
// tier and nothing was queued before it. EWMA, weight 0.3 when faster, 0.02 when slower: waiting for room in a full cache, or for
// others' steps, looks like slowness.
func (s *Slot) learnFetching(h *hold, now time.Time) {
	if h.fetches < fewFetched || !h.alone || h.loads > 0 || !s.shown {
		return
	}
	each := max(shortest, now.Sub(h.at).Seconds()-h.tokens/s.rate) / h.fetches
	if !s.fetched {
		s.fetch, s.fetched = each, true
		return
	}
	weight := 0.02
	if each < s.fetch {
		weight = 0.3
	}
	s.fetch += weight * (each - s.fetch)
}

// Fetches returns how many tokens a second the slot fetches from lower tiers, as configured or measured; 0: not known.
func (s *Slot) Fetches() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fetch == 0 {
		return 0
	}
	return 1 / s.fetch
}

// Loading returns how many tokens the slot could prefill while it loads an adapter, as measured; 0: not known.
func (s *Slot) Loading() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loaded {
		return 0
	}
	return max(1, int(s.loading*s.rate))
}

// release returns the place and the remaining tokens. It must be called once.
func (h *hold) release(now time.Time) {
	s := h.slot
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain(now)
	h.over, h.left, h.rest = true, 0, 0
	if s.inflight -= h.answers; h.theirs {
		s.theirs -= h.answers
	}
	if h.fetched {
		s.fetches--
	}
	s.context -= h.context
	s.unheard = 0
	s.tidy()
}

// undo releases a hold that was never used because another worker got the request.
func (h *hold) undo(now time.Time) {
	h.release(now)
	s := h.slot
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recent = max(0, s.recent-h.tokens*half(now.Sub(h.at)))
}
