package fleetsim

import (
	"math/bits"
	"math/rand/v2"
	"time"
)

// Delays say how late the router learns of what happens.
type Delays struct {
	Event, Report, Scrape time.Duration // Scrape: the period
	// Prepare is the mean time, exponentially distributed, until a request is in its engine's queue, and as much again for each image:
	// tokenizers and image processors run side by side, so requests overtake each other.
	Prepare time.Duration
}

func defaultDelays() Delays {
	return Delays{Event: 2 * time.Millisecond, Report: 20 * time.Millisecond, Scrape: 200 * time.Millisecond}
}

// Setup is one fleet under one load.
type Setup struct {
	Workers   int
	Prefill   int // the first ones of Workers prefill for the others and serve nobody else
	Engine    Engine
	Speeds    []float64 // by worker; missing: 1
	Failing   int       // this many workers answer 503 at once
	Delays    Delays
	ByDue     bool    // engines serve waiting requests as the router says, not as they come
	Replicas  int     // routers that take requests in turn, each with its own view; 0: 1
	Sharing   Sharing // between replicas of this repository's router
	Lossy     float64 // share of event messages that are lost
	NoEvents  bool
	ScrapedTo time.Duration // from then on scraping fails for all workers; 0: it never does
	NoReports bool          // this repository's router gets nothing from Envoy; other routers are proxies and see ends themselves
	JoinAt    time.Duration
	Joining   int           // the last ones of Workers join at JoinAt
	Leave     []departure   // workers that leave, in the order of their times
	Stock     *stock        // is taken at its time; nil: none
	Stop      time.Duration // then the run ends; 0: when all is served
	Seed      uint64
	Lower     []float64 // seconds per token from the lower tier, by worker; missing: Engine.Fetch

	Encoders                  int           // workers that encode for the others, under this repository's router
	EncoderGoes, EncoderComes time.Duration // the last encoder is away between these; 0: never
	Naming                    naming        // who encodes an image; nil: the router's choice

	PredictedTTL time.Duration // of this repository's router; 0: 10 s
}

// Picker chooses a worker. A Picker sees only what a router of its kind sees.
type Picker interface {
	// Pick returns the worker for a request. It may keep what it books in r.booked, and sets r.first to a separate prefill worker.
	Pick(v *View, r *run) int
	// Began is called when the first token of a streamed answer has come (a proxy sees it, Envoy's log does not).
	Began(v *View, r *run)
	// Ended is called when the request is over. failed: with 503, at once.
	Ended(v *View, r *run, failed bool)
}

// listener is a Picker that follows events itself, and keeps its own index.
type listener interface {
	Heard(v *View, worker int, out []change)
	// Lost is called when a message shows by its number that an earlier one of the worker was lost.
	Lost(v *View, worker int)
}

// View is what one router knows: blocks by events, load as booked and scraped.
type View struct {
	Now   time.Duration
	Size  int // tokens a block
	Loads []Load
	Alive []int // workers to choose among
	First []int // those that prefill for them
	held  holders
	rand  *rand.Rand
	sim   *sim

	overlap []int  // by worker
	lost    []bool // by worker: the message before the next was lost
}

// Load is what a router knows of a worker's load.
type Load struct {
	Inflight int     // requests given that have not ended
	Prefill  int     // uncached tokens of requests whose first token has not come
	Tokens   int     // prompt tokens of requests in flight
	Context  int     // prompt tokens of requests in flight and what they have generated, as far as known
	Waiting  int     // scraped
	Usage    float64 // scraped: share of the KV cache in use
}

// Overlap returns the leading tokens of a request that each worker holds, by events; valid until the next call.
func (v *View) Overlap(r *run) []int { return v.lookUp(r, &v.held) }

// lookUp is Overlap for the union of some holders.
func (v *View) lookUp(r *run, of ...*holders) []int {
	match(r.blocks[:(r.input-1)/v.Size], v.overlap, of)
	for w := range v.overlap {
		v.overlap[w] *= v.Size
	}
	return v.overlap
}

// holders records which workers hold each block, as a bit set per block.
type holders struct {
	words int // per set
	bits  []uint64
}

func newHolders(workers, blocks int) holders {
	words := (workers + 63) / 64
	return holders{words: words, bits: make([]uint64, words*blocks)}
}

func (h *holders) set(block int32, worker int, holds bool) {
	word, bit := &h.bits[int(block)*h.words+worker/64], uint64(1)<<(worker%64)
	*word &^= bit
	if holds {
		*word |= bit
	}
}

// match returns how many leading blocks of a prompt each worker holds.
func match(prompt []int32, leading []int, of []*holders) {
	for i := range leading {
		leading[i] = len(prompt)
	}
	for word := range of[0].words {
		left := ^uint64(0)
		if rest := len(leading) - word*64; rest < 64 {
			left = 1<<rest - 1
		}
		for n := 0; n < len(prompt) && left != 0; n++ {
			held := uint64(0)
			for _, h := range of {
				held |= h.bits[int(prompt[n])*h.words+word]
			}
			for gone := left &^ held; gone != 0; gone &= gone - 1 {
				leading[word*64+bits.TrailingZeros64(gone)] = n
			}
			left &= held
		}
	}
}

type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

// events is a heap by time.
type events []event

func (q *events) push(e event) {
	*q = append(*q, e)
	h := *q
	for i := len(h) - 1; i > 0 && h[i].before(&h[(i-1)/2]); i = (i - 1) / 2 {
		h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
	}
}

func (q *events) pop() event {
	h := *q
	next, last := h[0], len(h)-1
	h[0], h[last] = h[last], event{}
	h, *q = h[:last], h[:last]
	for i := 0; 2*i+1 < last; {
		child := 2*i + 1
		if child+1 < last && h[child+1].before(&h[child]) {
			child++
		}
		if !h[child].before(&h[i]) {
			break
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
	return next
}

type sim struct {
	setup   Setup
	trace   *Trace
	now     time.Duration
	seq     uint64
	queue   events
	workers []*worker
	views   []*View
	pickers []Picker
	next    map[*Request][]*Request
	result  *Result
	left    int
	rand    *rand.Rand
	turn    int
	seen    []bool // blocks ever computed by any worker: an infinite cache
	lost    *lost  // what workers that left have taken along
}

// Served is the outcome of one request.
type Served struct {
	Req       *Request
	Worker    int
	First     int // the worker that prefilled it; -1: Worker
	At        time.Duration
	TTFT, E2E time.Duration
	Cached    int // tokens found
	Possible  int // tokens that an infinite cache shared by all workers would have found
	Lost      int // tokens that another worker held at the decision and the chosen one did not
	Failed    bool
}

// Result is the outcome of a run.
type Result struct {
	Served []Served
	Took   time.Duration // virtual
	Work   []float64     // seconds by worker
	Tokens []int         // prefilled, by worker
	Loads  int           // of adapters
	Again  int           // tokens computed again that workers that left had alone
	setup  Setup
	trace  *Trace
}

// Run replays a trace under a picker. It calls picker once for each replica's view.
func Run(setup Setup, trace *Trace, picker func(*View) Picker) *Result {
	n := len(trace.Requests)
	s := &sim{setup: setup, trace: trace, next: make(map[*Request][]*Request), result: &Result{Served: make([]Served, 0, n),
		setup: setup, trace: trace}, left: n,
		rand: rand.New(rand.NewPCG(setup.Seed, 1)), seen: make([]bool, len(trace.chain))}
	for i := range setup.Workers {
		w := &worker{Engine: setup.Engine, id: i, speed: 1, cache: newBlocks(setup.Engine.Blocks),
			encoder: newRecent(setup.Engine.Encoder), adapters: newRecent(setup.Engine.Adapters)}
		if i < len(setup.Speeds) {
			w.speed = setup.Speeds[i]
		}
		if i < setup.Failing {
			w.fails = refusing
		}
		w.lower, w.hybrid = newLower(&setup, i), newHybrid(&setup.Engine, w)
		s.workers = append(s.workers, w)
	}
	for i := range max(1, setup.Replicas) {
		v := &View{Size: setup.Engine.BlockSize, held: newHolders(setup.Workers, len(trace.chain)), Loads: make([]Load, setup.Workers),
			overlap: make([]int, setup.Workers), lost: make([]bool, setup.Workers), rand: rand.New(rand.NewPCG(setup.Seed, uint64(i)+2)), sim: s}
		for w := range setup.Prefill {
			v.First = append(v.First, w)
		}
		v.join(setup.Prefill, setup.Workers-setup.Joining)
		s.views = append(s.views, v)
		s.pickers = append(s.pickers, picker(v))
	}
	if setup.Joining > 0 {
		s.after(setup.JoinAt, s.join)
	}
	for _, d := range setup.Leave {
		s.after(d.at, func() { s.leave(d) })
	}
	if o := setup.Stock; o != nil {
		s.after(o.at, func() { s.takeStock(o) })
	}
	for _, r := range trace.Requests {
		if r.Prev != nil {
			s.next[r.Prev] = append(s.next[r.Prev], r)
			continue
		}
		s.after(r.At, func() { s.arrive(r) })
	}
	s.after(setup.Delays.Scrape, s.scrape)
	for len(s.queue) > 0 && s.left > 0 {
		e := s.queue.pop()
		s.now = e.at
		if setup.Stop != 0 && s.now >= setup.Stop {
			break
		}
		e.do()
	}
	s.result.Took = s.now
	if s.lost != nil {
		s.result.Again = s.lost.again * s.setup.Engine.BlockSize
	}
	for _, w := range s.workers {
		s.result.Work = append(s.result.Work, w.done)
		s.result.Tokens = append(s.result.Tokens, w.prefill)
		s.result.Loads += w.loads
	}
	return s.result
}

func inSeconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (s *sim) after(d time.Duration, do func()) {
	s.seq++
	s.queue.push(event{s.now + d, s.seq, do})
}

func (s *sim) join() {
	for _, v := range s.views {
		v.join(s.setup.Workers-s.setup.Joining, s.setup.Workers)
	}
}

// join adds the workers of a range.
func (v *View) join(from, to int) {
	for w := from; w < to; w++ {
		v.Alive = append(v.Alive, w)
	}
}

func (s *sim) scrape() {
	for _, v := range s.views {
		for i, w := range s.workers {
			l := &v.Loads[i]
			l.Waiting, l.Usage = len(w.waiting)+w.fetching, w.use()
		}
	}
	if next := s.now + s.setup.Delays.Scrape; s.setup.ScrapedTo == 0 || next <= s.setup.ScrapedTo {
		s.after(s.setup.Delays.Scrape, s.scrape)
	}
}

func (s *sim) arrive(req *Request) {
	r := &run{req: req, arrived: s.now, blocks: req.blocks, input: req.Input(), output: max(1, req.Answer.Tokens), first: -1}
	possible := 0
	for possible < (r.input-1)/s.setup.Engine.BlockSize && s.seen[r.blocks[possible]] {
		possible++
	}
	for _, b := range r.blocks[possible:] {
		s.seen[b] = true
	}
	replica := s.turn % len(s.views)
	s.turn++
	v, picker := s.views[replica], s.pickers[replica]
	v.Now = s.now
	r.worker = picker.Pick(v, r)
	w, l, first := s.workers[r.worker], &v.Loads[r.worker], &v.Loads[r.worker]
	prefills := r.worker
	if r.first >= 0 {
		prefills, first = r.first, &v.Loads[r.first]
		first.Inflight++
		first.Tokens += r.input
	}
	uncached := r.input - v.overlap[prefills] // as the picker saw it, if it looked
	l.Inflight++
	first.Prefill += uncached
	l.Tokens += r.input
	l.Context += r.input
	served := Served{Req: req, Worker: r.worker, First: r.first, At: s.now, Possible: possible * s.setup.Engine.BlockSize,
		Lost: s.givenUp(r, prefills, v.Alive)}
	end := func(failed bool) {
		s.after(s.setup.Delays.Report, func() {
			v.Now = s.now
			l.Inflight--
			l.Tokens -= r.input
			l.Context -= r.input
			if failed {
				l.Prefill -= uncached
			}
			picker.Ended(v, r, failed)
		})
		s.result.Served = append(s.result.Served, served)
		s.left--
		for _, n := range s.next[req] {
			s.after(n.At, func() { s.arrive(n) })
		}
	}
	if w.fails == refusing {
		served.Failed = true
		end(true)
		return
	}
	r.calls = calls{
		began: func() {
			served.TTFT, served.Cached = s.now-r.arrived, r.cached
			s.after(s.setup.Delays.Report, func() {
				v.Now = s.now
				if r.first < 0 {
					l.Prefill -= uncached
				}
				picker.Began(v, r)
			})
		},
		ended: func() { served.E2E = s.now - r.arrived; end(false) },
	}
	prepared := s.now
	if mean := s.setup.Delays.Prepare; mean > 0 {
		for range 1 + len(req.Images) {
			prepared += time.Duration(s.rand.ExpFloat64() * float64(mean))
		}
	}
	whenEncoded := func(do func()) {
		at := max(prepared, r.encoded)
		if at <= s.now {
			do()
			return
		}
		s.after(at-s.now, do)
	}
	if r.first < 0 {
		whenEncoded(func() { s.queueAt(w, r) })
		return
	}
	r.lent = &run{req: req, blocks: r.blocks, input: r.input, output: 1, worker: r.first, first: -1, lends: true, encoded: r.encoded}
	r.lent.calls = calls{began: func() {}, ended: func() {
		r.cached = r.lent.cached
		s.after(inSeconds(s.setup.Engine.Handover), func() { s.queueAt(w, r) })
		s.after(s.setup.Delays.Report, func() { first.Inflight--; first.Tokens -= r.input; first.Prefill -= uncached })
	}}
	whenEncoded(func() { s.queueAt(s.workers[r.first], r.lent) })
}

func (s *sim) queueAt(w *worker, r *run) {
	w.await(r)
	s.work(w)
}

// givenUp returns how many more tokens of a prompt the best worker holds than the chosen one.
func (s *sim) givenUp(r *run, prefills int, alive []int) int {
	held := 0
	for _, w := range alive {
		held = max(held, s.workers[w].hits(r))
	}
	return max(0, held-s.workers[prefills].hits(r))
}

// work starts a worker's next step if it is idle.
func (s *sim) work(w *worker) {
	if w.busy {
		return
	}
	took := w.schedule()
	s.fetch(w)
	if took == 0 {
		return
	}
	w.busy = true
	s.after(took, func() {
		w.busy = false
		began, ended := w.finish()
		s.tell(w)
		for _, r := range began {
			r.calls.began()
		}
		for _, r := range ended {
			r.calls.ended()
		}
		s.work(w)
	})
}

// fetch starts the transfers that a worker has admitted, one after another, as over one link. When the blocks have arrived the
// worker computes the rest, for a prompt prefilled elsewhere only the last token (vLLM 0.32), and the prefill worker frees them.
func (s *sim) fetch(w *worker) {
	admitted := w.admitted
	w.admitted = nil
	for _, r := range admitted {
		w.fetching++
		each := w.Fetch
		if r.lent == nil {
			each = w.lower.each
		}
		w.fetched = max(s.now, w.fetched) + inSeconds(each*float64(r.there-r.computed))
		s.after(w.fetched-s.now, func() {
			w.fetching--
			r.computed = max(r.computed, r.there)
			w.store(r, r.there)
			w.running = append(w.running, r)
			if r.lent != nil {
				s.workers[r.first].release(r.lent)
			}
			s.tell(w)
			s.work(w)
			if r.lent != nil {
				s.work(s.workers[r.first])
			}
		})
	}
}

// tell schedules the delivery of a step's events.
func (s *sim) tell(w *worker) {
	out := w.out
	w.out = nil
	if len(out) == 0 || s.setup.NoEvents {
		return
	}
	for i, v := range s.views {
		if s.setup.Lossy > 0 && s.rand.Float64() < s.setup.Lossy {
			v.lost[w.id] = true
			continue
		}
		picker, lost := s.pickers[i], v.lost[w.id]
		v.lost[w.id] = false
		s.after(s.setup.Delays.Event, func() {
			v.Now = s.now
			if l, ok := picker.(listener); ok {
				if lost {
					l.Lost(v, w.id)
				}
				l.Heard(v, w.id, out)
				return
			}
			for _, c := range out {
				if c.lower || c.remains || c.group > 0 {
					continue // these pickers count only what the GPU holds, in the full group, the first
				}
				if !c.stored {
					v.held.set(c.block, w.id, false)
					continue
				}
				for _, b := range c.run.blocks[c.from:c.to] {
					v.held.set(b, w.id, true)
				}
			}
		})
	}
}
