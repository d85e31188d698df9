package router

import (
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/decisionlog"
	"github.com/sightline-router/sightline/router/ledger"
	"github.com/sightline-router/sightline/router/report"
	"github.com/sightline-router/sightline/workers/fleet"
)

// An unsteered request (mode observe, or beyond the share of mode enforce) is decided like any other, but Envoy is told
// nothing and picks by its own balancing. It is booked at no slot until the access log reports the worker that got it. Then it is
// booked there, with what the decision knew about that worker, so that load, predictions and the audit follow what really happens.
// The choice is kept for the report.
//
//	decide ─▶ estimates of all workers, kept ── Started, at an address ─▶ placeBooking: the booking is that worker's
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

// conversationHash returns a hash of what stays the same in a conversation from turn to turn: its session or else its messages up to the
// user's first. The first blocks do not identify a conversation, since those of one service share them. A prompt that is a single
// text is its own conversation, and so is a request that was not read.
func (x *planner) conversationHash() uint64 {
	h, req, s := fnv.New64a(), &x.mem.req, &x.mem.body
	session := sessionOf(req.Fields, x.req.Session)
	messages := req.Messages
	if len(messages) == 0 {
		messages, _ = s.Messages(req.Fields["input"]) // of /v1/responses
	}
	switch text := req.Fields["prompt"]; {
	case session != "":
		_, _ = h.Write([]byte(session[:min(len(session), sessionText)])) // a hash does not fail
	case len(messages) > 0:
		s.Outline(h, req.Fields["system"])
		for i := range messages {
			_, _ = h.Write([]byte(messages[i].Role))
			s.Outline(h, messages[i].Content)
			if messages[i].Role == "user" {
				break
			}
		}
	case text.Exists() || req.Fields["input"].Exists():
		s.Outline(h, text)
		s.Outline(h, req.Fields["input"])
	default:
		_, _ = h.Write([]byte(x.out.ID))
	}
	return h.Sum64()
}

// unsteeredRequest is what is kept of an unsteered request: what the decision knew about all workers.
type unsteeredRequest struct {
	estimates    []slotEstimate
	groupPrompts []groupPrompt // by group; nil once the request is placed
	chosen       int           // index into estimates; -1: the request was not read
	rate         float64       // mean of all known rates
	session      string
}

// estimateFor returns the estimate for a slot; nil: not known.
func (u *unsteeredRequest) estimateFor(slot *fleet.Slot) *slotEstimate {
	if i := slices.IndexFunc(u.estimates, func(s slotEstimate) bool { return s.slot == slot }); i >= 0 {
		return &u.estimates[i]
	}
	return nil
}

// recordEstimates records the estimates of a group's candidates, whose Slot indexes slots: x.known or x.slots.
func (x *planner) recordEstimates(group int, slots []*fleet.Slot, cands ...choose.Candidate) {
	if x.steers {
		return
	}
	if x.estimates == nil {
		x.estimates = make([]slotEstimate, 0, len(x.known))
	}
	for i := range cands {
		x.estimates = append(x.estimates, x.estimateOf(group, slots[cands[i].Slot], &cands[i]))
	}
}

// bookUnsteered books an unsteered request: on no slot yet, unless Envoy cannot pick. A request that was not read keeps no
// prompts to book later.
func (r *Router) bookUnsteered(x *planner) {
	b := &bookingRecord{client: x.req.Client, model: x.out.Model, arm: x.out.Arm, cachedTokens: -1}
	chosen := slices.IndexFunc(x.estimates, func(s slotEstimate) bool { return s.slot == x.chosen })
	b.unsteered = &unsteeredRequest{estimates: x.estimates, chosen: chosen, rate: choose.FleetOf(x.mem.candidates).Rate}
	work, kept := ledger.Booking{Bytes: estimateBytes * len(x.estimates)}, b.unsteered
	if kept.chosen >= 0 {
		kept.session = strings.Clone(x.session)
		kept.groupPrompts = make([]groupPrompt, len(x.mem.blocks))
		for group := range kept.groupPrompts {
			if x.mem.blocks[group].hasWorkers {
				kept.groupPrompts[group] = x.groupPromptOf(group)
				work.Bytes += 4*len(kept.groupPrompts[group].prompt.IDs) + 8*2*len(kept.groupPrompts[group].locals)
			}
		}
	}
	work.OnPlaced = func(at *ledger.Booking) { r.placeBooking(b, at) }
	work.Slot = x.picked
	if work.Slot != nil {
		r.placeBooking(b, &work)
	}
	r.openBooking(x, b, work)
	if work.Slot != nil {
		r.recordUnsteered(b, x.out.ID, x.now)
	}
}

const estimateBytes = 80

// pickTargets names the targets that a request of unknown content would get, and picks the first slot. It leaves the choice unchanged.
func (x *planner) pickTargets() {
	chosen, ranked, candidates, counted := x.chosen, x.ranked, x.mem.candidates, x.tally
	x.mem.candidates = nil
	for i := range x.slots {
		x.mem.candidates = append(x.mem.candidates, x.candidate(i, 0))
	}
	if x.rank() {
		x.setTargets()
		x.picked = x.chosen
	}
	x.chosen, x.ranked, x.mem.candidates, x.tally = chosen, ranked, candidates, counted
}

// placeBooking fills in a booking that has got its slot. The Fleet may call it.
func (r *Router) placeBooking(b *bookingRecord, at *ledger.Booking) {
	b.slot = at.Slot
	if st := b.unsteered.estimateFor(at.Slot); st != nil && b.unsteered.groupPrompts != nil {
		work := r.fillBooking(b, st, &b.unsteered.groupPrompts[st.group])
		at.Tokens, at.Fetch, at.Context, at.Locals, at.From, at.Seen = work.Tokens, work.Fetch, work.Context, work.Locals, work.From, work.Seen
		if r.opt.Index.Stores(st.slot.ID) != st.storesAtDecision { // its events may have come already and will not come again
			at.Locals, at.Seen = nil, nil
		}
	}
}

// recordUnsteered records predictions, images and the audit for an unsteered request, once its slot is known.
func (r *Router) recordUnsteered(b *bookingRecord, id string, now time.Time) {
	if st := b.unsteered.estimateFor(b.slot); st != nil && b.unsteered.groupPrompts != nil {
		a := &b.unsteered.groupPrompts[st.group]
		r.recordPredictions(b, st, a, now)
		at := placing{alone: b.slot.Worker.Role == fleet.Any}
		for i := range b.unsteered.estimates {
			at.most = max(at.most, b.unsteered.estimates[i].predicted)
		}
		r.registerExpectation(b, a, id, b.unsteered.session, at)
	}
	b.unsteered.groupPrompts = nil
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
	w := &decisionlog.Hypothetical{Cached: chosen.expectedHit(b.promptTokens, b.blockSize),
		UsedCached: st.expectedHit(b.promptTokens, b.blockSize), Encode: st.encode - chosen.encode, Rate: st.rate}
	if w.Rate == 0 {
		w.Rate = b.unsteered.rate
	}
	return w
}

// reportEnd adds an ended request to the report.
func (r *Router) reportEnd(e *end) {
	q := report.Request{Arm: e.arm, Model: e.model, OK: e.ok(), Prompt: e.promptTokens, Cached: e.o.CachedTokens,
		Counted: e.o.CachedTokens >= 0, FirstByte: e.o.FirstByte, End: e.took, Would: e.would}
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
