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

// booked is what a booking remembers of its decision. Reports of one request may be observed side by side: but for promised
// it does not change, once its slot is known.
type booked struct {
	model string
	arm   report.Arm
	line  *decisionlog.Line // nil: none is written
	left  *untouched        // nil: it was steered

	slot          *fleet.Slot // that it is booked at first: the chosen one, or of a request that was left alone the one that got it
	stores        uint64      // stored events that the index had of it at the decision
	exact         bool        // its events prove what is predicted
	locals, chain []uint64    // the prompt's blocks
	tokens        int         // of the prompt; 0: not read
	size          int         // tokens a block
	proven        int         // blocks that events proved at the decision
	promised      atomic.Pointer[promise]
	cached        int            // tokens predicted to be cached on slot; -1: no answer can be compared with it
	offloaded     int            // of them, those in its lower tiers
	unit          int            // tokens that these give back at once
	lower         bool           // cached is a lower bound
	upper         bool           // cached is an upper bound
	stale         bool           // the slot's events had not come for long: the engine's own count is all that corrects the index
	usage         int            // prompt tokens that the engine will report; 0: not known
	number        uint64         // of the booking, for other replicas; 0: they are not told
	media         []SharedMedium // for them: what it will have seen
	mute          bool           // the engine reports 0 cached tokens where it says nothing (SGLang without --enable-cache-report)
}

// standing is how a slot stood for a prompt at the decision, in tokens.
type standing struct {
	slot                     *fleet.Slot
	class                    int
	exact, predicted, encode int
	offloaded                int // of exact, what has to be fetched from a lower tier
	rate                     float64
	stores                   uint64 // stored events that the index had of it
	doubtful                 bool
}

func (x *decision) standingOf(class int, slot *fleet.Slot, c *choose.Candidate) standing {
	return standing{slot: slot, class: class, exact: c.Exact, predicted: c.Predicted, offloaded: c.Offloaded, encode: c.Encode, rate: c.Rate, stores: x.opt.Index.Stores(slot.ID), doubtful: c.Doubtful}
}

// cached is how many of a prompt's tokens the engine should find. It always computes the last token, so a prompt that is held
// whole loses its last block (vLLM).
func (s *standing) cached(tokens, size int) int { return min(s.predicted, max(0, tokens-1)/size*size) }

// mostChoices of one request count as requests of their own, as engines schedule them (n).
const mostChoices = 128

// asked is a prompt as the workers of one class read it.
type asked struct {
	class         *servedClass
	prompts       *engine.Live
	prompt        *engine.Prompt
	locals, chain []uint64
	several, skip bool // there are several prompts; the engine may read no cache
	unread        bool
	usage         int
	answers       int // that are decoded at once
}

// askedOf keeps what a class's workers read.
func (x *decision) askedOf(class int) asked {
	c, rd, keys := &x.model.classes[class], x.reading(class), &x.mem.blocks[class]
	both := slices.Concat(keys.locals, keys.chain)
	return asked{class: c, prompts: x.model.prompts[c.reading], prompt: rd.prompt, locals: both[:len(keys.locals)], chain: both[len(keys.locals):],
		several: rd.several, skip: rd.reuse == prompt.Perhaps, unread: rd.err != nil, usage: rd.usage,
		answers: int(max(1, min(x.mem.req.Fields["n"].Int(), mostChoices)))}
}

// book remembers what the choice comes to: blocks that the slot will hold, pictures that it will have seen, work that it has
// got, and events that are to be expected of it.
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
		b.cached = -1 // what is reported is of another worker's cache
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

// at takes down that a request is at a slot, and gives what is to be booked there.
func (r *Router) at(b *booked, st *standing, a *asked) fleet.Booking {
	id, size := st.slot.ID, a.class.BlockSize
	b.slot, b.stores, b.locals, b.chain, b.size, b.usage, b.mute = st.slot, st.stores, a.locals, a.chain, size, a.usage, a.class.rules.MuteCached
	b.tokens, b.offloaded, b.unit = len(a.prompt.IDs), st.offloaded, a.class.unit*size
	b.exact, b.stale = !st.doubtful && st.exact > 0 && st.predicted <= st.exact, st.doubtful
	b.lower, b.upper = r.opt.Index.Partial(id), r.opt.Index.Recurrent(id) || a.skip
	if !st.doubtful { // else no event will tell of what it gets
		b.proven = st.exact / size
	}
	cached := st.cached(b.tokens, size)
	if b.cached = cached; a.several {
		b.cached = -1 // what is reported is of another prompt or all (vLLM: the last that ends; SGLang: the sum)
	}
	work := fleet.Booking{Tokens: b.tokens - cached + st.encode, Fetch: st.offloaded, Context: a.answers * b.tokens, Answers: a.answers}
	if a.prompt.Exact && !r.elsewhere(b.locals) { // else its last block is not the last that it will store
		work.Locals, work.From = b.locals, st.predicted/size
	}
	return work
}

// remember notes which blocks the slot will hold and which pictures it will have seen.
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

// sawPicture notes that a slot encodes a picture, or has it in its encoder's cache.
func (r *Router) sawPicture(slot *fleet.Slot, m SharedMedium) {
	r.seen.add(m.Key, slot, m.Tokens)
	if m.Alias != 0 {
		r.seen.add(m.Alias, slot, 0)
	}
}

// hold books work on the chosen slot, or at nobody yet.
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
	x.Router.share(b, &work) // first, so that its end is told behind it
	x.opt.Fleet.Book(x.out.ID, work)
}

// auditSession is the request's session for the audit. One without gets the decision's id, where engines' events will name it.
func (x *decision) auditSession(named bool) string {
	session := sessionOf(x.mem.req.Fields, x.req.Session)
	if session == "" && x.opt.Audit != nil && named && x.chosen.Worker.Instance == "" {
		session, x.out.Session = x.out.ID, x.out.ID
	}
	return session
}

// expect has the audit watch for what the slot will store, unless the index has another part: that part's Sightline audits it.
func (r *Router) expect(b *booked, a *asked, id, session string) {
	if r.elsewhere(b.locals) {
		return
	}
	r.opt.Audit.Expect(audit.Expectation{ID: id, Slot: b.slot.ID, Worker: b.slot.Worker.Name, Model: b.model, Session: session,
		Locals: b.locals, From: b.proven, Size: b.size, Prompts: a.prompts.Model(), Prompt: a.prompt})
}
