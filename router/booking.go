package router

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/decisionlog"
	"github.com/sightline-router/sightline/router/forecast"
	"github.com/sightline-router/sightline/router/ledger"
	"github.com/sightline-router/sightline/router/report"
	"github.com/sightline-router/sightline/router/speculative"
	"github.com/sightline-router/sightline/workers/fleet"
)

// bookingRecord is what a booking records about its decision. Several reports of one request may be observed concurrently: once slot is
// set, only what moves guards changes.
type bookingRecord struct {
	model     string
	client    fair.Client
	arm       report.Arm
	steps     int               // of priority
	due       int64             // as its worker is told, in Unix milliseconds; 0: it is told nothing
	line      *decisionlog.Line // nil: none is written
	unsteered *unsteeredRequest // nil: it was steered

	moves           sync.Mutex // held while predictions and images move with the request
	promise         *speculative.Promise
	sent            *speculative.Promise // of path
	media, newMedia []SharedMedium       // images that the slot will have seen, for other replicas; those of all that it had not seen before

	// Where it is booked first: the chosen slot or, for an unsteered request, the slot that got it.
	slot             *fleet.Slot
	storesAtDecision uint64           // stored events of the slot that the index had at the decision
	exact            bool             // the slot's events prove what is predicted
	locals, chain    []uint64         // the prompt's blocks
	path             []uint64         // of a request that is remembered: the numbers of its path's steps
	whole            bool             // chain has all of the prompt's whole blocks
	promptTokens     int              // of the prompt, an estimate if no rule reads it to its end; 0: not known
	blockSize        int              // tokens in a block
	provenBlocks     int              // blocks that events proved at the decision
	cachedTokens     int              // tokens predicted to be cached on slot; -1: cannot be compared with an answer
	common           int              // tokens of the prompt that no image host can make differ at the engine
	offloadedTokens  int              // of cached, the tokens in lower tiers
	offloadUnit      int              // tokens that the lower tiers return at once
	lowerBound       bool             // cached is a lower bound
	upperBound       bool             // cached is an upper bound
	stale            bool             // the slot's events had not come for long: only the engine's own count corrects the index
	engineTokens     int              // prompt tokens that the engine will report; 0: not known
	shareNumber      uint64           // number of the booking for other replicas; 0: it is not told
	newAdapter       string           // the adapter that the slot loads for it; "": none
	account          *account.Account // of its prompt's tokens; nil: it is not read
	comparison       *comparison      // of its prompt with earlier ones; nil: done
	abandoned        atomic.Bool      // nobody will report its end: nothing is compared any more
	needs            *forecast.Needs  // how large its worker's cache would have had to be; nil: nothing of it was evicted
	computes         int              // tokens to prefill at the slot, with images to encode; 0: not known
	queued           float64          // tokens to prefill there before it
	severalPrompts   bool             // the engine's counts are about one of them, or all
	zeroMeansUnknown bool             // the engine reports 0 cached tokens when it has no count (SGLang without --enable-cache-report)
}

// slotEstimate is what a decision knew about a slot and the prompt, in tokens.
type slotEstimate struct {
	slot                     *fleet.Slot
	lookup                   int
	exact, predicted, encode int
	unkept                   int // after predicted, the tokens that its engine holds and does not find
	offloaded                int // of exact, the tokens to fetch from a lower tier
	rate                     float64
	storesAtDecision         uint64 // stored events of the slot that the index had
	doubtful                 bool
}

func (o *overlap) estimateOf(slot *fleet.Slot, has *choose.Overlap, rate float64, stores uint64) slotEstimate {
	return slotEstimate{slot: slot, lookup: o.of(slot), exact: has.Exact, predicted: has.Predicted, unkept: has.Unkept,
		offloaded: has.Offloaded, encode: has.Encode, rate: rate, storesAtDecision: stores, doubtful: has.Doubtful}
}

// expectedHit returns how many of a prompt's tokens the engine should find cached. It always computes the last token, so a prompt that
// is wholly cached loses its last block (vLLM).
func (s *slotEstimate) expectedHit(tokens, size int) int {
	return min(s.predicted, max(0, tokens-1)/size*size)
}

// maxChoices limits how many answers of one request (n) count as requests of their own, as engines schedule them.
const maxChoices = 128

// booker records what follows from a choice.
type booker struct {
	*state
	replicas    *Replicas
	forecasting *forecasting
}

// book records the consequences of a choice that Envoy will follow: blocks that the slot will hold, images that it will have seen, its
// additional work, and the events that the audit should expect.
func (r *booker) book(p *plan) {
	c, read := &p.mem.choice, &p.mem.reading
	b := &bookingRecord{client: p.req.Client, model: p.out.Model, arm: p.out.Arm, slot: c.Chosen, cachedTokens: -1}
	if p.unread {
		r.learning.receiver().Borrowed(c.Chosen.ID, read.session)
		r.openBooking(p, b, ledger.Booking{Slot: c.Chosen, Decode: c.Decode})
		return
	}
	best := &c.Ranked[0]
	a, st := p.lookup().keep(read), p.mem.overlap.estimateOf(c.Chosen, &best.Overlap, best.Rate, r.opt.Index.Stores(c.Chosen.ID))
	if a.watching != nil && a.answers == 1 {
		a.watching.Said = r.learning.paths().NewSaid()
		p.out.Said = a.watching.Said
	}
	work := r.fillBooking(b, &st, &a)
	b.queued = best.Backlog
	r.openAccount(b, &st, &a, p.mem.overlap.elsewhere(&p.list.selection, c.Chosen), p.out.Regret)
	if from, to, ok := r.comparable(b, &a); ok {
		a.findParts(read, p.lookup(), r.opt.Secret)
		r.prepareComparison(b, &a, from, to)
	}
	work.Slot, work.Decode = c.Chosen, c.Decode
	if c.Decode != nil {
		b.cachedTokens = -1 // the report is about another worker's cache
		r.adapters.Sent(c.Decode, read.adapter, read.model.MaxLoRAs)
	}
	work.Tokens, work.AdapterLoad = work.Tokens+best.AdapterLoad, best.AdapterLoad
	if best.Pulls() {
		work.Tokens, work.Pull = max(1, work.Tokens-best.Pulled), best.Pulled
	}
	if r.adapters.Sent(c.Chosen, read.adapter, read.model.MaxLoRAs) {
		b.newAdapter = read.adapter
	}
	r.encodeQueues.Book(p.encodings, p.now)
	r.recordPredictions(b, &st, &a, p.now)
	r.openBooking(p, b, work)
	at := placing{mostPredicted(&p.mem.overlap, c), c.Decode == nil && c.Chosen.Worker.Role == fleet.Any}
	r.registerExpectation(b, &a, p.out.ID, p.session, at)
}

// placing is what the audit wants to know of a choice, to tell over which event stream a worker's requests should come.
type placing struct {
	most  int  // tokens of the prompt that a worker was predicted to hold
	alone bool // the chosen one serves the request alone
}

func mostPredicted(o *overlap, c *choose.Choice) (most int) {
	if out := o.mostExcluded(); out != nil {
		most = out.Predicted
	}
	for i := range c.Candidates {
		most = max(most, c.Candidates[i].Predicted)
	}
	return most
}

// fillBooking fills in b for a request at a slot, and returns what is to be booked there.
func (r *booker) fillBooking(b *bookingRecord, st *slotEstimate, a *lookedUp) ledger.Booking {
	id, size := st.slot.ID, a.form.Size
	b.slot, b.storesAtDecision, b.locals, b.chain, b.blockSize = st.slot, st.storesAtDecision, a.locals, a.chain, size
	b.engineTokens, b.zeroMeansUnknown = a.engineTokens, a.class.rules.ZeroCachedAmbiguous
	b.severalPrompts = a.multiplePrompts
	b.promptTokens, b.common, b.offloadedTokens, b.offloadUnit = a.tokens, a.prompt.StablePrefix(), st.offloaded, a.unit*size
	b.whole = a.prompt.Exact
	b.exact, b.stale = !st.doubtful && st.exact > 0 && st.predicted <= st.exact && st.exact <= a.own*size, st.doubtful
	b.lowerBound = r.opt.Index.Partial(id) || r.opt.Index.FindsParts(id) || a.computed != nil && st.predicted <= a.own*size
	b.upperBound = r.opt.Index.UpperBound(id) || a.model.UpperBound() || a.mayBypassCache
	if !st.doubtful { // else no event will show what it stores
		b.provenBlocks = min(st.exact/size, len(b.locals))
	}
	cached := st.expectedHit(a.tokens, size)
	b.cachedTokens = cached
	if a.multiplePrompts || a.estimate || st.predicted > len(b.locals)*size {
		b.cachedTokens = -1 // the report is about another prompt or all (vLLM: the last to end; SGLang: the sum)
	}
	answers, all := a.answers, places{limit: r.serving.Load().maxInFlight}
	if limit := all.of(st.slot); limit > 0 { // a worker runs no more at a time: the others wait for these
		answers = min(answers, limit)
	}
	work := ledger.Booking{Work: fleet.Work{Tokens: a.tokens - cached + st.encode, Fetch: st.offloaded, Context: answers * a.tokens,
		Answers: answers}}
	b.computes = work.Tokens
	if q := a.watching; q != nil {
		q.Shared, q.Unwatched = r.learning.others(st.slot, r.opt.Now())
	}
	if a.prompt.Exact { // else the last known block is not the last that it will store
		work.Locals, work.From = b.locals, st.predicted/size
	} else if q := a.watching; q != nil {
		work.Seen, work.From = q.Seen, st.predicted/size
		work.Seen.Others = q.Shared && !a.class.sessions
	}
	return work
}

// recordPredictions records which blocks the slot will hold and which images it will have seen.
func (r *booker) recordPredictions(b *bookingRecord, st *slotEstimate, a *lookedUp, now time.Time) {
	ttl := r.serving.Load().predictedTTL
	b.promise = r.predict(b.slot, b.chain, b.provenBlocks, ttl, now)
	r.forecasting.decided(b, now)
	if a.watching != nil {
		b.path = appendChain(nil, &a.watching.Path)
		b.sent = r.learning.predict(b.slot, b.path, ttl, now)
	}
	for i := range a.images {
		md := &a.images[i]
		if md.end > 0 && md.end <= st.predicted { // its blocks are held: it is not encoded
			continue
		}
		if r.sightings.saw(b.slot, md.SharedMedium) {
			b.newMedia = append(b.newMedia, md.SharedMedium)
		}
		if r.opt.Share != nil {
			b.media = append(b.media, md.SharedMedium)
		}
	}
}

// openBooking books a plan's work, on no slot yet if the request is not steered.
func (r *booker) openBooking(p *plan, b *bookingRecord, work ledger.Booking) {
	work.Source, work.Note, work.Due = p.req.Source, b, p.due
	b.steps = p.steps
	if p.out.Order != nil {
		b.due = p.due
	}
	if r.opt.Audit != nil {
		r.opt.Audit.Borrowed(p.mem.reading.session)
	}
	if r.opt.Fair {
		work.Model, work.Tenant, work.Counted = p.out.Model, p.req.Tenant, true
	}
	work.Bytes += 256 + 8*(len(b.locals)+len(b.chain)+len(b.path)) + 24*len(b.newMedia)
	p.booked, work.Media = true, p.fetches()
	if r.opt.Decisions != nil {
		b.line = p.newLogLine(b)
		work.Bytes += lineBytes + 8*len(b.line.HashIDs)
	}
	b.shareNumber = r.replicas.number()
	r.replicas.share(b, &work, false) // before Book, so that other replicas hear of the end after it
	r.opt.Ledger.Book(p.out.ID, work)
}

// dueAt returns when a slot has been told that the request is due; 0: it serves requests as they come, or it is not known how.
func (b *bookingRecord) dueAt(slot *fleet.Slot) int64 {
	if serves, _ := slot.Serves(); serves > rules.AsTheyCome {
		return b.due
	}
	return 0
}

// registerExpectation tells the audit, or the learner, what the slot will store.
func (r *booker) registerExpectation(b *bookingRecord, a *lookedUp, id, session string, at placing) {
	if a.watching != nil {
		a.watching.Due = b.dueAt(b.slot)
	}
	r.learning.watch(id, b.slot, session, a.watching)
	if a.unread && session != id {
		return
	}
	e := audit.Expectation{ID: id, Slot: b.slot.ID, Worker: b.slot.Worker.Name, Model: b.model, Session: session, Alone: at.alone,
		Locals: b.locals[:a.own], From: min(b.provenBlocks, a.own), Form: a.form, Prompts: a.model, Prompt: a.prompt,
		Shaped: a.shaped, Keyed: a.keyed}
	if a.own > 0 {
		e.Whole, e.New = b.chain[a.own-1], a.computed == nil && at.most < a.own*a.form.Size
	}
	if a.unread { // only the worker that its events name is looked at
		e.Shadow = true
		r.opt.Audit.Expect(e)
		return
	}
	if a.computed != nil {
		e.Shadow, e.Locals, e.Prompt, e.From = true, a.computedLocals, a.computed, 0
		for e.From < min(b.provenBlocks, len(e.Locals)) && e.Locals[e.From] == b.locals[e.From] {
			e.From++
		}
	}
	if !a.multiplePrompts { // else an event may be about another of them
		e.Class = a.class.judged
	}
	r.opt.Audit.Expect(e)
}
