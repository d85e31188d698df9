package fleet

import (
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// The work queued at a slot is computed from what it was given and what it reports:
//
//	booked ─▶ tokens queued ── blocks stored (KV events) ─▶ fewer ── last block stored, or the request ends ─▶ none
//	                        ── between events, without any, or after a lost one ─▶ fewer, at the slot's measured rate
//
// Events come once a scheduler step, after its computation (vLLM 0.30 to 0.32 after update_from_output, SGLang since 0.5.9 after
// process_batch_result_prefill, TensorRT-LLM's drain after update_resources). So the last block of a prompt marks the end of its
// prefill, and the time between two events gives the rate. TensorRT-LLM's V2 manager sends them a step early: there, a message
// means that the blocks of the previous one are computed (Slot.EarlyEvents). Response headers give neither: those of a streamed answer
// come before the prefill, others after the last token. See docs/choice.md.
const (
	defaultRate    = 10000           // tokens a second, assumed until events show the rate
	recentHalfLife = time.Minute     // half-life of booked work in Load.Recent
	trustPeriod    = 2 * time.Second // for how long after an event a slot is assumed to go on at its rate, if its events come
	maxLookups     = 8               // prefills that are looked up after an event, those that should be next
	minRateTokens  = 4096            // tokens prefilled from which a model's rate is known
	maxAdapterLoad = 30.             // seconds, limit of the measured time to load an adapter
	minFetched     = 1024            // tokens: fetching fewer does not show the rate
	minFetchTime   = 1e-3            // seconds, lower limit of the measured time to fetch
)

// Load is a slot's state at one moment.
type Load struct {
	Inflight      int     // requests: ours, other replicas', and other senders' if the worker reports them
	OtherSenders  int     // the part of Inflight that no known replica has booked
	Lost          int     // the part of OtherSenders that replicas had booked that are gone
	OtherReplicas int     // the part of Inflight that other replicas booked
	Backlog       float64 // tokens booked and not yet prefilled
	Context       float64 // prompt tokens of the requests in flight, which each decode step reads
	Recent        float64 // tokens booked, weighted by half for each minute of age
	Rate          float64 // tokens prefilled a second, measured by events; 0: not known yet
	Room          float64 // prompt tokens of further requests until its KV cache is full; +Inf: not known, or much
}

// Waits returns how many of a prompt's tokens have no room in the KV cache until others end, about as many tokens of work later.
func (l *Load) Waits(tokens int) float64 { return min(float64(tokens), max(0, float64(tokens)-l.Room)) }

// Places returns how many places of max_in_flight are taken: other senders' requests count against their own limits.
func (l *Load) Places() int { return l.Inflight - l.OtherSenders + l.Lost }

// load is a Slot's state under its lock.
type load struct {
	inflight           int
	replicaRequests    int // part of inflight
	prefilledElsewhere int // the part of inflight that others prefill
	context            float64
	queue              []*Charge // those with tokens to prefill, in the order in which the slot should serve them
	backlog            float64   // sum of Charge.remaining, at the time since
	recent             float64   // at the time since
	since              time.Time // time of backlog and recent
	unheard            time.Duration
	expectedRate       float64   // until the model's is measured
	stepBegan          time.Time // at the latest event, or when the first prompt was sent after it
	slowness           slowness
	adapterLoadTime    float64 // seconds
	loadMeasured       bool    // loading was measured
	fetchPerToken      float64 // seconds for each token from a lower tier; 0: not known
	fetchMeasured      bool    // fetch was measured
	report             reportState
	order              order
}

// Work is what a request asks of a slot.
type Work struct {
	Tokens             int      // to prefill there, with images to encode
	AdapterLoad        int      // the part of Tokens that stands for loading an adapter
	Fetch              int      // further tokens that it fetches from its own lower tiers
	Pull               int      // further tokens that it fetches from another worker
	Media              bool     // it downloads media before it begins: how long that takes says nothing of the slot
	Context            int      // tokens of the prompt, once for each answer
	Answers            int      // decoded at once (n); 0: one
	Locals             []uint64 // the prompt's blocks, by which events report its prefill; nil: they cannot
	From               int      // how many of Locals are held or predicted already
	Seen               *Seen    // without Locals: what events show of its prompt; nil: nothing does
	PrefilledElsewhere bool     // it is only decoded there
	OfReplica          bool     // another replica has booked it
	Due                int64    // when it is due; 0: its engine takes no order
}

// Seen is what events have shown of a prompt whose blocks are not known beforehand. A nil Seen does nothing.
type Seen struct {
	Blocks int          // of the prompt, about
	Others bool         // another sender's request may have got its events: these lower what is left of it, and never raise it
	stored atomic.Int64 // how many the slot has stored, with those that it held; less than 0: it cannot be told
}

// Store records how many of the prompt's blocks the slot has stored or held; less than 0 if that cannot be told.
func (s *Seen) Store(blocks int) {
	if s != nil {
		s.stored.Store(int64(blocks))
	}
}

// Lose says that the prompt's events cannot be told from others any more.
func (s *Seen) Lose() { s.Store(-1) }

// Charge is what one request takes of a slot: places in flight, and tokens until they are prefilled.
type Charge struct {
	slot               *Slot
	tokens             float64
	unreported         float64  // tokens that events have not reported yet
	remaining          float64  // tokens estimated to be left; ≤ rest
	locals             []uint64 // the prompt's blocks, for events; nil: they are not known
	seen               *Seen    // without locals; nil: no events will come
	blocks             int      // of the prompt
	from               int      // blocks held at the decision
	lastHeld           int      // blocks held at the previous message; of an EarlyEvents slot only these are computed
	context            float64
	answers            int // decoded at once, each a request to the engine
	at                 time.Time
	due                int64     // see Work
	began              time.Time // the step in which it was first computed; zero: it waits
	released           bool
	ofReplica          bool    // another replica's
	prefilledElsewhere bool    // others prefill it
	media              bool    // see Work
	fetches            float64 // tokens that come from lower tiers or another worker before it is computed
	unqueued           bool    // nothing was queued before it, and fetches are from lower tiers only
	adapterTokens      float64 // the part of tokens for loading an adapter; 0 if others were queued before it
}

// Load returns the slot's load.
func (s *Slot) Load(now time.Time) Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain(now)
	l := Load{Inflight: s.inflight, OtherReplicas: s.replicaRequests, Backlog: s.backlog, Context: s.context, Recent: s.recent,
		Room: math.Inf(1)}
	if k := &s.report; now.Before(k.ends) {
		l.OtherSenders = k.otherRequests
		l.Inflight += k.otherRequests
		if now.Before(k.lostEnds) {
			l.Lost = k.lost
		}
		if k.capacity > 0 {
			l.Room = k.capacity - s.context
		}
	}
	if rate, measured := s.rate(now); measured {
		l.Rate = rate
	}
	return l
}

// rate returns the tokens that the slot prefills a second, and whether it was measured.
func (s *Slot) rate(now time.Time) (rate float64, measured bool) {
	if rate := s.Worker.pace.Load().rate(); rate > 0 {
		return rate / s.slowness.factor(s.inflight == 0, now), true
	}
	return s.expectedRate, false
}

// SetFetchRate sets the rate in tokens a second at which the slots fetch from lower tiers until events show it, for tests and
// simulations. It is for a worker that is not in the fleet yet. 0: not known.
func (w *Worker) SetFetchRate(rate int) {
	for _, s := range w.Slots {
		if rate > 0 {
			s.fetchPerToken = 1 / float64(rate)
		}
	}
}

// AddEncoded adds n image tokens given to the slot to encode, and returns the total.
func (s *Slot) AddEncoded(n int) uint64 { return s.encoded.Add(uint64(n)) }

// eventsLive reports whether the slot's events arrive as they happen.
func (s *Slot) eventsLive(now time.Time) bool { return s.EventAge != nil && s.EventAge(now) == 0 }

// drain subtracts what the slot should have done since the last call, oldest first. Every decision calls it for every slot, so it
// touches only charges that progressed, and tidies only if one of them is done.
func (s *Slot) drain(now time.Time) {
	d := now.Sub(s.since)
	if d <= 0 {
		return
	}
	s.since = now
	s.recent *= decay(d)
	if s.backlog == 0 {
		return
	}
	if s.eventsLive(now) {
		d = min(d, trustPeriod-s.unheard)
		s.unheard += d
	}
	rate, _ := s.rate(now)
	done, ended := rate*d.Seconds(), false
	for _, h := range s.queue {
		if done <= 0 {
			break
		}
		if n := min(h.remaining, done); n > 0 {
			h.remaining, done, s.backlog = h.remaining-n, done-n, max(0, s.backlog-n)
			ended = ended || h.remaining == 0
		}
	}
	if ended {
		s.dropFinished()
	}
}

// dropFinished drops the charges that are done and expect no more events, and sums up the others.
func (s *Slot) dropFinished() {
	s.backlog = 0
	s.queue = slices.DeleteFunc(s.queue, func(h *Charge) bool {
		s.backlog += h.remaining
		return h.remaining <= 0 && (h.unreported <= 0 || !h.reported())
	})
}

// reported reports whether events show the charge's progress.
func (h *Charge) reported() bool { return h.locals != nil || h.seen != nil }

// decay returns the share of recent work that remains after a time.
func decay(d time.Duration) float64 { return math.Exp2(-d.Seconds() / recentHalfLife.Seconds()) }

// Charge charges a request to the slot, which has had it since the given time.
func (s *Slot) Charge(b Work, now, since time.Time) *Charge {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain(now)
	tokens := float64(b.Tokens)
	h := &Charge{slot: s, ofReplica: b.OfReplica, prefilledElsewhere: b.PrefilledElsewhere, fetches: float64(b.Fetch + b.Pull), media: b.Media,
		tokens: tokens, unreported: tokens, remaining: tokens, from: b.From, lastHeld: b.From, context: float64(b.Context),
		answers: max(1, b.Answers), at: now, due: b.Due}
	if b.From < len(b.Locals) && s.eventsLive(now) {
		h.locals, h.blocks = b.Locals, len(b.Locals)
	} else if b.Seen != nil && b.From < b.Seen.Blocks && s.eventsLive(now) {
		h.seen, h.blocks = b.Seen, b.Seen.Blocks
	}
	if s.backlog == 0 {
		s.unheard, h.adapterTokens, h.unqueued = 0, float64(b.AdapterLoad), b.Pull == 0
	}
	if !slices.ContainsFunc(s.queue, (*Charge).reported) {
		s.stepBegan = since
	}
	s.inflight += h.answers
	if b.OfReplica {
		s.replicaRequests += h.answers
	}
	if h.prefilledElsewhere {
		s.prefilledElsewhere++
	}
	s.report.maxBooked[0] = max(s.report.maxBooked[0], s.inflight)
	s.context += h.context
	s.recent += h.remaining
	if h.remaining > 0 {
		s.enqueue(h)
		s.backlog += h.remaining
	}
	return h
}

// enqueue puts a charge where the slot will serve it: before those that wait and are due later, if it serves so.
func (s *Slot) enqueue(h *Charge) {
	s.queue = append(s.queue, h)
	if !s.ordered() {
		return
	}
	for i := len(s.queue) - 1; i > 0; i-- {
		before := s.queue[i-1]
		if before.due <= h.due || before.remaining < before.tokens {
			break
		}
		s.queue[i-1], s.queue[i] = h, before
	}
}

// Progress updates the slot's prefills from its events. held returns how many leading blocks of a prompt the slot holds. Call it
// after each message with stored blocks; it costs at most eight lookups, and none unless prompts are being prefilled.
//
// Events report blocks that a slot fetches like those that it computes, and fetching can overtake earlier requests. So while a
// slot decodes what others prefill, a message shows what is held, but neither that earlier prompts are done nor the rate. A
// prompt that waits for blocks from a lower tier is overtaken by later ones, and does not show the rate either.
func (s *Slot) Progress(held func(locals []uint64) int, now time.Time) {
	var list [maxLookups]*Charge
	asked := s.unfinished(list[:0], now)
	if len(asked) == 0 {
		return
	}
	var blocks [maxLookups]int
	for i, h := range asked {
		if h.seen != nil {
			blocks[i] = int(h.seen.stored.Load())
		} else {
			blocks[i] = held(h.locals)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain(now)
	done, before, last, began, fetches := 0.0, 0.0, 0, 0, s.prefilledElsewhere > 0
	for i, h := range asked {
		if h.released {
			continue
		}
		fetches = fetches || h.fetches > 0 || h.media
		if blocks[i] < 0 {
			h.seen = nil
			continue
		}
		computed := min(blocks[i], h.blocks)
		if s.EarlyEvents {
			computed, h.lastHeld = h.lastHeld, computed
		}
		missing := float64(h.blocks-computed) / float64(h.blocks-h.from)
		if rest := min(h.unreported, h.tokens*missing); rest < h.unreported {
			if h.began.IsZero() {
				h.began = s.stepBegan
				if h.at.After(h.began) {
					h.began = h.at
				}
				s.order.see(h, asked)
			}
			done += h.unreported - rest
			before += (h.unreported - rest) * max(0, h.context/float64(h.answers)-(h.unreported+rest)/2)
			h.unreported, began = rest, i
		}
		if h.unreported == 0 {
			last = i
			s.learnFetching(h, now)
			s.learnLoading(h, now)
		}
	}
	if s.prefilledElsewhere > 0 {
		last, began = 0, 0
	}
	for _, h := range asked[:began] { // one after it has begun, so that its length was less than estimated
		if h.seen != nil && s.before(h, asked[began]) {
			h.unreported = 0
		}
	}
	for _, h := range asked[:last] { // an event of theirs was lost: they had come when one after them began
		if s.before(h, asked[last]) {
			h.unreported = 0
		}
	}
	took := now.Sub(s.stepBegan).Seconds()
	s.stepBegan = now
	if !fetches && took > 0 && done >= 1 {
		work := done + attention*before + decodeTokens*float64(s.inflight) + ContextTokens*s.context
		s.slowness.add(s.Worker.pace.Load().compare(done, work, took), done, took, now)
	}
	s.unheard = 0
	for _, h := range s.queue {
		switch {
		case h.seen != nil && h.seen.Others: // its events may have been taken for another's, and then none will come
			h.remaining = min(h.remaining, h.unreported)
		case h.reported(): // where a step has computed none of them, less was done than assumed: the KV cache may be full
			h.remaining = h.unreported
		}
	}
	s.dropFinished()
}

// EventsLost says that messages were lost for good. What they reported of the prompts in the queue is not known, so these drain at the
// slot's rate. Call it between calls of Progress.
func (s *Slot) EventsLost(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain(now)
	for _, h := range s.queue {
		h.locals, h.seen = nil, nil
	}
	s.dropFinished()
}

// unfinished appends the oldest charges on which events will report more. If there are none, the next step begins now.
func (s *Slot) unfinished(list []*Charge, now time.Time) []*Charge {
	s.mu.Lock()
	defer s.mu.Unlock()
	drained := 0
	for _, h := range s.queue {
		if !h.reported() || h.unreported <= 0 {
			continue
		}
		if h.seen != nil && h.seen.Others && h.remaining <= 0 { // its events may never come: others get the rest of the places
			drained++
			if drained > maxLookups/2 {
				continue
			}
		}
		list = append(list, h)
		if len(list) == cap(list) {
			break
		}
	}
	if len(list) == 0 {
		s.stepBegan, s.unheard = now, 0
	}
	return list
}

// learnLoading records the time that a request took to prefill beyond its tokens' own time, if its adapter was assumed not to be
// loaded and nothing was queued before it. Cases in which the adapter was loaded after all count too, so the result is the
// expected cost of loading. EWMA, weight 0.2.
func (s *Slot) learnLoading(h *Charge, now time.Time) {
	rate, measured := s.rate(now)
	if h.adapterTokens == 0 || !measured {
		return
	}
	took := min(max(0, now.Sub(h.at).Seconds()-(h.tokens-h.adapterTokens)/rate), maxAdapterLoad)
	h.adapterTokens = 0
	if !s.loadMeasured {
		s.adapterLoadTime, s.loadMeasured = took, true
		return
	}
	s.adapterLoadTime += 0.2 * (took - s.adapterLoadTime)
}

// learnFetching records the time that a request took beyond its tokens' own time, if its prompt had to be fetched from a lower
// tier and nothing was queued before it. EWMA, weight 0.3 when faster, 0.02 when slower: waiting for room in a full cache, or for
// others' steps, looks like slowness.
func (s *Slot) learnFetching(h *Charge, now time.Time) {
	rate, measured := s.rate(now)
	if h.fetches < minFetched || !h.unqueued || h.adapterTokens > 0 || !measured {
		return
	}
	each := max(minFetchTime, now.Sub(h.at).Seconds()-h.tokens/rate) / h.fetches
	if !s.fetchMeasured {
		s.fetchPerToken, s.fetchMeasured = each, true
		return
	}
	weight := 0.02
	if each < s.fetchPerToken {
		weight = 0.3
	}
	s.fetchPerToken += weight * (each - s.fetchPerToken)
}

// FetchRate returns how many tokens a second the slot fetches from lower tiers, as configured or measured; 0: not known.
func (s *Slot) FetchRate() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fetchPerToken == 0 {
		return 0
	}
	return 1 / s.fetchPerToken
}

// AdapterLoadTokens returns how many tokens the slot could prefill while it loads an adapter, as measured; 0: not known.
func (s *Slot) AdapterLoadTokens() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loadMeasured {
		return 0
	}
	rate, _ := s.rate(s.since)
	return max(1, int(s.adapterLoadTime*rate))
}

// Release returns the places and the remaining tokens. It must be called once. waited: see Charge.waited.
func (h *Charge) Release(now time.Time) (waited time.Duration) {
	s := h.slot
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain(now)
	h.released, h.remaining, h.unreported = true, 0, 0
	s.inflight -= h.answers
	if h.ofReplica {
		s.replicaRequests -= h.answers
	}
	if h.prefilledElsewhere {
		s.prefilledElsewhere--
	}
	s.context -= h.context
	s.unheard = 0
	s.dropFinished()
	return h.waited()
}

// waited returns how long the request waited until the step in which it was first computed, at least 1 µs; 0: events have not shown that.
func (h *Charge) waited() time.Duration {
	if h.began.IsZero() {
		return 0
	}
	return max(time.Microsecond, h.began.Sub(h.at))
}

// Undo releases a charge that was never used because another worker got the request.
func (h *Charge) Undo(now time.Time) {
	h.Release(now)
	s := h.slot
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recent = max(0, s.recent-h.tokens*decay(now.Sub(h.at)))
}

// Remaining returns the tokens that are left to prefill.
func (h *Charge) Remaining(now time.Time) int {
	h.slot.mu.Lock()
	defer h.slot.mu.Unlock()
	h.slot.drain(now)
	return int(h.remaining)
}

// Queued returns the tokens that are left to prefill at the slot for requests of this replica.
func (s *Slot) Queued(now time.Time) (tokens float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain(now)
	for _, h := range s.queue {
		if !h.ofReplica {
			tokens += h.remaining
		}
	}
	return tokens
}
