package router

import (
	"slices"
	"sync/atomic"

	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/decisionlog"
	"github.com/sightline-router/sightline/router/fleet"
)

// booked is what a booking remembers of its decision. Reports of one request may be observed side by side: but for promised
// it does not change.
type booked struct {
	model         string
	slot          *fleet.Slot // chosen
	stores        uint64      // stored events that the index had of it at the decision
	reason        Reason
	line          *decisionlog.Line // nil: none is written
	locals, chain []uint64          // the prompt's blocks
	size          int               // tokens a block
	proven        int               // blocks that events proved at the decision
	promised      atomic.Pointer[promise]
	cached        int  // tokens predicted to be cached on slot; -1: no answer can be compared with it
	lower         bool // cached is a lower bound
	upper         bool // cached is an upper bound
	stale         bool // the slot's events had not come for long: the engine's own count is all that corrects the index
	usage         int  // prompt tokens that the engine will report; 0: not known
	mute          bool // the engine reports 0 cached tokens where it says nothing (SGLang without --enable-cache-report)
}

// book remembers what the choice comes to: blocks that the slot will hold, pictures that it will have seen, work that it has
// got, and events that are to be expected of it.
func (x *decision) book(best *choose.Candidate, class int) {
	if x.aside {
		return
	}
	d, rd, c, keys := &x.out, x.reading(class), &x.model.classes[class], &x.mem.blocks[class]
	b := &booked{model: d.Model, slot: x.chosen, stores: x.opt.Index.Stores(x.chosen.ID), reason: d.Reason, size: c.BlockSize, cached: d.CachedTokens, lower: d.Partial,
		upper: d.Recurrent || rd.reuse == prompt.Perhaps, stale: best.Doubtful, usage: rd.usage, mute: c.rules.MuteCached}
	if !best.Doubtful { // else no event will tell of what it gets
		b.proven = best.Exact / c.BlockSize
	}
	if x.decode != nil || rd.several {
		b.cached = -1 // what is reported is of another worker's cache, or of another prompt or all (vLLM: the last that ends; SGLang: the sum)
	}
	both := slices.Concat(keys.locals, keys.chain)
	b.locals, b.chain = both[:len(keys.locals)], both[len(keys.locals):]
	b.promised.Store(x.predicted.add(uint32(x.chosen.ID), b.chain, b.proven, x.lasts(x.chosen, x.now), x.now))
	for i := range rd.prompt.Media[:min(len(rd.prompt.Media), mostMedia)] {
		md := &rd.prompt.Media[i]
		tokens := md.Length
		switch {
		case tokens == 0:
			tokens = unknownPicture
		case md.Offset+md.Length <= best.Predicted:
			continue // its blocks are held: it is not encoded
		}
		x.seen.add(md.Key, x.chosen, tokens)
		if md.Alias != 0 {
			x.seen.add(md.Alias, x.chosen, 0)
		}
	}
	work := fleet.Booking{Tokens: d.PromptTokens - d.CachedTokens + best.Encode, Context: d.PromptTokens}
	if rd.prompt.Exact { // else its last block is not the last that it will store
		work.Locals, work.From = b.locals, best.Predicted/c.BlockSize
	}
	x.hold(b, work)
	if rd.err == nil {
		x.expect(b, rd, c)
	}
}

// hold books work on the chosen slot.
func (x *decision) hold(b *booked, work fleet.Booking) {
	if x.aside {
		return
	}
	work.Slot, work.Decode, work.Source, work.Note = x.chosen, x.decode, x.out.source, b
	work.Bytes = 256 + 8*(len(b.locals)+len(b.chain))
	if x.held = true; x.opt.Decisions != nil {
		b.line = x.line(b)
		work.Bytes += lineBytes + 8*len(b.line.HashIDs)
	}
	x.opt.Fleet.Book(x.out.ID, work)
}

// expect has the audit watch for what the slot will store. A request without a session id gets the decision's, where the
// engine's events will name it.
func (x *decision) expect(b *booked, rd *reading, c *servedClass) {
	session := sessionOf(x.mem.req.Fields, x.req.Session)
	if session == "" && x.opt.Audit != nil && c.sessions && x.chosen.Worker.Instance == "" {
		session, x.out.Session = x.out.ID, x.out.ID
	}
	x.opt.Audit.Expect(audit.Expectation{ID: x.out.ID, Slot: x.chosen.ID, Worker: x.chosen.Worker.Name, Model: b.model, Session: session,
		Locals: b.locals, From: b.proven, Size: b.size, Prompts: x.model.prompts[c.reading].Model(), Prompt: rd.prompt})
}
