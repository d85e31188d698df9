package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"runtime/debug"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/fleet"
)

// decision is the state of one request while it is decided. Each step adds its results for the next.
type decision struct {
	*Router
	*serving
	req        *Request
	now        time.Time
	out        Decision
	mem        *scratch
	size       int         // bytes of the body
	cleanEdits []body.Edit // edits that remove what a client must not say
	cleaned    bool        // the body is safe to pass on with out.Edits, whatever happens
	servedName
	known    []*fleet.Slot // slots that may get the request at some time
	slots    []*fleet.Slot // those of known that may get it now; set by open
	opened   bool
	trial    *fleet.Worker // a worker among slots that gets this request as its trial; nil: none
	tieSeed  uint64        // breaks ties
	ranked   []choose.Candidate
	chosen   *fleet.Slot // slot of ranked[0]; nil: no worker is known
	decode   *fleet.Slot // slot that decodes, if another than chosen
	isBooked bool        // booked
	dryRun   bool        // a decision without effects: see Consider

	estimates []slotEstimate // for a request that is left alone
}

// scratch is the memory of one decision, reused.
type scratch struct {
	body         body.Skeleton
	req          body.Request
	readings     []reading // by servedClass.reading
	blocks       []blocks  // by class, and further ones for slots of a class whose blocks are of another form
	classes      []uint16  // by slot: its entry of blocks
	longest      int       // tokens of the longest prompt of all readings
	matches      indexer.Matches
	overlap      []overlap // by slot; entries that are not in matches are 0
	reach        reaches   // by candidate of the current class
	bestExcluded bestExcluded
	candidates   []choose.Candidate
	topHolder    topHolder          // of all candidates, if workers fetch from each other
	decoders     []choose.Candidate // ranked, if others prefill
	eased        []*fleet.Slot
	encoders     []*fleet.Slot // healthy ones
}

// Decide ranks the workers for one request. It never fails: a request that cannot be read is routed by load, and Why says so.
// When ctx ends it returns soon, with the best Reason reached so far. The body is cleaned before anything else, and the decision
// has the cleaning edits whatever happens after.
func (r *Router) Decide(ctx context.Context, req *Request) Decision {
	x := &decision{Router: r, serving: r.serving.Load(), req: req, now: r.opt.Now(), out: Decision{ID: req.ID, Arm: r.arm(), Reason: Load, source: req.Source}, mem: r.scratch.Get().(*scratch)}
	r.opt.Fleet.Expire()
	x.decide(ctx)
	x.rankInBody()
	x.logUnbooked()
	took := r.opt.Now().Sub(x.now)
	r.metrics.countDecided(&x.out, took)
	if r.opt.Decided != nil {
		r.opt.Decided(&x.out, took)
	}
	r.recent.add(x.recentEntry(took))
	x.logged(took)
	x.mem.release()
	r.scratch.Put(x.mem)
	return x.out
}

// logged writes one line about the decision at debug level.
func (x *decision) logged(took time.Duration) {
	line := x.unsampledLog.Check(zap.DebugLevel, "decided")
	if line == nil {
		return
	}
	worker := ""
	if len(x.out.Targets) > 0 {
		worker = x.out.Targets[0].Worker
	}
	line.Write(zap.String("id", x.out.ID), zap.String("model", x.out.Model), zap.String("worker", worker), zap.String("reason", string(x.out.Reason)),
		zap.String("why", x.out.Why), zap.Int("prompt_tokens", x.out.PromptTokens), zap.Int("cached_tokens", x.out.CachedTokens), zap.Duration("took", took))
}

func (s *scratch) release() {
	s.body.Release()
	s.req = body.Request{}
	clear(s.readings)
	clear(s.eased[:cap(s.eased)])
	clear(s.encoders[:cap(s.encoders)])
}

func (x *decision) decide(ctx context.Context) {
	defer func() {
		if p := recover(); p != nil {
			x.afterPanic(p)
		}
	}()
	switch {
	case x.req.Stored != "":
		x.excludeFromSplit()
		if x.followAnswer(x.req.Stored) {
			x.placeUnread("the worker that keeps the answer")
		} else {
			x.placeUnread("the worker that keeps the answer is not known")
		}
	case x.req.Body == nil:
		x.assignArm()
		x.routeByLoad("body not read")
	default:
		x.decideBody(ctx)
	}
}

// decideBody decides a request that has a body.
func (x *decision) decideBody(ctx context.Context) {
	unread, refusal := x.clean()
	if refusal != nil {
		x.refuse(refusal)
		return
	}
	x.assignArm()
	if errors.Is(unread, body.ErrObject) || errors.Is(unread, body.ErrMessages) { // the engine reports the error to the client
		x.placeUnread(unread.Error())
		return
	}
	if unread != nil {
		x.routeByLoad(unread.Error())
		return
	}
	if why := x.findModel(); why != "" {
		if x.needsName() {
			x.refuse(&Refusal{Status: http.StatusNotFound, Message: noModelNamed})
			return
		}
		x.routeByLoad(why)
		return
	}
	if refusal := x.awaitWorker(ctx); refusal != nil {
		x.refuse(refusal)
		return
	}
	if before, _ := x.mem.body.String(x.mem.req.Fields["previous_response_id"]); before != "" {
		x.excludeFromSplit()
		x.followAnswer(before)
	}
	if refusal := x.keepAvailable(); refusal != nil {
		x.refuse(refusal)
		return
	}
	lane, busy := x.lanes.laneFor(&x.mem.req, x.size)
	need, weight := memoryFor(&x.mem.req)
	if !lane.tryAcquire(x.req.Client, weight) && !x.awaitLane(ctx, lane, weight) {
		x.routeByLoad(busy)
		return
	}
	defer lane.release(x.req.Client, weight)
	makeRoom(need)
	x.read(ctx)
	if why, theirs := x.unreadable(); theirs {
		x.placeUnread(why)
		return
	} else if why != "" {
		x.routeByLoad(why)
		return
	}
	x.hashAndAskHolders(ctx)
	x.withAdmissionLock(x.choose)
}

// awaitLane waits for a body's turn. While it waits, a large parsed skeleton, which takes up to ten times its size, is dropped; it is
// parsed again afterwards. So a thousand waiting requests keep no more than their bytes.
func (x *decision) awaitLane(ctx context.Context, lane *lane, weight int) bool {
	if len(x.mem.body.JSON()) < largeSkeleton {
		return lane.acquire(ctx, x.req.Client, weight)
	}
	x.mem.body, x.mem.req = body.Skeleton{}, body.Request{}
	ok := lane.acquire(ctx, x.req.Client, weight)
	defer x.lanes.scan(x.req.Client, x.size)()
	_ = body.Read(x.req.Body, &x.mem.body, &x.mem.req) // gave no error before
	x.applyHead()
	return ok
}

// applyHead adds what the request's headers say to what is read of its body: its client, and the salt that is put into it.
func (x *decision) applyHead() {
	x.mem.req.Client = x.req.Client
	if x.req.Salt != nil {
		x.mem.req.SetSalt(*x.req.Salt)
	}
}

// clean removes what a client must not say from the body. unread is the reason if the rest of the body cannot be read.
func (x *decision) clean() (unread error, refusal *Refusal) {
	for _, piece := range x.req.Body {
		x.size += len(piece)
	}
	defer x.lanes.scan(x.req.Client, x.size)()
	unread = body.Read(x.req.Body, &x.mem.body, &x.mem.req)
	if x.opt.RefuseUnread && errors.Is(unread, body.ErrLarge) {
		return unread, &Refusal{Status: http.StatusRequestEntityTooLarge, Message: unread.Error()}
	}
	var err error
	if x.cleanEdits, err = body.Clean(x.req.Body, &x.mem.body, unread, x.req.Salt, x.metrics.fieldRemoved); err != nil {
		refusal = &Refusal{Status: http.StatusBadRequest, Message: err.Error()}
		var refused *body.Refused
		if errors.As(err, &refused) {
			refusal = &Refusal{Status: refused.Status, Message: refused.Reason}
		}
		return unread, refusal
	}
	x.out.Edits, x.cleaned = x.cleanEdits, true
	x.applyHead()
	return unread, nil
}

// findModel looks the request's model up. why is the reason if it cannot be used. A request that names no model asks for the route's
// model, or for the only one, as in the engines (vLLM 0.32, _is_model_supported in entrypoints/serve/engine/serving.py).
func (x *decision) findModel() (why string) {
	asked := x.mem.req.Model
	if asked == "" {
		asked = cmp.Or(x.req.Pool, x.onlyModel)
	}
	name, known := x.names[asked]
	if !known {
		name, known = x.findListedAdapter(asked)
	}
	switch {
	case !known:
		x.out.Asked = sanitizeName(asked)
		if x.out.Asked != "" {
			x.unserved.add(x.out.Asked, x.now)
		}
		return "model unknown"
	case x.req.Pool != "" && x.req.Pool != name.model.Name:
		return "model of another pool" // its own engines answer that they have no such model
	}
	x.servedName, x.out.Model = name, name.model.Name
	return ""
}

// noModelNamed is the answer to a request that names no model where several are served.
const noModelNamed = "the request names no model, and several are served here: set model to one of the names that GET /v1/models lists"

// needsName reports whether the request is refused for naming no model: any of several would be a guess.
func (x *decision) needsName() bool {
	return x.mem.req.Model == "" && len(x.names) > 0 && !x.isUnsteered()
}

// findListedAdapter finds an adapter that is not configured but that a worker lists.
func (x *decision) findListedAdapter(adapter string) (name servedName, ok bool) {
	model, adapter := x.opt.Fleet.ModelOf(adapter)
	name, ok = x.names[model]
	name.adapter = adapter
	return name, ok && adapter != ""
}

// routeByLoad places a request that could not be read although it should have been, and logs why.
func (x *decision) routeByLoad(why string) {
	x.opt.Log.Warn("request routed by load: "+why, zap.String("id", x.out.ID), zap.String("model", x.out.Model), zap.String("asked", x.out.Asked))
	x.placeUnread(why)
}

// placeUnread places a request of which at most the model is known.
func (x *decision) placeUnread(why string) {
	if !x.opened {
		if refusal := x.keepAvailable(); refusal != nil {
			x.refuse(refusal)
			return
		}
	}
	x.out.Reason, x.out.Why = Load, why
	if len(x.slots) == 0 {
		x.out.Why = noWorker
		return
	}
	x.withAdmissionLock(func() {
		x.mem.candidates = x.mem.candidates[:0]
		for i := range x.slots {
			x.mem.candidates = append(x.mem.candidates, x.candidate(i))
		}
		x.rank()
		b := &bookingRecord{model: x.out.Model, arm: x.out.Arm, client: x.req.Client, cachedTokens: -1}
		if x.isUnsteered() {
			x.recordHypothetical()
			x.bookUnsteered(b)
			return
		}
		x.setTargets()
		b.slot = x.chosen
		x.bookChosen(b, fleet.Booking{})
	})
}

// refuse answers the client instead of routing.
func (x *decision) refuse(refusal *Refusal) {
	x.out.Edits, x.out.Arm, x.out.Reason, x.out.Why, x.out.Refuse = nil, "", RefusedByUs, refusal.Message, refusal
}

// afterPanic ends a decision that panicked. After the cleaning, a panic costs only the choice. Before it, the client is refused:
// a body that crashes our cleaning might crash an engine, and its content is unknown. Only runtime errors are logged, since
// another panic's value might quote a prompt.
func (x *decision) afterPanic(p any) {
	text := fmt.Sprintf("%T", p)
	if e, ok := p.(runtime.Error); ok {
		text = e.Error()
	}
	x.opt.Log.Error("panic in a decision", zap.String("panic", text), zap.ByteString("stack", debug.Stack()))
	x.mem = new(scratch) // the old one may be corrupt
	const why = "internal error"
	if x.req.Body != nil && !x.cleaned {
		x.refuse(&Refusal{Status: http.StatusBadRequest, Message: why})
		return
	}
	x.out = Decision{ID: x.out.ID, Arm: x.out.Arm, Model: x.out.Model, Edits: x.out.Edits, source: x.out.source}
	x.opened, x.ranked, x.chosen, x.estimates = false, nil, nil, nil
	x.routeByLoad(why)
}
