// Package router takes the decision: which worker gets a request.
//
//	body ─ mmhash ─▶ block hashes ─ indexer ─▶ overlap per slot ─ pick ─▶ ranked targets and a reason
//
// A candidate is a slot: a worker or, where it has them, one of its data-parallel ranks. The pipeline stands in Decide,
// top to bottom; each step that cannot be taken costs a rung of the ladder (exact, predicted, affinity, load), never the
// request. Observe closes the loop: what Envoy reports moves load and predictions to the worker really used.
package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/fleet"
	"github.com/sightline-router/sightline/router/pick"
)

// Model is one model that requests may name.
type Model struct {
	Name     string
	Aliases  []string // other names for it
	Adapters []string // LoRA adapters: names that requests use in place of the model's
	Prompts  *engine.Live
	Classes  []Class // of workers that read it, or cache it, otherwise
}

// Options are what a Router stands on.
type Options struct {
	Models       []Model
	Fleet        *fleet.Fleet
	MaxInFlight  int // open requests of a slot, at which it gets no more; 0: no limit
	Index        *indexer.Index
	Audit        *audit.Auditor        // nil: predictions are not compared with what workers store
	PredictedTTL time.Duration         // how long a routed prompt counts as held before events confirm it
	Log          *zap.Logger           // nil: silent
	Metrics      prometheus.Registerer // nil: none
	Now          func() time.Time      // nil: time.Now
	// Resync, if set, is called when a slot has found less than its events promised again and again: what the index has of
	// it is in doubt. It must not block.
	Resync func(*fleet.Slot)
}

// Router decides. Safe for concurrent use.
type Router struct {
	opt       Options
	names     map[string]named
	predicted *predictions
	seen      *sightings
	suspects  suspects
	stored    stored
	recent    *recent
	turn      atomic.Uint64
	turns     *turns
	metrics   *metrics
	scratch   sync.Pool
}

type named struct {
	model *offered
	lora  string
}

// offered is a Model with its classes.
type offered struct {
	*Model
	classes classes
}

// New makes a router. Names of models must be distinct (the configuration checks it).
func New(opt Options) *Router {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Log == nil {
		opt.Log = zap.NewNop()
	}
	// Each message once a minute: what is wrong with requests is counted, and logged once in a while.
	opt.Log = opt.Log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core { return zapcore.NewSamplerWithOptions(c, time.Minute, 1, 0) }))
	r := &Router{opt: opt, names: make(map[string]named), predicted: newPredictions(opt.PredictedTTL, predBlocks), seen: newSightings(), recent: newRecent(), turns: newTurns()}
	r.metrics = newMetrics(opt.Metrics, r)
	r.scratch.New = func() any { return new(scratch) }
	for i := range opt.Models {
		m := &offered{Model: &opt.Models[i], classes: classesOf(&opt.Models[i])}
		r.names[m.Name] = named{model: m}
		for _, n := range m.Aliases {
			r.names[n] = named{model: m}
		}
		for _, n := range m.Adapters {
			r.names[n] = named{model: m, lora: n}
		}
	}
	return r
}

// scratch is one decision's memory, reused.
type scratch struct {
	body       body.Skeleton
	req        body.Request
	views      []view        // as the kinds of engines read it
	looks      []look        // by class
	trial      *fleet.Worker // to be the first choice
	longest    int           // tokens of the longest prompt of all views
	matches    indexer.Matches
	candidates []pick.Candidate
	held       []int32 // by slot: leading blocks, zeroed after use
	// Of the chosen class:
	locals []uint64
	chain  []uint64
	usage  int // prompt tokens that the engine will report; 0: not known

	broken bool // by a panic: not to be used again
}

// Decide ranks the workers for one request. It never fails: what cannot be read is routed by load, and Why says so. Once
// ctx has ended it answers soon, on the step of the ladder that it has come to. A body is cleaned before all else, and
// whatever happens then, its edits are in the decision.
func (r *Router) Decide(ctx context.Context, req *Request) Decision {
	start := r.opt.Now()
	s := r.scratch.Get().(*scratch)
	d := r.rankInBody(r.decide(ctx, req, s, start), req.Body)
	if !s.broken {
		s.body.Release()
		s.req = body.Request{}
		clear(s.views)
		r.scratch.Put(s)
	}
	took := r.opt.Now().Sub(start)
	r.metrics.decided(&d, took)
	r.recent.add(&d, start, took)
	return d
}

func (r *Router) decide(ctx context.Context, req *Request, s *scratch, now time.Time) (d Decision) {
	r.opt.Fleet.Expire()
	d = Decision{ID: req.ID, Reason: Load, source: req.Source}
	cleaned := false
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		s.broken = true
		r.panicked(p)
		if req.Body != nil && !cleaned {
			d = refuse(d, errPanic)
		} else {
			d = r.byLoad(Decision{ID: d.ID, Model: d.Model, Edits: d.Edits, source: d.source}, errPanic.Reason, d.Model, req, now)
		}
	}()
	if req.Stored != "" {
		if narrowed, ok := r.holding(req, req.Stored, ""); ok {
			return r.byLoad(d, "the worker that keeps the answer", "", narrowed, now)
		}
		return r.byLoad(d, "whose answer it is is not known", "", req, now)
	}
	if req.Body == nil {
		return r.byLoad(d, "body not read", "", req, now)
	}
	unread := body.Read(req.Body, &s.body, &s.req)
	n, known := r.names[s.req.Model]
	clean, err := body.Clean(req.Body, &s.body, unread, r.metrics.fieldRemoved)
	if err != nil {
		return refuse(d, err)
	}
	d.Edits, cleaned = edits(clean), true
	if unread != nil {
		return r.byLoad(d, unread.Error(), "", req, now)
	}
	if !known {
		d.Asked = shown(s.req.Model)
		return r.byLoad(d, "model unknown", "", req, now)
	}
	if req.Pool != "" && req.Pool != n.model.Name {
		return r.byLoad(d, "model of another pool", "", req, now) // its own engines answer that they have no such model
	}
	d.Model = n.model.Name
	if before, _ := s.body.String(s.req.Fields["previous_response_id"]); before != "" {
		req, _ = r.holding(req, before, d.Model)
	}
	slots, trial, err := r.open(r.allowed(req, n.model.Name), now)
	if err != nil {
		return refuse(d, err)
	}
	s.trial = trial
	size := 0
	for _, piece := range req.Body {
		size += len(piece)
	}
	lane, busy := r.turns.of(size)
	if !lane.take(ctx, size) {
		return r.placeByLoad(d, busy, slots, trial, now)
	}
	defer lane.give(size)
	s.read(ctx, req.Path, n, slots)
	if bad := s.failed(); bad != nil {
		d.Edits = edits(clean, s.editsForAny())
		if bad.refused() != nil {
			return r.placeByLoad(d, "the engine will answer with an error", slots, trial, now)
		}
		return r.placeByLoad(d, bad.err.Error(), slots, trial, now)
	}
	return r.place(d, n, clean, sessionOf(s.req.Fields, req.Session), slots, s, now)
}

// errPanic is what a request gets whose body brings down what cleans it: it might bring down an engine, and who knows
// what it carries.
var errPanic = &body.Refused{Status: http.StatusBadRequest, Reason: "internal error"}

// panicked logs a panic. Only errors of the runtime are shown; another panic's value might quote a prompt.
func (r *Router) panicked(p any) {
	text := fmt.Sprintf("%T", p)
	if e, ok := p.(runtime.Error); ok {
		text = e.Error()
	}
	r.opt.Log.Error("panic in a decision", zap.String("panic", text), zap.ByteString("stack", debug.Stack()))
}

// place picks the slot for a prompt and books it.
func (r *Router) place(d Decision, n named, clean []body.Edit, session string, slots []*fleet.Slot, s *scratch, now time.Time) Decision {
	if len(slots) == 0 {
		d.Edits, d.Why = edits(clean, s.views[0].edits), "no worker known"
		return d
	}
	cs := &n.model.classes
	s.candidates = s.candidates[:0]
	for class := range cs.list {
		r.candidates(s, cs, class, slots, n.lora, now)
	}
	ranked := r.alike(pick.Rank(s.candidates, 8, r.turn.Add(1)), slots, s, cs, d.Model)
	best := ranked[0]
	class := cs.of(slots[best.Slot].Worker)
	rd, size := &s.views[cs.reads[class]], cs.list[class].BlockSize
	s.locals, s.chain, s.usage = s.looks[class].locals, s.looks[class].chain, rd.usage
	d.Edits = edits(clean, rd.edits)
	p := rd.p
	if p == nil {
		p = &engine.Prompt{Why: rd.err.Error()}
	}
	tokens := len(p.IDs)
	d.PromptTokens = tokens
	// An engine always computes the last token, so a prompt that is held whole loses its last block (vLLM).
	d.CachedTokens = min(max(best.Exact, best.Predicted), max(0, tokens-1)/size*size)
	d.MatchedBlocks = d.CachedTokens / size
	decode := r.opt.Fleet.Decode(slots[best.Slot], r.turn.Load())
	d.Targets = targets(slots, ranked, decode, r.turn.Load())
	switch {
	case best.Doubtful && best.Exact > 0:
		d.Reason, d.Why = Predicted, eventsAway
	case best.Predicted > best.Exact:
		d.Reason, d.Why = Predicted, "not confirmed by events yet"
	case best.Exact > 0:
		d.Reason = Exact
	case best.Seen > 0:
		d.Reason, d.Why = Affinity, "no block held, media seen"
	case best.Doubtful:
		d.Reason, d.Why = Load, eventsAway
	default:
		d.Reason, d.Why = Load, "no block held"
	}
	if rd.reuse == prompt.Recomputed {
		d.Why = "the engine reads no cache for this request"
	}
	if d.Partial = r.opt.Index.Partial(slots[best.Slot].ID); d.Partial && d.Why == "" {
		d.Why = "a lower bound: the worker is known in part"
	}
	if d.Recurrent = r.opt.Index.Recurrent(slots[best.Slot].ID); d.Recurrent && d.CachedTokens > 0 {
		d.Why = "an upper bound: a hit needs the states of recurrent layers too"
	}
	if rd.reuse == prompt.Perhaps && d.CachedTokens > 0 {
		d.Why = "an upper bound: the engine may read no cache for this request"
	}
	if !p.Exact {
		d.Why = p.Why
	}
	nt := r.book(d, slots[best.Slot], decode, best, rd, p, s, size, now)
	if rd.p != nil {
		if session == "" && r.opt.Audit != nil && cs.session[class] && d.Targets[0].Instance == "" {
			session, d.Session = d.ID, d.ID
		}
		r.opt.Audit.Expect(audit.Expectation{ID: d.ID, Slot: slots[best.Slot].ID, Worker: nt.slot.Worker.Name, Model: d.Model, Session: session,
			Locals: nt.locals, From: nt.from, Size: size, Prompts: cs.prompts[cs.reads[class]].Model(), Prompt: p})
	}
	return d
}

// mostMedia bounds the media that weigh in a choice.
const mostMedia = 64

// unknownPicture is what a picture of unknown size counts for, in tokens: about 1280×720 for most families.
const unknownPicture = 1000

// encoding fills in, per candidate, the picture tokens behind its cached prefix: to encode, or in its encoder cache.
func (r *Router) encoding(p *engine.Prompt, slots []*fleet.Slot, cands []pick.Candidate) {
	for i := range p.Media[:min(len(p.Media), mostMedia)] {
		md := &p.Media[i]
		by := r.seen.by(md.Key)
		if by == (seenBy{}) && md.Alias != 0 {
			by = r.seen.by(md.Alias)
		}
		for j := range cands {
			c := &cands[j]
			left := md.Offset + md.Length - max(c.Predicted, md.Offset)
			c.Shared += max(0, min(c.Predicted, md.Offset+md.Length)-max(c.Exact, md.Offset)) // booked for its encoding too
			switch {
			case md.Length == 0 && !by.holds(slots[c.Slot]):
				c.Encode += unknownPicture
			case left <= 0 && md.Length > 0:
			case by.holds(slots[c.Slot]):
				c.Seen += max(left, 1)
			default:
				c.Encode += max(left, 0)
			}
		}
	}
}

// targets lists up to three different places, in the order of the ranking. A worker behind front ends is named in the
// request, for retries too: then they are the front ends, one after another from turn on, and no worker of another kind.
// decode is who decodes, where another does.
func targets(slots []*fleet.Slot, ranked []pick.Candidate, decode *fleet.Slot, turn uint64) []Target {
	out := make([]Target, 0, 3)
	best := slots[ranked[0].Slot]
	if w := best.Worker; w.Instance != "" {
		for i := range min(len(w.Frontends), cap(out)) {
			addr := w.Frontends[(turn+uint64(i))%uint64(len(w.Frontends))]
			t := Target{Worker: w.Name, Addr: addr, Rank: best.Rank, Instance: w.Instance}
			if decode != nil {
				t.Prefill, t.PrefillRank = t.Instance, t.Rank
				t.Instance, t.Rank = decode.Worker.Instance, decode.Rank
			}
			out = append(out, t)
		}
		return out
	}
next:
	for _, c := range ranked {
		slot := slots[c.Slot]
		if slot.Worker.Instance != "" {
			continue
		}
		for _, t := range out {
			if t.Addr == slot.Worker.Addr {
				continue next
			}
		}
		if out = append(out, Target{Worker: slot.Worker.Name, Addr: slot.Worker.Addr, Rank: slot.Rank}); len(out) == cap(out) {
			break
		}
	}
	return out
}

// note is what a booking remembers of its decision. Reports of one request may be observed side by side: but for promised
// it does not change.
type note struct {
	model    string
	slot     *fleet.Slot // chosen
	reason   Reason
	locals   []uint64 // the prompt's blocks
	chain    []uint64 // the same, chained
	from     int      // blocks that events proved at the decision
	promised atomic.Pointer[promise]
	cached   int  // tokens predicted to be cached on slot; -1: no answer can be compared with it
	stale    bool // its events had not come for long: the engine's own count is all that corrects the index
	bound    bool // cached is a lower bound
	upper    bool // cached is an upper bound
	size     int  // tokens a block
	usage    int  // prompt tokens that the engine will report; 0: not known
	mute     bool // the engine reports 0 cached tokens where it says nothing (SGLang without --enable-cache-report)
}

func (r *Router) book(d Decision, slot, decode *fleet.Slot, best pick.Candidate, rd *view, p *engine.Prompt, s *scratch, size int, now time.Time) *note {
	held := best.Exact / size
	if best.Doubtful { // of what it gets now no event will tell
		held = 0
	}
	nt := &note{model: d.Model, slot: slot, reason: d.Reason, from: held, cached: d.CachedTokens, stale: best.Doubtful, bound: d.Partial, upper: d.Recurrent || rd.reuse == prompt.Perhaps, usage: s.usage, mute: r.rulesOf(d.Model, slot.Worker).MuteCached}
	both := slices.Concat(s.locals, s.chain)
	if decode != nil || rd.several {
		nt.cached = -1 // what is reported is of another worker's cache, or of another prompt or all (vLLM: the last that ends; SGLang: the sum)
	}
	nt.locals, nt.chain, nt.size = both[:len(s.locals)], both[len(s.locals):], size
	nt.promised.Store(r.predicted.add(uint32(slot.ID), nt.chain, nt.from, now))
	for i := range p.Media[:min(len(p.Media), mostMedia)] {
		r.seen.add(p.Media[i].Key, slot)
		if a := p.Media[i].Alias; a != 0 {
			r.seen.add(a, slot)
		}
	}
	r.opt.Fleet.Book(d.ID, fleet.Booking{Slot: slot, Decode: decode, Source: d.source, Tokens: d.PromptTokens - d.CachedTokens + best.Encode, Note: nt, Bytes: 256 + 8*len(both)})
	return nt
}

// byLoad places a request of which nothing is known but, perhaps, its model.
func (r *Router) byLoad(d Decision, why, model string, req *Request, now time.Time) Decision {
	slots := r.allowed(req, model)
	if req.Stored != "" { // what asks for an answer that is there costs nothing
		return r.placeByLoad(d, why, fleet.Healthy(slots), nil, now)
	}
	slots, trial, err := r.open(slots, now)
	if err != nil {
		return refuse(d, err)
	}
	return r.placeByLoad(d, why, slots, trial, now)
}

// placeByLoad picks among slots by load alone.
func (r *Router) placeByLoad(d Decision, why string, slots []*fleet.Slot, trial *fleet.Worker, now time.Time) Decision {
	d.Reason, d.Why = Load, why
	r.opt.Log.Warn("request routed by load: "+why, zap.String("id", d.ID), zap.String("model", d.Model), zap.String("asked", d.Asked))
	if len(slots) == 0 {
		d.Why = "no worker known"
		return d
	}
	cands := make([]pick.Candidate, len(slots))
	for i, slot := range slots {
		load := slot.Load(now)
		cands[i] = pick.Candidate{Slot: i, First: slot.Worker == trial, Inflight: load.Inflight, Backlog: load.Backlog, Recent: load.Recent, Usage: load.Usage}
	}
	ranked := pick.Rank(cands, 8, r.turn.Add(1))
	slot := slots[ranked[0].Slot]
	decode := r.opt.Fleet.Decode(slot, r.turn.Load())
	d.Targets = targets(slots, ranked, decode, r.turn.Load())
	r.opt.Fleet.Book(d.ID, fleet.Booking{Slot: slot, Decode: decode, Source: d.source, Note: &note{model: d.Model, slot: slot, reason: Load, cached: -1}, Bytes: 256})
	return d
}

// Observe takes what Envoy reported of a decided request: the worker really used, the end, the status.
func (r *Router) Observe(o Outcome) {
	switch o.Phase {
	case Failed:
		r.failed(r.opt.Fleet.ByAddr(o.Addr), o.Fault)
		return
	case Lost:
		r.opt.Fleet.Lost(o.Source)
		return
	}
	r.recent.observe(o)
	switch o.Phase {
	case Started:
		if !r.started(o) {
			r.metrics.unmatched.Inc()
			return
		}
		if o.Answer != "" {
			r.stored.add(o.Answer, o.Addr)
			r.metrics.stored.WithLabelValues("learned").Inc()
		}
	case Ended:
		served := o.Addr == "" || r.started(o) // the report that it was sent there may be lost
		learn := o.FirstByte
		if o.Code != http.StatusOK {
			learn = 0 // an error is no prefill
		}
		b, ok := r.opt.Fleet.End(o.ID, o.Source, learn)
		if !ok {
			r.metrics.unmatched.Inc()
			return
		}
		r.judge(o, b)
		worker := b.Slot.Worker.Name
		if !served {
			worker = "other"
		}
		nt := b.Note.(*note)
		if o.Code < 200 || o.Code >= 400 { // refused or broken: it stored nothing that we could count on
			r.predicted.drop(nt.promised.Load(), nt.chain)
		}
		if nt.mute && o.CachedTokens == 0 || b.Slot != nt.slot || !served || nt.cached < 0 {
			o.CachedTokens = -1 // nothing was reported, or of another worker than the prediction is of
		}
		if (nt.reason == Exact || nt.stale) && !nt.upper && o.Code == 200 && o.CachedTokens >= 0 && o.CachedTokens < nt.cached-nt.size {
			// The engine found less than its events promised (a reset that it has not told yet): what it did not find goes. One
			// block less says nothing: vLLM keeps back the last one that it finds where it drafts with EAGLE or MTP (read in
			// 0.10 to 0.33), and one that was evicted since the decision is told by an event.
			n, _ := r.opt.Index.Drop(b.Slot.ID, nt.locals, o.CachedTokens/nt.size)
			r.metrics.corrected.Add(float64(n))
			if r.suspects.note(b.Slot, r.opt.Now()) && r.opt.Resync != nil {
				r.opt.Resync(b.Slot)
			}
		}
		r.opt.Audit.End(o.ID, o.Code == http.StatusOK)
		r.metrics.ended(nt, worker, o)
	}
}

// started takes down who has a request, and moves what was expected of it where that is not the slot that was chosen; false
// if the request or the worker is not known.
func (r *Router) started(o Outcome) bool {
	now, moved, ok := r.opt.Fleet.Confirm(o.ID, o.Addr, o.Source)
	if moved == nil {
		return ok
	}
	r.metrics.moved.Inc()
	nt := now.Note.(*note)
	var made *promise
	if now.Slot.Worker.Class == moved.Slot.Worker.Class {
		made = r.predicted.add(uint32(now.Slot.ID), nt.chain, 0, r.opt.Now())
		r.opt.Audit.Move(o.ID, now.Slot.ID, now.Slot.Worker.Name)
	} else { // its blocks have other hashes: nothing to predict, nothing to compare
		r.opt.Audit.End(o.ID, false)
	}
	r.predicted.drop(nt.promised.Swap(made), nt.chain)
	return true
}

// refuse answers the client in the workers' stead.
func refuse(d Decision, err error) Decision {
	d.Edits, d.Reason, d.Why = nil, RefusedByUs, err.Error()
	d.Refuse = &Refusal{Status: http.StatusBadRequest, Message: d.Why}
	var refused *body.Refused
	if errors.As(err, &refused) {
		d.Why = refused.Reason
		d.Refuse = &Refusal{Status: refused.Status, Message: refused.Reason}
	}
	return d
}

// edits puts what is taken out of a body and what is put in into one list, in the body's order.
func edits(lists ...[]body.Edit) []Edit {
	out := slices.Concat(lists...)
	slices.SortStableFunc(out, func(a, b Edit) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	return out
}
