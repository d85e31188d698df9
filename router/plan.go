package router

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/workers/fleet"
)

// plan is what one request comes to. It is made of three values, each from the one before (in scratch, whose memory is used again), and a
// list of the slots that may get the request:
//
//	read(request) ─▶ reading      reading.go: what each kind of engine makes of it; no worker is known
//	              ─▶ shortlist    shortlist.go: the slots that may get it, whatever its prompt
//	look(reading) ─▶ overlap      overlap.go: what each slot has of the prompt; no load is known
//	choose(overlap) ─▶ Choice     package choose: candidates with their costs, ranked; no effects
//	             ─▶ Decision      answer.go: what Envoy and people are told
//
// Making it books and counts nothing: a commit (commit.go) does. It has these effects outside: a request that waits takes a place among
// those that wait and is counted there (pending.go, readinglanes.go); images are fetched; another replica may be asked; what is recalled
// counts as recently used; and the first plan after the deployment's secret was replaced forgets what was learned under the old one.
type plan struct {
	*state
	serving        *serving
	ways           *ways // steered and unsteered, of which the plan has one
	way            *way
	unsteeredShare float64 // of the conversations
	req            *Request
	mem            *scratch
	list           shortlist
	now, came      time.Time // which is later if the request has waited; when it came
	steps          int       // of priority: above or below 0
	due            int64     // when it is due, in Unix milliseconds; 0: its engine takes no order
	unread         bool      // chosen by load alone
	seed           uint64
	lane           *lane // where it has room to be read; nil: none taken
	weight         int   // how much
	out            Decision
	picked         *fleet.Slot       // slot of an unsteered request where Envoy cannot pick; nil otherwise
	encodings      []choose.Encoding // what encode workers are to do
	session        string            // for the audit
	booked         bool              // its commit has booked it
	tally          tally
}

// tally is what a plan counts and logs when it is carried out, besides what its values say.
type tally struct {
	noEncode     bool   // no encode worker was available
	fewerRetries bool   // candidates were left out because they need other body edits
	unreadWhy    string // a warning: why the request is routed by load
}

// scratch is the memory of one decision, reused.
type scratch struct {
	reading  reading
	overlap  overlap
	in       choose.Input
	choice   choose.Choice
	eased    []*fleet.Slot
	encoders []*fleet.Slot // healthy ones
}

func (s *scratch) release() {
	s.reading.release()
	s.overlap.release()
	s.in, s.choice = choose.Input{}, choose.Choice{Candidates: s.choice.Candidates[:0], Decoders: s.choice.Decoders[:0]}
	clear(s.eased[:cap(s.eased)])
	clear(s.encoders[:cap(s.encoders)])
}

// newPlan begins a plan.
func (r *Router) newPlan(req *Request, ways *ways, unsteeredShare float64, mem *scratch) *plan {
	p := &plan{state: &r.state, serving: r.serving.Load(), ways: ways, unsteeredShare: unsteeredShare, req: req, mem: mem}
	p.begin(r.opt.Now())
	p.came = p.now
	p.follow(&ways.steered)
	if unsteeredShare >= 1 {
		p.follow(&ways.unsteered)
	}
	p.list.only = req.Only
	p.mem.reading.session = req.Session
	return p
}

// begin begins the plan, or begins it again.
func (p *plan) begin(now time.Time) {
	p.now, p.out.ID, p.out.Reason = now, p.req.ID, Load
	p.list = shortlist{places: places{p.serving.maxInFlight, p.opt.Ledger}, req: p.req, way: p.way, pool: p.req.Pool, only: p.list.only,
		now: now, opt: &p.opt, answers: p.answers, eased: p.mem.eased[:0]}
}

// follow has the plan be carried out in a way, and counted for its arm.
func (p *plan) follow(w *way) {
	p.way, p.list.way, p.out.Arm = w, w, w.arm
}

// settleWay settles whether the request is steered, once its conversation is known. One that only a single worker can serve, which
// keeps an answer, is steered and counts for no arm. If no request is steered, this one is not.
func (p *plan) settleWay(onlyOneWorker bool) {
	switch share := p.unsteeredShare; {
	case share >= 1:
	case onlyOneWorker:
		p.out.Arm = ""
	case share > 0 && unitInterval(p.mem.reading.conversationHash(p.req.ID)) >= 1-share:
		p.follow(&p.ways.unsteered)
	}
}

// prepare takes all steps of a plan but the choice. It sets out.Refuse, or lists the slots to choose among, of which there may be none. It
// may wait: for a worker, for its turn to be read, for images, for another replica's answer.
func (p *plan) prepare(ctx context.Context) {
	switch {
	case p.req.Stored != "":
		p.settleWay(true)
		p.list.answer = p.req.Stored
		p.routeUnread("the worker that keeps the answer")
		if !p.list.found && p.out.Why != noWorker {
			p.out.Why = "the worker that keeps the answer is not known"
		}
	case p.req.Body == nil:
		p.settleWay(false)
		p.routeByLoad("body not read")
	default:
		p.prepareBody(ctx)
	}
}

// prepareBody prepares a request that has a body.
func (p *plan) prepareBody(ctx context.Context) {
	r, in := &p.mem.reading, readInput{serving: p.serving, lanes: p.lanes, opt: &p.opt, listed: p.listed}
	unread, refusal := r.open(&in, p.req)
	p.out.BodyBytes = r.bytes
	if refusal != nil {
		p.refuse(refusal)
		return
	}
	p.out.Edits = r.cleanEdits
	before := ""
	if unread == nil {
		before, _ = r.body.String(r.req.Fields["previous_response_id"])
	}
	p.settleWay(before != "")
	if errors.Is(unread, body.ErrObject) || errors.Is(unread, body.ErrMessages) { // the engine reports the error to the client
		p.routeUnread(unread.Error())
		return
	}
	if unread != nil {
		p.routeByLoad(unread.Error())
		return
	}
	if !p.findModel(&in) {
		return
	}
	p.list.answer, p.list.waits = before, true
	if !p.shorten(ctx) || !p.awaitTurn(ctx) {
		return
	}
	look := p.looking()
	p.mem.overlap.begin(&look)
	r.readAs(ctx, p.req.Path)
	if why, theirs := r.unreadable(p.learning != nil); why != "" {
		if r.editsAgree() { // any worker can read the result
			p.out.Edits = r.withEdits(r.first().edits)
		}
		if theirs {
			p.routeUnread(why)
		} else {
			p.routeByLoad(why)
		}
		return
	}
	p.hash(&look)
}

// findModel looks the request's model up. It returns false if the request is refused or routed without it.
func (p *plan) findModel(in *readInput) bool {
	r := &p.mem.reading
	if why := r.nameModel(in, p.req.Pool); why != "" {
		p.out.Asked = r.asked
		if r.req.Model == "" && len(p.serving.names) > 0 && p.way.steers { // any of several would be a guess
			p.refuse(&Refusal{Status: http.StatusNotFound, Message: noModelNamed})
		} else {
			p.routeByLoad(why)
		}
		return false
	}
	p.out.Model = r.model.Name
	return true
}

// noModelNamed is the answer to a request that names no model where several are served.
const noModelNamed = "the request names no model, and several are served here: set model to one of the names that GET /v1/models lists"

// shorten lists the slots that may get the request. It returns false if the request is refused.
func (p *plan) shorten(ctx context.Context) bool {
	l := &p.list
	l.model, l.adapter = p.out.Model, p.mem.reading.adapter
	l.pool = cmp.Or(l.pool, l.model)
	refusal := l.make(ctx)
	p.now, p.mem.eased = l.now, l.eased
	if refusal != nil {
		p.refuse(refusal)
	}
	return refusal == nil
}

// awaitTurn waits until there is room to read the body, and returns false if it is routed by load instead. While it waits, a large parsed
// skeleton is dropped; it is parsed again afterwards. So a thousand waiting requests keep no more than their bytes.
func (p *plan) awaitTurn(ctx context.Context) bool {
	r, c := &p.mem.reading, p.req.Client
	lane, busy := p.lanes.laneFor(&r.req, r.bytes)
	need, weight := memoryFor(&r.req)
	ok := lane.TryTake(c, int64(min(weight, lane.room)))
	if !ok && len(r.body.JSON()) < largeSkeleton {
		ok = lane.acquire(ctx, c, weight)
	} else if !ok {
		r.drop()
		ok = lane.acquire(ctx, c, weight)
		r.parseAgain(p.req, p.lanes)
	}
	if !ok {
		p.routeByLoad(busy)
		return false
	}
	p.lane, p.weight = lane, weight
	makeRoom(need)
	return true
}

// leaveLane ends the reading: the plan is carried out.
func (p *plan) leaveLane() {
	if p.lane != nil {
		p.lane.release(p.req.Client, p.weight)
	}
}

// looking returns what an overlap is made from.
func (p *plan) looking() lookInput {
	return lookInput{reading: &p.mem.reading, selection: &p.list.selection, memory: &p.memory, index: p.opt.Index, secret: p.opt.Secret,
		path: p.req.Path, tenant: p.req.Tenant, now: p.now, all: !p.way.steers}
}

// hash computes the blocks of the prompt that was read.
func (p *plan) hash(in *lookInput) {
	p.mem.overlap.hash(in)
	if len(p.list.slots) == 0 {
		p.out.Edits, p.out.Why = p.mem.reading.withEdits(p.mem.reading.byEngine[0].edits), noWorker
	}
}

// finish makes the choice, unless no worker has a place any more, or none can serve the request: then it returns false. seed breaks ties.
func (p *plan) finish(seed uint64) bool {
	p.seed = seed
	if refusal := p.list.admit(); refusal != nil {
		p.refuse(refusal)
		return false
	}
	o := &p.mem.overlap
	if p.unread {
		o.matchNothing(&p.list.selection)
	} else {
		look := p.looking()
		o.match(&look)
	}
	p.mem.choice.Make(p.choosing())
	if p.mem.choice.Chosen == nil {
		p.list.slots, p.out.Why = nil, noWorker
		return false
	}
	if p.unread {
		p.nameTargets()
	} else {
		p.answer()
	}
	p.nameDue()
	return true
}

// choosing returns what the choice is made from.
func (p *plan) choosing() *choose.Input {
	in, o, r := &p.mem.in, &p.mem.overlap, &p.mem.reading
	*in = choose.Input{Slots: p.list.slots, Overlaps: o.slots, Trial: p.list.trial, Now: p.now, Draw: tieBreak(p.seed + p.opt.Seed),
		FirstToken: p.req.FirstToken, FetchKV: r.model != nil && r.model.FetchKV && p.way.steers}
	if !p.unread {
		p.mem.encoders = p.mem.encoders[:0]
		if p.way.steers {
			p.mem.encoders = appendHealthy(p.mem.encoders, p.opt.Fleet.Encoders(r.model.Name))
		}
		in.Adapter, in.MaxLoRAs, in.Adapters = r.adapter, r.model.MaxLoRAs, p.adapters
		in.Encoders, in.EncodeQueues = p.mem.encoders, p.encodeQueues
	}
	return in
}

// appendHealthy appends the slots of healthy workers that are in service.
func appendHealthy(list, slots []*fleet.Slot) []*fleet.Slot {
	for _, slot := range slots {
		if slot.Worker.IsHealthy() && slot.Worker.InService() {
			list = append(list, slot)
		}
	}
	return list
}

// tieBreak returns a pseudo-random number that differs by decision and by router.
func tieBreak(seed uint64) uint64 {
	d := seed * 0x9E3779B97F4A7C15
	return d ^ d>>32
}

// routeByLoad routes a request that could not be read although it should have been; a warning will say why.
func (p *plan) routeByLoad(why string) {
	p.tally.unreadWhy = why
	p.routeUnread(why)
}

// routeUnread routes a request of which at most the model is known.
func (p *plan) routeUnread(why string) {
	if !p.list.made && !p.shorten(context.Background()) {
		return
	}
	p.unread, p.out.Reason, p.out.Why = true, Load, why
	if len(p.list.slots) == 0 {
		p.out.Why = noWorker
	}
}

// refuse answers the client instead of routing.
func (p *plan) refuse(refusal *Refusal) {
	p.out.Edits, p.out.Arm, p.out.Reason, p.out.Why, p.out.Refuse = nil, "", RefusedByUs, refusal.Message, refusal
}

// restart begins the plan anew after a panic, with what is certain: the cleaned body, and the model if it was known. Before the cleaning
// the client is refused: a body that crashes our cleaning might crash an engine, and its content is unknown.
func (p *plan) restart() {
	old := &p.mem.reading // the other values may be corrupt
	p.mem = &scratch{reading: reading{servedName: old.servedName, removed: old.removed, cleaned: old.cleaned, session: p.req.Session}}
	const why = "internal error"
	if p.req.Body != nil && !old.cleaned {
		p.refuse(&Refusal{Status: http.StatusBadRequest, Message: why})
		return
	}
	p.out = Decision{ID: p.out.ID, Arm: p.out.Arm, Model: p.out.Model, Edits: p.out.Edits, BodyBytes: p.out.BodyBytes}
	if len(p.out.Edits) == 0 {
		p.out.Edits = old.cleanEdits
	}
	p.picked, p.encodings, p.session = nil, nil, ""
	p.begin(p.now)
	p.routeByLoad(why)
}
