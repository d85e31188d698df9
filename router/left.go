package router

import (
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/decisionlog"
	"github.com/sightline-router/sightline/router/fleet"
	"github.com/sightline-router/sightline/router/report"
)

// A request that is left alone (mode observe, or beyond the share of mode enforce) is decided like any other, but Envoy is told
// nothing and picks by its own balancing. It is booked at no slot until the access log tells who got it. Then it is booked there,
// with what the decision knew about that worker, so that load, predictions and the audit follow what really happens. The choice
// is kept for the report.
//
//	decide ─▶ standings of all workers, kept ── Started, at an address ─▶ place: the booking is that worker's ─▶ settle: predictions, pictures, audit
//
// The split is by conversation. It is the same in all replicas and after a restart, and a larger share of steered requests keeps
// those that were steered before.

// arm returns a request's arm before its content is known.
func (r *Router) arm() report.Arm {
	if r.opt.Left >= 1 {
		return report.Left
	}
	return report.Steered
}

// takeSide decides whether the request is left alone.
func (x *decision) takeSide() {
	if left := x.opt.Left; left > 0 && left < 1 {
		if spread(x.front()) >= 1-left {
			x.out.Arm = report.Left
		}
	}
}

// bound takes a request that only the worker keeping an answer can serve out of the split. In mode observe it is left alone too.
func (x *decision) bound() {
	if x.opt.Left < 1 {
		x.out.Arm = ""
	}
}

func (x *decision) left() bool { return x.out.Arm == report.Left }

// spread maps numbers evenly to [0, 1).
func spread(n uint64) float64 {
	n = (n ^ n>>30) * 0xBF58476D1CE4E5B9
	n = (n ^ n>>27) * 0x94D049BB133111EB
	return float64((n^n>>31)>>11) / (1 << 53)
}

// front returns a hash of what stays the same in a conversation from turn to turn: its session or else its messages up to the
// user's first. The first blocks do not identify a conversation, since those of one service share them. A prompt that is a single
// text is its own conversation, and so is a request that was not read.
func (x *decision) front() uint64 {
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
			if s.Outline(h, messages[i].Content); messages[i].Role == "user" {
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

// untouched is what is kept of a request that is left alone: what the decision knew about all workers.
type untouched struct {
	standings []standing
	asked     []asked // by class; nil once the request is placed
	chosen    int     // index into standings; -1: the request was not read
	rate      float64 // mean of all known rates
	session   string
}

// of returns the standing of a slot; nil: not known.
func (u *untouched) of(slot *fleet.Slot) *standing {
	if i := slices.IndexFunc(u.standings, func(s standing) bool { return s.slot == slot }); i >= 0 {
		return &u.standings[i]
	}
	return nil
}

// stand records the standings of a class's candidates, whose Slot indexes slots: x.known or x.slots.
func (x *decision) stand(class int, slots []*fleet.Slot, cands ...choose.Candidate) {
	if !x.left() {
		return
	}
	if x.standings == nil {
		x.standings = make([]standing, 0, len(x.known))
	}
	for i := range cands {
		x.standings = append(x.standings, x.standingOf(class, slots[cands[i].Slot], &cands[i]))
	}
}

// leave books a request that is left alone, on no slot. A request that was not read keeps no prompts to book later.
func (x *decision) leave(b *booked) {
	b.cached = -1
	b.left = &untouched{standings: x.standings, chosen: slices.IndexFunc(x.standings, func(s standing) bool { return s.slot == x.chosen }), rate: choose.FleetOf(x.mem.candidates).Rate}
	work, kept := fleet.Booking{Bytes: standingBytes * len(x.standings)}, b.left
	if kept.chosen >= 0 {
		kept.session = strings.Clone(x.auditSession(slices.ContainsFunc(x.model.classes, func(c servedClass) bool { return c.sessions })))
		kept.asked = make([]asked, len(x.model.classes))
		for class := range kept.asked {
			if x.mem.blocks[class].wanted {
				kept.asked[class] = x.askedOf(class)
				work.Bytes += 4*len(kept.asked[class].prompt.IDs) + 8*2*len(kept.asked[class].locals)
			}
		}
	}
	work.Place = func(at *fleet.Booking) { x.Router.place(b, at) }
	if x.req.MustPick && len(x.slots) > 0 {
		work.Slot = x.pick()
		x.place(b, &work)
	}
	x.hold(b, work)
	if work.Slot != nil {
		x.settle(b, x.out.ID, x.now)
	}
}

const standingBytes = 80

// pick names the targets that a request of unknown content would get, and returns the first slot. It leaves the choice unchanged.
func (x *decision) pick() *fleet.Slot {
	chosen, ranked, candidates := x.chosen, x.ranked, x.mem.candidates
	defer func() { x.chosen, x.ranked, x.mem.candidates = chosen, ranked, candidates }()
	x.mem.candidates = nil
	for i := range x.slots {
		x.mem.candidates = append(x.mem.candidates, x.candidate(i))
	}
	x.rank()
	x.target()
	return x.chosen
}

// place fills in a booking that has got its slot. The Fleet may call it.
func (r *Router) place(b *booked, at *fleet.Booking) {
	b.slot = at.Slot
	if st := b.left.of(at.Slot); st != nil && b.left.asked != nil {
		work := r.at(b, st, &b.left.asked[st.class])
		at.Tokens, at.Fetch, at.Context, at.Locals, at.From = work.Tokens, work.Fetch, work.Context, work.Locals, work.From
		if r.opt.Index.Stores(st.slot.ID) != st.stores { // its events may have come already and will not come again
			at.Locals = nil
		}
	}
}

// settle records predictions, pictures and the audit for a request that was left alone, once its slot is known.
func (r *Router) settle(b *booked, id string, now time.Time) {
	if st := b.left.of(b.slot); st != nil && b.left.asked != nil {
		a := &b.left.asked[st.class]
		r.remember(b, st, a, now)
		if !a.unread {
			r.expect(b, a, id, b.left.session)
		}
	}
	b.left.asked = nil
}

// would compares the choice for a request that was left alone with the slot that served it; nil: not known.
func (b *booked) would(used *fleet.Slot) *decisionlog.Would {
	if b.left == nil || b.left.chosen < 0 || b.tokens == 0 {
		return nil
	}
	st, chosen := b.left.of(used), &b.left.standings[b.left.chosen]
	if st == nil {
		return nil
	}
	w := &decisionlog.Would{Cached: chosen.cached(b.tokens, b.size), UsedCached: st.cached(b.tokens, b.size), Encode: st.encode - chosen.encode, Rate: st.rate}
	if w.Rate == 0 {
		w.Rate = b.left.rate
	}
	return w
}

// count adds an ended request to the report. known: it ended at the slot where it is booked.
func (r *Router) count(b *booked, at *fleet.Booking, known bool, o Outcome, would *decisionlog.Would) {
	q := report.Request{Arm: b.arm, OK: o.Code >= 200 && o.Code < 400, Prompt: b.tokens, Cached: o.CachedTokens, Counted: o.CachedTokens >= 0,
		FirstByte: o.FirstByte, End: r.opt.Now().Sub(at.At), Would: would}
	if would != nil && !q.Counted {
		q.Cached = would.UsedCached
	} else if known && at.Slot == b.slot && !q.Counted {
		q.Cached = b.cached
	}
	r.opt.Report.Add(q, at.At)
}
