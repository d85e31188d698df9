package fleet

import (
	"math"
	"slices"
	"time"
)

// What a slot has to do is known from what it was given and from what it tells:
//
//	booked ─▶ tokens queued ── blocks stored (KV events) ─▶ fewer ── last block stored, or the request ends ─▶ none
//	                        ── between events, and where none come ─▶ fewer, at the rate that the slot has shown
//
// Events come once a scheduler step, after its computation (vLLM 0.30 to 0.32 behind update_from_output, SGLang since 0.5.9
// behind process_batch_result_prefill, TensorRT-LLM's drain behind update_resources), so the last block of a prompt tells the
// end of its prefill, and the time between two events how fast the slot is. TensorRT-LLM's V2 manager tells them a step early:
// there a message tells that the blocks of the one before are computed (Slot.Early). A server's response headers tell neither:
// those of a streamed answer come before the prefill, and those of another one after the last token. docs/choice.md has it all.
const (
	firstRate   = 10000           // tokens a second, taken until events tell
	recently    = time.Minute     // in which booked work loses half its weight in Load.Recent
	believed    = 2 * time.Second // for which a slot whose events come is taken to go on at its rate without one
	mostAsked   = 8               // prefills that are looked up after an event, the oldest: engines prefill in order of arrival
	sampleSize  = 4096            // tokens, at least, of one sample of the rate
	sampleTime  = 5 * time.Second // at most
	longestLoad = 30.             // seconds that loading an adapter is believed to take
	fewFetched  = 1024            // tokens: fetching fewer tells nothing of the rate
	shortest    = 1e-3            // seconds that fetching is believed to take
)

// Load is a slot's state at one moment.
type Load struct {
	Inflight int     // requests: ours, other replicas', and others' where the worker tells
	Others   int     // of them, those that no replica we know has booked
	Theirs   int     // of them, other replicas'
	Backlog  float64 // tokens booked and not yet prefilled
	Context  float64 // prompt tokens of the requests in flight: what decode steps read
	Recent   float64 // tokens booked, each half as heavy after each minute
	Rate     float64 // tokens prefilled a second, as events show; 0: not shown yet
	Usage    float64 // share of the KV cache in use, 0 to 1; 0 where the worker does not tell
	Tells    bool    // it tells its usage
}

// load is what a Slot keeps under its lock.
type load struct {
	inflight int
	theirs   int // of inflight
	fetches  int // of inflight, those that others prefill
	context  float64
	queue    []*hold   // those with tokens to prefill, in the order of booking
	backlog  float64   // the sum of what is left of them, at the time since
	recent   float64   // at the time since
	since    time.Time // of backlog and recent
	unheard  time.Duration
	rate     float64
	shown    bool // rate was
	sample   struct {
		from   time.Time
		tokens float64
		took   time.Duration
	}
	loading float64 // seconds
	loaded  bool    // loading was shown
	fetch   float64 // seconds a token that comes from a lower tier; 0: not known
	fetched bool    // fetch was shown
	told    told
}

// hold is what one booking takes of a slot: a request in flight, and tokens until they are prefilled.
type hold struct {
	slot    *Slot
	tokens  float64
	rest    float64  // of them, what events have not told of
	left    float64  // of them, what is taken to be left; ≤ rest
	locals  []uint64 // blocks by which events tell; nil: none will
	from    int      // of them, held at the decision
	told    int      // of them, held at the message before; of an Early slot only these are computed
	context float64
	answers int // that are decoded at once, each a request to the engine
	at      time.Time
	over    bool
	theirs  bool    // another replica's
	fetched bool    // others prefill it
	fetches float64 // tokens that come from lower tiers or another worker before it is computed
	alone   bool    // nothing was queued before it, and they come from lower tiers
	loads   float64 // of tokens, those that stand for loading an adapter; 0 too where others were before it
}

// Load tells how loaded the slot is.
func (s *Slot) Load(now time.Time) Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain(now)
	l := Load{Inflight: s.inflight, Theirs: s.theirs, Backlog: s.backlog, Context: s.context, Recent: s.recent}
	if k := &s.told; now.Before(k.ends) {
		l.Others, l.Usage, l.Tells = k.others, max(0, k.word.Usage), k.word.Usage >= 0
		l.Inflight += k.others
	}
	if s.shown {
		l.Rate = s.rate
	}
	return l
}

// Expect has the slots drain their queues at so many tokens a second, and fetch so many a second from lower tiers, until events show
// their rates; for a worker that is not in the fleet yet. 0: as ever.
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

// Encoded counts the picture tokens that the slot was given to encode; n more now.
func (s *Slot) Encoded(n int) uint64 { return s.encoded.Add(uint64(n)) }

// hears tells whether the slot's events come as they happen.
func (s *Slot) hears(now time.Time) bool { return s.EventAge != nil && s.EventAge(now) == 0 }

// drain takes off what the slot should have done since it was last looked at, the oldest first. A decision asks every slot, so
// it looks at those holds alone that time has moved on, and at all only when one of them is done.
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

// tidy drops the holds of which nothing is left and nothing will be told, and sums the others up.
func (s *Slot) tidy() {
	s.backlog = 0
	s.queue = slices.DeleteFunc(s.queue, func(h *hold) bool {
		s.backlog += h.left
		return h.left <= 0 && (h.rest <= 0 || h.locals == nil)
	})
}

// half is what is left of recent work after a time.
func half(d time.Duration) float64 { return math.Exp2(-d.Seconds() / recently.Seconds()) }

// book counts a request on the slot, which it has had since a time.
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

// Progress moves the slot's prefills on by what its events have told. held gives how many leading blocks of a prompt the
// slot holds. Call it after each message with stored blocks; it costs at most eight lookups, while prompts are prefilled.
//
// Blocks that a slot fetches are told as those that it computes, and it need not have computed what was booked before. So while it
// decodes what others prefill, a message says what is held, and nothing of the prompts before it or of how fast the slot is. What waits
// for blocks from a lower tier is passed by those behind it, and says nothing of that rate either.
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

// unfinished appends the oldest holds of which events will tell more.
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

// learn takes down that tokens were prefilled since the event before. EWMA of tokens ÷ time, weight 0.1 a sample.
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

// learnLoading takes down what a request of an adapter that was not loaded took to prefill, beyond its tokens' own time: of those before which
// nothing was queued. Where it was loaded after all, that is nothing, so it is what loading is to be expected to take. EWMA, weight 0.2.
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

// learnFetching takes down what a request took beyond its own tokens' time whose prompt had to be fetched from a lower tier: of those
// before which nothing was queued. EWMA, weight 0.3 when faster, 0.02 when slower: waiting for room in a full cache, or for others'
// steps, looks like slowness.
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

// Fetches is how many tokens a second the slot fetches from lower tiers, as configured or as events have shown; 0: not known.
func (s *Slot) Fetches() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fetch == 0 {
		return 0
	}
	return 1 / s.fetch
}

// Loading is how many tokens the slot could prefill while it loads an adapter, as events have shown; 0: they have not.
func (s *Slot) Loading() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loaded {
		return 0
	}
	return max(1, int(s.loading*s.rate))
}

// release gives back the place and the tokens that are left. It must be called once.
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

// undo releases what was never used: another worker got the request.
func (h *hold) undo(now time.Time) {
	h.release(now)
	s := h.slot
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recent = max(0, s.recent-h.tokens*half(now.Sub(h.at)))
}
