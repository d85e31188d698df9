package router

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/learned"
	"github.com/sightline-router/sightline/router/speculative"
	"github.com/sightline-router/sightline/workers/fleet"
)

// plan is what one request comes to: the answer, what to book, and what to count. Making it books and counts none of this: a commit
// (commit.go) does. Making it has these effects outside: a request that waits takes a place among those that wait and is counted there
// (pending.go, admission.go); images are fetched; another replica may be asked; and what is recalled counts as recently used.
type plan struct {
	*policy
	out    Decision
	now    time.Time
	unread bool // chosen by load alone
	servedName
	known     []*fleet.Slot // slots that may get the request at some time
	slots     []*fleet.Slot // those of known that may get it now; set by keepAvailable
	trial     *fleet.Worker // a worker among slots that gets this request as its trial; nil: none
	tieSeed   uint64        // breaks ties
	ranked    []choose.Candidate
	chosen    *fleet.Slot    // slot of ranked[0]; nil: no worker is known
	decode    *fleet.Slot    // slot that decodes, if another than chosen
	picked    *fleet.Slot    // slot of an unsteered request where Envoy cannot pick; nil otherwise
	estimates []slotEstimate // of all workers, for an unsteered request
	encodings []encoding     // what encode workers are to do
	session   string         // for the audit
	tally     tally
}

// tally is what a plan counts and logs when it is carried out.
type tally struct {
	removed             []string // fields removed from the body, by the table's name
	answer              string   // label of metrics.storedAnswers; "": no stored answer is referred to
	answerID            string   // the answer, if its worker is known
	deadline            string   // label of metrics.deadlines; "": the client gave none
	shed                string   // label of metrics.shed; "": it was not
	noPrefill, noEncode bool     // no worker of that role was available
	fewerRetries        bool     // candidates were left out because they need other body edits
	unreadWhy           string   // a warning: why the request is routed by load
}

// planner makes a plan, from the state and one request, in two steps: prepare reads the request, and finish chooses a worker.
type planner struct {
	*state    // opt, lanes, learning, and what is known of workers: predicted, sightings, fronts, encodeQueues, adapters, answers
	*serving  // the configuration: names, onlyModel, maxInFlight, predictedTTL
	*policies // steered and unsteered, of which plan has one
	plan      // what it makes; with policy: arm, steers, waiters, tries, commit; with servedName: model, adapter

	req            *Request
	mem            *scratch
	cleanEdits     []body.Edit // edits that remove what a client must not say
	renamed        string      // the model's name that the edits put into the body; "": they leave the client's
	cleaned        bool        // the body is safe to pass on with out.Edits, whatever happens
	opened         bool        // known and slots are set
	lane           *lane       // where it has room to be read; nil: none taken
	weight         int         // how much
	unsteeredShare float64     // of the conversations
	booked         bool        // its commit has booked it
	shaped         bool        // parameters of the request shape its prompt
}

// scratch is the memory of one decision, reused.
type scratch struct {
	body         body.Skeleton
	req          body.Request
	readings     []reading // by servedClass.reading
	blocks       []blocks  // by group: see read.go
	groups       []uint16  // by slot: its group
	longest      int       // tokens of the longest prompt of all readings
	matches      indexer.Matches
	overlap      []overlap           // by slot; entries that are not in matches are 0
	reach        speculative.Reaches // by candidate of the current group
	bestExcluded bestExcluded
	candidates   []choose.Candidate
	topHolder    topHolder          // of all candidates, if workers fetch from each other
	decoders     []choose.Candidate // ranked, if others prefill
	eased        []*fleet.Slot
	encoders     []*fleet.Slot // healthy ones
	paths        learned.Paths // of the request, if it is remembered
	pathChain    []uint64      // the numbers of its steps, if they were looked up
	sent         speculative.Reaches
}

func (s *scratch) release() {
	s.body.Release()
	s.req = body.Request{}
	clear(s.readings)
	for i := range s.blocks {
		s.blocks[i].cut = reading{}
	}
	s.blocks = s.blocks[:0] // a request that is not read looks nothing up
	s.paths.Reset()
	clear(s.eased[:cap(s.eased)])
	clear(s.encoders[:cap(s.encoders)])
}

// newPlanner begins a plan.
func (r *Router) newPlanner(req *Request, ways *policies, unsteeredShare float64, mem *scratch) *planner {
	x := &planner{state: &r.state, serving: r.serving.Load(), policies: ways, unsteeredShare: unsteeredShare, req: req, mem: mem}
	x.now, x.out.ID, x.out.Reason = r.opt.Now(), req.ID, Load
	x.follow(&ways.steered)
	if unsteeredShare >= 1 {
		x.follow(&ways.unsteered)
	}
	return x
}

// prepare takes all steps of a plan but the choice. It sets out.Refuse, or the slots to choose among, of which there may be none. It may
// wait: for a worker, for its turn to be read, for images, for another replica's answer.
func (x *planner) prepare(ctx context.Context) {
	switch {
	case x.req.Stored != "":
		x.settlePolicy(true)
		if x.followAnswer(x.req.Stored) {
			x.placeUnread("the worker that keeps the answer")
		} else {
			x.placeUnread("the worker that keeps the answer is not known")
		}
	case x.req.Body == nil:
		x.settlePolicy(false)
		x.routeByLoad("body not read")
	default:
		x.prepareBody(ctx)
	}
}

// finish makes the choice, unless no worker has a place any more, or none can serve the request: then it returns false. seed breaks ties.
func (x *planner) finish(seed uint64) bool {
	x.tieSeed = seed
	if refusal := x.admit(); refusal != nil {
		x.refuse(refusal)
		return false
	}
	choose := x.choose
	if x.unread {
		choose = x.chooseByLoad
	}
	if choose() {
		return true
	}
	x.slots, x.out.Why = nil, noWorker
	return false
}

// prepareBody prepares a request that has a body.
func (x *planner) prepareBody(ctx context.Context) {
	unread, refusal := x.clean()
	if refusal != nil {
		x.refuse(refusal)
		return
	}
	before := ""
	if unread == nil {
		before, _ = x.mem.body.String(x.mem.req.Fields["previous_response_id"])
	}
	x.settlePolicy(before != "")
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
	if before != "" {
		x.followAnswer(before)
	}
	if refusal := x.keepAvailable(); refusal != nil {
		x.refuse(refusal)
		return
	}
	lane, busy := x.lanes.laneFor(&x.mem.req, x.out.BodyBytes)
	need, weight := memoryFor(&x.mem.req)
	if !lane.tryAcquire(x.req.Client, weight) && !x.awaitLane(ctx, lane, weight) {
		x.routeByLoad(busy)
		return
	}
	x.lane, x.weight = lane, weight
	makeRoom(need)
	x.read(ctx)
	if why, theirs := x.unreadable(); theirs {
		x.placeUnread(why)
		return
	} else if why != "" {
		x.routeByLoad(why)
		return
	}
	x.hashPrompts()
	if len(x.slots) == 0 {
		x.addEdits(x.mem.readings[0].edits)
		x.out.Why = noWorker
	}
}

// leaveLane ends the reading: the plan is carried out.
func (x *planner) leaveLane() {
	if x.lane != nil {
		x.lane.release(x.req.Client, x.weight)
	}
}

// awaitLane waits for a body's turn. While it waits, a large parsed skeleton, which takes up to ten times its size, is dropped; it is
// parsed again afterwards. So a thousand waiting requests keep no more than their bytes.
func (x *planner) awaitLane(ctx context.Context, lane *lane, weight int) bool {
	if len(x.mem.body.JSON()) < largeSkeleton {
		return lane.acquire(ctx, x.req.Client, weight)
	}
	x.mem.body, x.mem.req = body.Skeleton{}, body.Request{}
	ok := lane.acquire(ctx, x.req.Client, weight)
	defer x.lanes.scan(x.req.Client, x.out.BodyBytes)()
	_ = body.Read(x.req.Body, &x.mem.body, &x.mem.req) // gave no error before
	x.applyHead()
	return ok
}

// applyHead adds what is not said by the body to what is read of it: the client, the salt that is put into it, and the model's new name.
func (x *planner) applyHead() {
	x.mem.req.Model = cmp.Or(x.renamed, x.mem.req.Model)
	x.mem.req.Client = x.req.Client
	if x.req.Salt != nil {
		x.mem.req.SetSalt(*x.req.Salt)
	}
}

// clean removes what a client must not say from the body. unread is the reason if the rest of the body cannot be read.
func (x *planner) clean() (unread error, refusal *Refusal) {
	for _, piece := range x.req.Body {
		x.out.BodyBytes += len(piece)
	}
	defer x.lanes.scan(x.req.Client, x.out.BodyBytes)()
	unread = body.Read(x.req.Body, &x.mem.body, &x.mem.req)
	if x.opt.RefuseUnread && errors.Is(unread, body.ErrLarge) {
		return unread, &Refusal{Status: http.StatusRequestEntityTooLarge, Message: unread.Error()}
	}
	var err error
	x.cleanEdits, err = body.Clean(x.req.Body, &x.mem.body, unread, x.req.Salt, x.opt.CacheHints, x.removed)
	if err != nil {
		refusal = &Refusal{Status: http.StatusBadRequest, Message: err.Error()}
		var refused *body.Refused
		if errors.As(err, &refused) {
			refusal = &Refusal{Status: refused.Status, Message: refused.Reason}
		}
		return unread, refusal
	}
	if x.opt.AskUsage && unread == nil {
		if e, ok := body.AskUsage(x.req.Path, &x.mem.req); ok {
			x.addEdits([]body.Edit{e})
			x.cleanEdits = x.out.Edits
		}
	}
	if x.opt.Rewrite != nil && unread == nil && x.mem.req.Model != "" {
		x.rename()
	}
	x.out.Edits, x.cleaned = x.cleanEdits, true
	x.applyHead()
	return unread, nil
}

// rename has the request ask for another model, if Options.Rewrite says so. Its draw is independent of the one for unsteered conversations.
func (x *planner) rename() {
	name := x.opt.Rewrite(x.mem.req.Model, func() float64 { return unitInterval(x.conversationHash() ^ 0x7265_6e61_6d65) })
	if name == x.mem.req.Model {
		return
	}
	if edits := body.Rename(&x.mem.req, name); edits != nil {
		x.addEdits(edits)
		x.cleanEdits, x.renamed = x.out.Edits, name
	}
}

func (x *planner) removed(field string) { x.tally.removed = append(x.tally.removed, field) }

// findModel looks the request's model up. why is the reason if it cannot be used. A request that names no model asks for the route's
// model, or for the only one, as in the engines (vLLM 0.32, _is_model_supported in entrypoints/serve/engine/serving.py).
func (x *planner) findModel() (why string) {
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
func (x *planner) needsName() bool {
	return x.mem.req.Model == "" && len(x.names) > 0 && x.steers
}

// findListedAdapter finds an adapter that is not configured but that a worker lists.
func (x *planner) findListedAdapter(adapter string) (name servedName, ok bool) {
	model, adapter := x.opt.Fleet.ModelOf(adapter)
	name, ok = x.names[model]
	name.adapter = adapter
	return name, ok && adapter != ""
}

// routeByLoad places a request that could not be read although it should have been; a warning will say why.
func (x *planner) routeByLoad(why string) {
	x.tally.unreadWhy = why
	x.placeUnread(why)
}

// placeUnread places a request of which at most the model is known.
func (x *planner) placeUnread(why string) {
	if !x.opened {
		if refusal := x.keepAvailable(); refusal != nil {
			x.refuse(refusal)
			return
		}
	}
	x.unread, x.out.Reason, x.out.Why = true, Load, why
	if len(x.slots) == 0 {
		x.out.Why = noWorker
	}
}

// refuse answers the client instead of routing.
func (x *planner) refuse(refusal *Refusal) {
	x.out.Edits, x.out.Arm, x.out.Reason, x.out.Why, x.out.Refuse = nil, "", RefusedByUs, refusal.Message, refusal
}

// restart begins the plan anew after a panic, with what is certain: the cleaned body, and the model if it was known. Before the cleaning
// the client is refused: a body that crashes our cleaning might crash an engine, and its content is unknown.
func (x *planner) restart() {
	x.mem = new(scratch) // the old one may be corrupt
	const why = "internal error"
	if x.req.Body != nil && !x.cleaned {
		x.refuse(&Refusal{Status: http.StatusBadRequest, Message: why})
		return
	}
	x.out = Decision{ID: x.out.ID, Arm: x.out.Arm, Model: x.out.Model, Edits: x.out.Edits, BodyBytes: x.out.BodyBytes}
	x.plan = plan{policy: x.policy, out: x.out, now: x.now, servedName: x.servedName, tally: x.tally}
	x.opened = false
	x.routeByLoad(why)
}
