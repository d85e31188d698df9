package router

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/decisionlog"
	"github.com/sightline-router/sightline/router/fleet"
	"github.com/sightline-router/sightline/router/report"
)

// booked is what a booking records about its decision. Several reports of one request may be observed concurrently: except for
// promised, it does not change once slot is set.
type booked struct {
	model string
	arm   report.Arm
	line  *decisionlog.Line // nil: none is written
	left  *untouched        // nil: it was steered

	// Where it is booked first: the chosen slot or, for a request that was left alone, the slot that got it.
	slot          *fleet.Slot
	stores        uint64   // stored events of the slot that the index had at the decision
	exact         bool     // the slot's events prove what is predicted
	locals, chain []uint64 // the prompt's blocks
	tokens        int      // of the prompt; 0: not read
	size          int      // tokens in a block
	proven        int      // blocks that events proved at the decision
	promised      atomic.Pointer[promise]
	cached        int            // tokens predicted to be cached on slot; -1: cannot be compared with an answer
	common        int            // tokens of the prompt that no image host can make differ at the engine
	offloaded     int            // of cached, the tokens in lower tiers
	unit          int            // tokens that the lower tiers return at once
	lower         bool           // cached is a lower bound
	upper         bool           // cached is an upper bound
	stale         bool           // the slot's events had not come for long: only the engine's own count corrects the index
	usage         int            // prompt tokens that the engine will report; 0: not known
	number        uint64         // number of the booking for other replicas; 0: they are not told
	media         []SharedMedium // for other replicas: pictures that the slot will have seen
	mute          bool           // the engine reports 0 cached tokens when it has no count (SGLang without --enable-cache-report)
}

// standing is what a decision knew about a slot and the prompt, in tokens.
type standing struct {
	slot                     *fleet.Slot
	class                    int
	exact, predicted, encode int
	offloaded                int // of exact, the tokens to fetch from a lower tier
	rate                     float64
	stores                   uint64 // stored events of the slot that the index had
	doubtful                 bool
}

func (x *decision) standingOf(class int, slot *fleet.Slot, c *choose.Candidate) standing {
	return standing{slot: slot, class: class, exact: c.Exact, predicted: c.Predicted, offloaded: c.Offloaded, encode: c.Encode, rate: c.Rate, stores: x.opt.Index.Stores(slot.ID), doubtful: c.Doubtful}
}

// cached returns how many of a prompt's tokens the engine should find cached. It always computes the last token, so a prompt that
// is wholly cached loses its last block (vLLM).
func (s *standing) cached(tokens, size int) int { return min(s.predicted, max(0, tokens-1)/size*size) }

// mostChoices limits how many answers of one request (n) count as requests of their own, as engines schedule them.
const mostChoices = 128

// asked is a prompt as the workers of one class read it.
type asked struct {
	class         *servedClass
	prompts       *engine.Live
	prompt        *engine.Prompt
	locals, chain []uint64
	several, skip bool // there are several prompts; the engine may not read its cache
	unread        bool
	usage         int
	answers       int // decoded at the same time
}

// askedOf copies what a class's workers read, to keep it beyond the decision.
func (x *decision) askedOf(class int) asked {
	c, rd, keys := &x.model.classes[class], x.reading(class), &x.mem.blocks[class]
	both := slices.Concat(keys.locals, keys.chain)
	return asked{class: c, prompts: x.model.prompts[c.reading], prompt: rd.prompt, locals: both[:len(keys.locals)], chain: both[len(keys.locals):],
		several: rd.several, skip: rd.reuse == prompt.Perhaps, unread: rd.err != nil, usage: rd.usage,
		answers: int(max(1, min(x.mem.req.Fields["n"].Int(), mostChoices)))}
}

// book records the consequences of the choice: blocks that the slot will hold, pictures that it will have seen, its additional
// work, and the events that the audit should expect.
func (x *decision) book(best *choose.Candidate, class int) {
	if x.aside {
		return
	}
	b := &booked{model: x.out.Model, arm: x.out.Arm}
	if x.left() {
		x.leave(b)
		return
	}
	a, st := x.askedOf(class), x.standingOf(class, x.chosen, best)
	work := x.at(b, &st, &a)
	if x.decode != nil {
		b.cached = -1 // the report is about another worker's cache
		x.adapters.use(x.decode, x.adapter, x.model.MaxLoRAs)
	}
	if work.Tokens, work.Load = work.Tokens+best.Load, best.Load; best.Pulls() {
		work.Tokens, work.Pull = max(1, work.Tokens-best.Pulled), best.Pulled
	}
	x.adapters.use(x.chosen, x.adapter, x.model.MaxLoRAs)
	x.remember(b, &st, &a, x.now)
	x.hold(b, work)
	if !a.unread {
		x.expect(b, &a, x.out.ID, x.auditSession(a.class.sessions))
	}
}

// at fills in b for a request at a slot, and returns what is to be booked there.
func (r *Router) at(b *booked, st *standing, a *asked) fleet.Booking {
	id, size := st.slot.ID, a.class.BlockSize
	b.slot, b.stores, b.locals, b.chain, b.size, b.usage, b.mute = st.slot, st.stores, a.locals, a.chain, size, a.usage, a.class.rules.MuteCached
	b.tokens, b.common, b.offloaded, b.unit = len(a.prompt.IDs), a.prompt.Common(), st.offloaded, a.class.unit*size
	b.exact, b.stale = !st.doubtful && st.exact > 0 && st.predicted <= st.exact, st.doubtful
	b.lower, b.upper = r.opt.Index.Partial(id), r.opt.Index.Recurrent(id) || a.skip
	if !st.doubtful { // else no event will tell what it stores
		b.proven = st.exact / size
	}
	cached := st.cached(b.tokens, size)
	if b.cached = cached; a.several {
		b.cached = -1 // the report is about another prompt or all (vLLM: the last to end; SGLang: the sum)
	}
	work := fleet.Booking{Tokens: b.tokens - cached + st.encode, Fetch: st.offloaded, Context: a.answers * b.tokens, Answers: a.answers}
	if a.prompt.Exact && !r.elsewhere(b.locals) { // else the last known block is not the last that it will store
		work.Locals, work.From = b.locals, st.predicted/size
	}
	return work
}

// remember records which blocks the slot will hold and which pictures it will have seen.
func (r *Router) remember(b *booked, st *standing, a *asked, now time.Time) {
	b.promised.Store(r.predicted.add(uint32(b.slot.ID), b.chain, b.proven, r.lasts(b.slot, b.locals, now), now))
	for i := range a.prompt.Media[:min(len(a.prompt.Media), mostMedia)] {
		md := &a.prompt.Media[i]
		tokens := md.Length
		switch {
		case tokens == 0:
			tokens = unknownPicture
		case md.Offset+md.Length <= st.predicted:
			continue // its blocks are held: it is not encoded
		}
		m := SharedMedium{md.Key, md.Alias, tokens}
		r.sawPicture(b.slot, m)
		if r.opt.Share != nil {
			b.media = append(b.media, m)
		}
	}
}

// sawPicture records that a slot encodes a picture or has it in its encoder cache.
func (r *Router) sawPicture(slot *fleet.Slot, m SharedMedium) {
	r.seen.add(m.Key, slot, m.Tokens)
	if m.Alias != 0 {
		r.seen.add(m.Alias, slot, 0)
	}
}

// hold books work on the chosen slot, or on none yet if the request is left alone.
func (x *decision) hold(b *booked, work fleet.Booking) {
	if x.aside {
		return
	}
	work.Source, work.Note = x.out.source, b
	if x.opt.Fair {
		work.Model, work.Tenant, work.Counted = x.out.Model, x.req.Tenant, true
	}
	if b.left == nil {
		work.Slot, work.Decode = x.chosen, x.decode
	}
	work.Bytes += 256 + 8*(len(b.locals)+len(b.chain))
	if x.held = true; x.opt.Decisions != nil {
		b.line = x.line(b)
		work.Bytes += lineBytes + 8*len(b.line.HashIDs)
	}
	if x.opt.Share != nil {
		b.number = x.shared.Add(1)
	}
	x.Router.share(b, &work) // before Book, so that other replicas hear of the end after it
	x.opt.Fleet.Book(x.out.ID, work)
}

// auditSession returns the request's session for the audit. If it has none and the engine's events name sessions, the decision's
// id becomes its session.
func (x *decision) auditSession(named bool) string {
	session := sessionOf(x.mem.req.Fields, x.req.Session)
	if session == "" && x.opt.Audit != nil && named && x.chosen.Worker.Instance == "" {
		session, x.out.Session = x.out.ID, x.out.ID
	}
	return session
}

// expect tells the audit what the slot should store. A prompt of another part of the index is audited by that part's replica.
func (r *Router) expect(b *booked, a *asked, id, session string) {
	if r.elsewhere(b.locals) {
		return
	}
	r.opt.Audit.Expect(audit.Expectation{ID: id, Slot: b.slot.ID, Worker: b.slot.Worker.Name, Model: b.model, Session: session,
		Locals: b.locals, From: b.proven, Size: b.size, Prompts: a.prompts.Model(), Prompt: a.prompt})
}
