package router

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/decisionlog"
	"github.com/sightline-router/sightline/router/ledger"
	"github.com/sightline-router/sightline/router/report"
	"github.com/sightline-router/sightline/workers/fleet"
)

// An unsteered request (beyond the share of enforce) is decided like any other, but Envoy is told
// nothing and picks by its own balancing. It is booked at no slot until the access log reports the worker that got it. Then it is
// booked there, with what the decision knew about that worker, so that load, predictions and the audit follow what really happens.
// The choice is kept for the report.
//
//	decide ─▶ estimates of all workers, kept ── Started, at an address ─▶ giveSlot: the booking is that worker's
//	─▶ recordUnsteered: predictions, images, audit
//
// The split is by conversation. It is the same in all replicas and after a restart, and a larger share of steered requests keeps
// those that were steered before.

// unitInterval maps numbers evenly to [0, 1).
func unitInterval(n uint64) float64 {
	n = (n ^ n>>30) * 0xBF58476D1CE4E5B9
	n = (n ^ n>>27) * 0x94D049BB133111EB
	return float64((n^n>>31)>>11) / (1 << 53)
}

// unsteeredRequest is what is kept of an unsteered request: what the decision knew about all workers.
type unsteeredRequest struct {
	estimates []slotEstimate
	prompts   []lookedUp // by lookup; nil once the request has its slot
	chosen    int        // index into estimates; -1: the request was not read
	rate      float64    // mean of all known rates
	session   string
}

// estimateFor returns the estimate for a slot; nil: not known.
func (u *unsteeredRequest) estimateFor(slot *fleet.Slot) *slotEstimate {
	if i := slices.IndexFunc(u.estimates, func(s slotEstimate) bool { return s.slot == slot }); i >= 0 {
		return &u.estimates[i]
	}
	return nil
}

// estimates returns what the decision knew about all slots of a selection.
func (o *overlap) estimates(s *selection, index *indexer.Index, now time.Time) []slotEstimate {
	list := make([]slotEstimate, 0, len(o.slots)+len(o.excluded))
	add := func(all []choose.Overlap, slots []*fleet.Slot) {
		for i := range all {
			slot := slots[all[i].Slot]
			list = append(list, o.estimateOf(slot, &all[i], slot.Load(now).Rate, index.Stores(slot.ID)))
		}
	}
	add(o.slots, s.slots)
	add(o.excluded, s.known)
	return list
}

// bookUnsteered books an unsteered request: on no slot yet, unless Envoy cannot pick. A request that was not read keeps no
// prompts to book later.
func (r *booker) bookUnsteered(p *plan) {
	b := &bookingRecord{client: p.req.Client, model: p.out.Model, arm: p.out.Arm, cachedTokens: -1}
	var estimates []slotEstimate
	if !p.unread {
		estimates = p.mem.overlap.estimates(&p.list.selection, r.opt.Index, p.now)
	}
	chosen := slices.IndexFunc(estimates, func(s slotEstimate) bool { return s.slot == p.mem.choice.Chosen })
	kept := &unsteeredRequest{estimates: estimates, chosen: chosen, rate: choose.FleetOf(p.mem.choice.Candidates).Rate}
	work := ledger.Booking{Bytes: estimateBytes * len(estimates)}
	b.unsteered = kept
	if kept.chosen >= 0 {
		kept.session = strings.Clone(p.session)
		kept.prompts = make([]lookedUp, len(p.mem.overlap.lookups))
		for i := range kept.prompts {
			if l := &p.mem.overlap.lookups[i]; l.hasWorkers {
				kept.prompts[i] = l.keep(&p.mem.reading)
				kept.prompts[i].findParts(&p.mem.reading, l, r.opt.Secret)
				prompt := kept.prompts[i].prompt
				work.Bytes += 4*len(prompt.IDs) + len(prompt.Rendered) + 8*2*len(kept.prompts[i].locals)
				if w := kept.prompts[i].words; w != nil {
					work.Bytes += len(w.Text) + partBytes*len(w.Parts)
				}
			}
		}
	}
	work.OnSlot = func(at *ledger.Booking) { r.giveSlot(b, at) }
	work.Slot = p.picked
	if work.Slot != nil {
		r.giveSlot(b, &work)
	}
	r.openBooking(p, b, work)
	if work.Slot != nil {
		r.recordUnsteered(b, p.out.ID, p.now)
	}
}

const estimateBytes = 80

// giveSlot fills in a booking that has got its slot. The Fleet may call it.
func (r *booker) giveSlot(b *bookingRecord, at *ledger.Booking) {
	b.slot = at.Slot
	if st := b.unsteered.estimateFor(at.Slot); st != nil && b.unsteered.prompts != nil {
		work := r.fillBooking(b, st, &b.unsteered.prompts[st.lookup])
		at.Tokens, at.Fetch, at.Context, at.Locals, at.From, at.Seen = work.Tokens, work.Fetch, work.Context, work.Locals, work.From, work.Seen
		if r.opt.Index.Stores(st.slot.ID) != st.storesAtDecision { // its events may have come already and will not come again
			at.Locals, at.Seen = nil, nil
		}
	}
}

// recordUnsteered records predictions, images and the audit for an unsteered request, once its slot is known.
func (r *booker) recordUnsteered(b *bookingRecord, id string, now time.Time) {
	if st := b.unsteered.estimateFor(b.slot); st != nil && b.unsteered.prompts != nil {
		a := &b.unsteered.prompts[st.lookup]
		r.openAccount(b, st, a, b.unsteered.elsewhere(b.slot), notSteered)
		if from, to, ok := r.comparable(b, a); ok {
			r.prepareComparison(b, a, from, to)
		}
		b.queued = max(0, b.slot.Load(now).Backlog-float64(b.computes))
		r.recordPredictions(b, st, a, now)
		at := placing{alone: b.slot.Worker.Role == fleet.Any}
		for i := range b.unsteered.estimates {
			at.most = max(at.most, b.unsteered.estimates[i].predicted)
		}
		r.registerExpectation(b, a, id, b.unsteered.session, at)
	}
	b.unsteered.prompts = nil
}

// hypothetical compares the choice for an unsteered request with the slot that served it; nil: not known.
func (b *bookingRecord) hypothetical(used *fleet.Slot) *decisionlog.Hypothetical {
	if b.unsteered == nil || b.unsteered.chosen < 0 {
		return nil
	}
	st, chosen := b.unsteered.estimateFor(used), &b.unsteered.estimates[b.unsteered.chosen]
	if st == nil {
		return nil
	}
	return &decisionlog.Hypothetical{Cached: chosen.expectedHit(b.promptTokens, b.blockSize),
		UsedCached: st.expectedHit(b.promptTokens, b.blockSize), Encode: st.encode - chosen.encode,
		Rate: cmp.Or(st.rate, b.unsteered.rate)}
}

// reportEnd adds an ended request to the report.
func (r *follower) reportEnd(e *end) {
	q := report.Request{ID: e.o.ID, Arm: e.arm, Model: e.model, OK: e.ok(), Prompt: e.promptTokens, Cached: e.o.CachedTokens,
		Counted: e.o.CachedTokens >= 0, FirstByte: e.o.FirstByte, End: e.took, Would: e.would, Steps: e.steps, Waited: e.at.Waited}
	if a := e.account; a != nil {
		q.Accounted, q.Uncached, q.Changed, q.Kept, q.Rate = a.Tokens, a.Uncached, a.Change(), a.Kept, e.rate(r.opt.Now())
	}
	if q.Counted && e.o.PromptTokens > 0 {
		q.Prompt = e.o.PromptTokens
	}
	if e.would != nil && !q.Counted {
		q.Cached = e.would.UsedCached
	} else if e.known && e.at.Slot == e.slot && !q.Counted {
		q.Cached = e.cachedTokens
	}
	r.opt.Report.Add(q, e.at.At)
}
