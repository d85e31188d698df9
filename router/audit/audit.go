// Package audit compares what a routed request was predicted to store with what its worker reports to have stored.
//
//	Decide ─▶ Expect(prompt, slot)      the worker's feed ─▶ Stored(slot, event)      access log ─▶ End(id)
//	                 └──────────── compared ────────────┘                               │ + grace
//	                                                                       one verdict a request
//
// A stored event does not name its request, unless the engine repeats the session id that we gave it (vLLM from 0.30 on). It is
// attributed to a request only if that is certain: its blocks are the request's own, or it departs from exactly one open request
// of its session after a common beginning. A difference counts only if the worker still lacks the request's blocks at the end, so
// that traffic that bypasses us cannot look like an error of ours. What cannot be attributed is counted as such and never becomes
// a verdict.
//
//	audit.go    Auditor: open requests and their end
//	compare.go  one request against one event
//	parent.go   what a request reveals about blocks stored before the router's start
//	rules.go    what verdicts say of the rules by which prompts are computed
//	streams.go  workers whose events come over another worker's stream
//	finding.go  findings for people
package audit

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/internal/repeat"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/mmhash/block"
)

const (
	openPerSlot = 128              // requests watched at once on a slot; the oldest end unattributed
	openTokens  = 2 << 20          // token ids kept for all requests; beyond, the comparison is by block
	openBlocks  = 1 << 20          // blocks of all requests; beyond, requests end unattributed at once
	grace       = time.Second      // from a request's end to its verdict: events are sent once a scheduler step
	logEvery    = 10 * time.Minute // between two lines about the same verdict of a worker
	patience    = 10 * time.Minute // limit for a request whose end is never reported
)

// Options configure an Auditor.
type Options struct {
	Index   *indexer.Index
	Log     *zap.Logger           // nil: silent
	Metrics prometheus.Registerer // nil: none
	Now     func() time.Time      // nil: time.Now
	// Verdict, if set, is called with each verdict. It must not block.
	Verdict func(id string, v Verdict)
	// Contradicted, if set, is called when a rule steps aside for a worker: whether it is as configured is to be told to Probed. It must
	// not block.
	Contradicted func(worker string)
	// Why, if set, says why a slot's events may not come, for the verdict Nothing; "": not known.
	Why func(slot indexer.SlotID) string
	// WorkerOf, if set, returns the name of a slot's worker, for Misplaced.
	WorkerOf func(slot indexer.SlotID) string
	// Parent, if set, is called when a block that a slot's events name as a parent, but that the index does not know, is found to
	// be the last block of locals, the leading blocks of a prompt, all of which the slot holds. It must not block, and may keep
	// locals.
	Parent func(slot indexer.SlotID, engineHash uint64, locals []uint64)
}

// Auditor compares predictions with events. It is safe for concurrent use; a nil Auditor does nothing.
//
// A decision waits for Expect, so the lock that Expect takes is held only briefly: mu guards the lists of requests, and nothing
// is compared or looked up under it. A request's comparison state is guarded by its slot's compareMu, which is taken before mu.
type Auditor struct {
	placements
	slots   map[indexer.SlotID]*slot
	byID    map[string]*request
	ended   []*request // waiting for their verdicts, in the order of their ends; some may have been removed already
	tokens  int        // kept for all open requests
	blocks  int
	recent  []Finding // oldest first
	classes []*Class  // whose rules are judged

	watching retry.Bell // rung when requests are open

	verdicts     *prometheus.CounterVec
	unattributed prometheus.Counter
	namedEvents  prometheus.Counter
}

// placements are the part of an Auditor that judges a request at its end: by what the index holds then, and by the stream over which its
// worker's events come (streams.go). Methods of a nil Auditor that callers may use are Auditor's own.
type placements struct {
	o         Options
	mu        sync.Mutex           // of the whole Auditor
	whole     map[uint64]*request  // open requests by Expectation.Whole
	streams   map[string]*streamOf // by worker
	mayBeLate []lateRequest

	judgeMu sync.Mutex // held by judge; guards matches
	matches indexer.Matches
}

type slot struct {
	open   []*request    // oldest first
	events atomic.Uint64 // stored events seen

	compareMu          sync.Mutex
	namesSessions      bool       // events name the sessions that we gave
	compared           []*request // with the current event
	afterUnknownParent []*request // the part of compared that the event may extend after an unknown parent
}

// Expectation is a routed request and what its worker should store.
type Expectation struct {
	ID            string
	Slot          indexer.SlotID
	Worker, Model string
	// Session is the request's session id, which events of some engines name; "" for none. If it equals ID, no other request has
	// it.
	Session string
	Locals  []uint64 // the prompt's blocks, as far as they can be hashed
	From    int      // how many of Locals the worker's events had reported before
	block.Form
	Prompts *engine.Model
	Prompt  *engine.Prompt

	Class  *Class // whose rules computed the prompt; nil: the request says nothing about them
	Shadow bool   // nothing was predicted by the prompt, since a rule has stepped aside: its verdict is only about the rules
	Shaped bool   // the client's parameters shape the prompt
	Keyed  bool   // it has a salt or an adapter

	Whole uint64 // chain hash of the last of Locals; 0: not known
	New   bool   // no worker held all of Locals, nor was predicted to
	Alone bool   // no other worker prefills or decodes for it
}

// New returns an Auditor. Run makes it give verdicts.
func New(o Options) *Auditor {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	o.Log = repeat.Once(o.Log, logEvery)
	of := meter.At(o.Metrics)
	a := &Auditor{slots: make(map[indexer.SlotID]*slot), byID: make(map[string]*request), watching: make(retry.Bell, 1),
		placements: placements{o: o, whole: make(map[uint64]*request), streams: make(map[string]*streamOf)},
		verdicts: of.Counters("audit_total",
			"Ended requests by what their worker stored: equal, or what differs first.",
			"model", "worker", "verdict"),
	}
	events := of.Counters("audit_events_total",
		"Stored events that name the session of an open request (named), or fit several (unattributed).", "what")
	a.unattributed, a.namedEvents = events.WithLabelValues("unattributed"), events.WithLabelValues("named")
	of.ReadAll(a.collectAside, asideDesc)
	return a
}

// Expect begins to watch a routed request. The prompt's ids and media are kept until the verdict and must not change.
func (a *Auditor) Expect(e Expectation) {
	if a == nil || len(e.Locals) <= e.From && e.Prompt.Exact {
		return // nothing to store
	}
	e.Session = strings.Clone(e.Session) // it may point into the request
	x := &request{Expectation: e, beganAt: a.o.Now(), nextPos: -1, found: -1}
	x.Prompt = &engine.Prompt{Media: e.Prompt.Media, Exact: e.Prompt.Exact} // without its text
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.blocks+len(e.Locals) > openBlocks {
		a.count(x, Unattributed)
		return
	}
	if a.tokens+cap(e.Prompt.IDs) <= openTokens {
		x.ids = e.Prompt.IDs
	}
	a.assign(x, e.Slot)
}

// assign assigns a request to a slot.
func (a *Auditor) assign(x *request, h indexer.SlotID) {
	s := a.slots[h]
	if s == nil {
		s = new(slot)
		a.slots[h] = s
	}
	if len(s.open) == openPerSlot {
		a.count(s.open[0], Unattributed)
		a.remove(s.open[0])
	}
	if same := a.byID[x.ID]; same != nil {
		a.remove(same)
	}
	x.Slot, x.slot, x.eventsBefore = h, s, s.events.Load()
	s.open = append(s.open, x)
	a.byID[x.ID] = x
	a.noteWhole(x)
	a.tokens += cap(x.ids)
	a.blocks += len(x.Locals)
	a.watching.Ring()
}

func (a *Auditor) remove(x *request) {
	if i := slices.Index(x.slot.open, x); i >= 0 {
		x.slot.open = slices.Delete(x.slot.open, i, i+1)
	}
	a.tokens -= cap(x.ids)
	a.blocks -= len(x.Locals)
	delete(a.byID, x.ID)
	if a.whole[x.Whole] == x {
		delete(a.whole, x.Whole)
	}
}

// Move moves a request to another slot than was expected.
func (a *Auditor) Move(id string, h indexer.SlotID, worker string) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if x := a.byID[id]; x != nil {
		a.remove(x)
		// Start over: what the first slot reported does not count for the other.
		moved := &request{Expectation: x.Expectation, beganAt: x.beganAt, ids: x.ids, nextPos: -1, found: -1, borrowed: x.borrowed}
		moved.Worker, moved.From, moved.Alone = worker, 0, false // the first may have stored something
		a.assign(moved, h)
	}
}

// Leave removes a slot; its requests end without a verdict.
func (a *Auditor) Leave(slot indexer.SlotID) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.slots[slot]; s != nil {
		for len(s.open) > 0 {
			a.remove(s.open[0])
		}
		delete(a.slots, slot)
	}
}

// WorkerLeft removes what a worker's requests said of rules.
func (a *Auditor) WorkerLeft(worker string) {
	if a == nil {
		return
	}
	for _, c := range a.judged() {
		c.forget(worker)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.streams, worker)
}

// Forget removes a worker's verdicts from the metrics.
func (a *Auditor) Forget(worker string) {
	if a != nil {
		a.verdicts.DeletePartialMatch(prometheus.Labels{"worker": worker})
	}
}

// Borrowed says that a request's client chose its session itself. If it is another open request's, events that name it are certain to be
// of neither.
func (a *Auditor) Borrowed(session string) {
	if a == nil || session == "" {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if x := a.byID[session]; x != nil {
		x.borrowed = true
	}
}

// End marks a request as over. One that was not served well stored nothing that counts.
func (a *Auditor) End(id string, served bool) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	x := a.byID[id]
	switch {
	case x == nil:
	case !served:
		a.remove(x)
	case x.endedAt.IsZero():
		x.endedAt = a.o.Now()
		a.ended = append(a.ended, x)
	}
}

// Stored compares a stored event with the slot's open requests, before the index has it. The goroutine of the slot's feed calls
// it; e is only read, and not kept.
func (a *Auditor) Stored(h indexer.SlotID, e *kvevent.Event) {
	if a == nil || e.Tier != kvevent.GPU || len(e.Locals) == 0 || len(e.EngineHashes) != len(e.Locals) {
		return
	}
	s := a.slotWithRequests(h, e.Session)
	if s == nil {
		return
	}
	s.compareMu.Lock()
	defer s.compareMu.Unlock()
	defer func() { clear(s.compared); clear(s.afterUnknownParent) }() // they refer to prompts
	named := a.begin(s, h, e.Session)
	if named != nil {
		s.namesSessions = true
		a.namedEvents.Inc()
	}
	before := &heldBefore{index: a.o.Index, slot: h, e: e}
	if named != nil {
		named.follow(before)
	}
	var departs []*request
	own := false
	s.afterUnknownParent = s.afterUnknownParent[:0]
	for _, x := range s.compared {
		if x.judged {
			continue
		}
		switch x.compare(e, x == named, before) {
		case same:
			own = true
			if x.followsUnknown(e) {
				s.afterUnknownParent = append(s.afterUnknownParent, x)
			}
			x.parent.ambiguous = x.parent.ambiguous || !e.HasParent
		case diverged:
			if x.Session == e.Session || e.Session == "" && !(s.namesSessions && x.Session == x.ID) {
				departs = append(departs, x)
			}
		}
	}
	recordParent(s.afterUnknownParent, e)
	switch {
	case own || len(departs) == 0:
	case len(departs) > 1:
		a.unattributed.Inc()
	case departs[0].finding != nil:
		departs[0].rivalEvents++
	default:
		x := departs[0]
		x.finding, x.certain = x.explain(e, x.eventBlock), x == named && !x.guessed
	}
}

// slotWithRequests counts the event and returns the slot if it has open requests, else nil.
func (a *Auditor) slotWithRequests(h indexer.SlotID, session string) *slot {
	a.mu.Lock()
	defer a.mu.Unlock()
	if x := a.byID[session]; x != nil && x.Session == x.ID {
		x.namedAt, x.named = h, true
	}
	s := a.slots[h]
	if s == nil {
		return nil
	}
	s.events.Add(1)
	if len(s.open) == 0 {
		return nil
	}
	return s
}

// begin lists the requests to compare an event with, and returns the one that the event names; nil: none.
func (a *Auditor) begin(s *slot, h indexer.SlotID, session string) *request {
	a.mu.Lock()
	defer a.mu.Unlock()
	s.compared = append(s.compared[:0], s.open...)
	if x := a.byID[session]; x != nil && x.Slot == h && x.Session == x.ID {
		return x
	}
	return nil
}

// Run gives verdicts until ctx ends.
func (a *Auditor) Run(ctx context.Context) {
	for range a.watching.Every(ctx, grace/4) {
		if a.judge(a.o.Now()) {
			a.watching.Ring()
		}
	}
}

// judge ends the requests whose grace is over, and reports whether there are others.
func (a *Auditor) judge(now time.Time) (more bool) {
	a.judgeMu.Lock()
	defer a.judgeMu.Unlock()
	for x := a.due(now); x != nil; x = a.due(now) {
		v, shown := a.verdictOf(x)
		v = a.placed(x, v)
		a.verdict(x, v)
		a.judgeRules(x, v)
		if shown {
			a.o.Parent(x.Slot, x.parent.engineHash, x.Locals[:x.parent.at])
		}
	}
	a.lookForLate(now)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.slots {
		for len(s.open) > 0 && now.Sub(s.open[0].beganAt) >= patience {
			a.remove(s.open[0])
		}
	}
	return len(a.byID)+len(a.ended)+len(a.mayBeLate) > 0
}

// due removes and returns the next request whose verdict is due; nil: none.
func (a *Auditor) due(now time.Time) *request {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.ended) > 0 && now.Sub(a.ended[0].endedAt) >= grace {
		x := a.ended[0]
		a.ended[0] = nil
		a.ended = a.ended[1:]
		if a.byID[x.ID] == x {
			a.remove(x)
			return x
		}
	}
	return nil
}

// verdictOf returns a request's verdict. If the index says that the worker holds its blocks, that decides. shown: its parent was
// unknown and is to be passed to Options.Parent.
func (a *placements) verdictOf(x *request) (_ Verdict, shown bool) {
	x.slot.compareMu.Lock()
	defer x.slot.compareMu.Unlock()
	x.judged = true
	if x.held || a.holds(x) {
		return Equal, a.revealedParent(x)
	}
	return a.verdictOfDifference(x), false
}

// verdictOfDifference returns the verdict of a request whose blocks are not all held.
func (a *placements) verdictOfDifference(x *request) Verdict {
	switch {
	case x.otherSize != 0 && x.otherSize != a.o.Index.Form(x.Slot).Size: // else the worker was new, and the form of its blocks not known yet
		x.finding = &Finding{Verdict: BlockSize, Ours: x.Size, Theirs: x.otherSize}
		return BlockSize
	case x.finding != nil && x.rivalEvents == 0:
		return x.finding.Verdict
	case x.more != 0 && mediaTokens(x.Prompt) > max(0, -x.more): // a shorter prompt may end before an event shows the difference
		n := mediaTokens(x.Prompt)
		x.finding = &Finding{Verdict: Span, Position: x.Prompt.Media[0].Offset, Ours: n, Theirs: n + x.more, media: len(x.Prompt.Media)}
		return Span
	case x.slot.events.Load() == x.eventsBefore && len(x.Locals) > 0:
		return Nothing
	}
	return Unattributed
}

func mediaTokens(p *engine.Prompt) (n int) {
	for i := range p.Media {
		n += p.Media[i].Length
	}
	return n
}

func (a *placements) holds(x *request) bool { return len(x.Locals) > 0 && a.holdsAll(x.Slot, x.Locals) }

// holdsAll reports whether a slot holds all these blocks. It leaves in matches who holds how many.
func (a *placements) holdsAll(slot indexer.SlotID, locals []uint64) bool {
	a.matches.Held = true
	a.o.Index.Match(locals, &a.matches)
	for _, h := range a.matches.Slots {
		if h.Slot == slot {
			return int(h.Blocks) == len(locals)
		}
	}
	return false
}
