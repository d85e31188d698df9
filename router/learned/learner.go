package learned

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/workers/fleet"
)

const (
	openPerSlot = 128              // requests watched at once at a slot; with one more the oldest teaches nothing
	openSteps   = 1 << 20          // of the paths of all watched requests: 24 MiB
	openBlocks  = 1 << 22          // of the chains of all: 32 MiB
	grace       = time.Second      // from a request's end until its events count as complete: they are sent once a scheduler step
	patience    = 10 * time.Minute // for a request whose end is never reported
)

// MaxBlocks limits the blocks of a chain that is learned.
const MaxBlocks = 1 << 14

// Outcome says what became of a watched request.
type Outcome string

// What can become of a request. Each is counted.
const (
	Learned       Outcome = "learned"
	NoEvents      Outcome = "no_events"    // all of its blocks were held before, or the worker's events do not come
	Unattributed  Outcome = "unattributed" // events could be those of several requests
	LengthDiffers Outcome = "doubtful"     // the blocks do not have the length that the engine reported
	NoRoom        Outcome = "no_room"
)

// Learner attributes the blocks that workers report to the requests that they serve, and teaches a Memory what the engines made of them.
//
// An event belongs to a request if it names the session that the request has and no other one, if it goes on where the request's
// blocks end, or if the request is the only one of the slot that has no blocks yet. A request of which that is not certain teaches
// nothing. If the engine says how many tokens prompt and answer have, the blocks must have that length; if it does not, only a session
// is certain.
//
// It is safe for concurrent use; a nil Learner does nothing.
type Learner struct {
	o      Options
	mu     sync.Mutex
	slots  map[indexer.SlotID][]*watched // oldest first
	named  map[indexer.SlotID]bool       // slots whose events name sessions: one without is not of a request that has one
	byID   map[string]*watched
	ended  []*watched // in the order of their ends
	steps  int
	blocks int // of their chains

	watching atomic.Int64 // number of requests: events cost nothing while there are none
	begun    retry.Bell   // rung when there are some
}

// Options configure a Learner.
type Options struct {
	Memory *Memory
	Sizes  *Sizes
	// Chain appends the local hashes of the blocks up to the one that a slot holds under an engine hash: see indexer.Index.Chain.
	Chain func(dst []uint64, slot indexer.SlotID, engineHash uint64, most int) []uint64
	// Outcome, if set, is called for each request that was served, and for each that found no room. It must not block.
	Outcome func(Outcome)
	// Share, if set, is called with what the memory did not know, for other replicas. It must not block, nor keep it.
	Share func(*Lesson)
	Now   func() time.Time
}

// Request is a request on its way to a slot.
type Request struct {
	ID      string
	Slot    indexer.SlotID
	Class   uint32
	Size    int    // tokens in a block
	Session string // that the engine's events name; "": they name none
	Path    Path
	Seen    *fleet.Seen // told how many blocks of the prompt are stored
}

// Report is what an engine said at a request's end; -1 for what it did not say.
type Report struct {
	Prompt, Output int // tokens
}

type watched struct {
	Request
	began, ended time.Time
	report       Report
	chain        []uint64
	last         uint64 // engine hash of chain's last block
	prefill      int    // blocks of chain before one that came alone, as those of an answer do
	decodes      bool   // one has come
	lost         bool   // some of its blocks may be another's
	closed       bool   // what follows its blocks is another's
	named        bool   // every event of it has named its session
}

// NewLearner returns a Learner. Run makes it teach.
func NewLearner(o Options) *Learner {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Sizes == nil {
		o.Sizes = new(Sizes)
	}
	if o.Outcome == nil {
		o.Outcome = func(Outcome) {}
	}
	return &Learner{o: o, slots: make(map[indexer.SlotID][]*watched), named: make(map[indexer.SlotID]bool),
		byID: make(map[string]*watched), begun: make(retry.Bell, 1)}
}

// Watch begins to watch a request, which must not change any more.
func (l *Learner) Watch(r *Request) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.byID[r.ID]; old != nil {
		l.remove(old)
	}
	if l.steps+len(r.Path.Steps) > openSteps {
		l.o.Outcome(NoRoom)
		r.Seen.Lose()
		return
	}
	if open := l.slots[r.Slot]; len(open) == openPerSlot {
		l.remove(open[0])
		l.o.Outcome(NoRoom)
	}
	x := &watched{Request: *r, began: l.o.Now(), report: Report{-1, -1}, named: true}
	l.insert(x)
}

func (l *Learner) insert(x *watched) {
	l.slots[x.Slot] = append(l.slots[x.Slot], x)
	l.byID[x.ID] = x
	l.steps += len(x.Path.Steps)
	l.watching.Add(1)
	l.begun.Ring()
}

func (l *Learner) remove(x *watched) {
	open := l.slots[x.Slot]
	if i := slices.Index(open, x); i >= 0 {
		l.slots[x.Slot] = slices.Delete(open, i, i+1)
	}
	if len(l.slots[x.Slot]) == 0 {
		delete(l.slots, x.Slot)
	}
	delete(l.byID, x.ID)
	l.steps -= len(x.Path.Steps)
	l.blocks -= len(x.chain)
	l.watching.Add(-1)
	x.Seen.Lose()
}

// Borrowed says that a request which is not watched is on its way to a slot: events that name its session may be its own.
func (l *Learner) Borrowed(slot indexer.SlotID, session string) {
	if l == nil || session == "" || l.watching.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.slots[slot] {
		if x.Session == session {
			x.closed = true
			if x.ended.IsZero() || len(x.chain) == 0 {
				x.lose()
			}
		}
	}
}

// Move says that another slot of the same class serves a request.
func (l *Learner) Move(id string, slot indexer.SlotID) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if x := l.byID[id]; x != nil && x.Slot != slot {
		l.remove(x)
		moved := &watched{Request: x.Request, began: x.began, report: x.report, named: true}
		moved.Slot = slot
		moved.Seen.Store(0)
		l.insert(moved)
	}
}

// Drop ends a request that teaches nothing: it failed, or went to a slot of another class.
func (l *Learner) Drop(id string) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if x := l.byID[id]; x != nil {
		l.remove(x)
	}
}

// Leave forgets a slot's requests.
func (l *Learner) Leave(slot indexer.SlotID) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.slots[slot]) > 0 {
		l.remove(l.slots[slot][0])
	}
	delete(l.named, slot)
}

// Clear forgets all requests: they do not mean anything any more, since paths are made under another secret.
func (l *Learner) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.byID {
		l.remove(x)
	}
}

// End says that a request was served. If all of its blocks have come, it teaches at once: agents send the next turn within milliseconds.
func (l *Learner) End(id string, r Report) {
	if l == nil {
		return
	}
	if x := l.end(id, r); x != nil {
		l.teach(x)
	}
}

// end notes the end of a request, and removes and returns it if it is complete.
func (l *Learner) end(id string, r Report) *watched {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := l.byID[id]
	if x == nil || !x.ended.IsZero() {
		return nil
	}
	x.ended, x.report = l.o.Now(), r
	if x.complete() {
		l.remove(x)
		return x
	}
	l.ended = append(l.ended, x)
	return nil
}

// Stored attributes a stored event of a slot, before the index has it. It keeps nothing of e.
func (l *Learner) Stored(slot indexer.SlotID, e *kvevent.Event) {
	if l == nil || l.watching.Load() == 0 || e.Tier != kvevent.GPU || e.MediaUnknown || len(e.Locals) == 0 ||
		len(e.EngineHashes) != len(e.Locals) {
		return
	}
	l.mu.Lock()
	x := l.whose(slot, e)
	l.mu.Unlock()
	if x == nil {
		return
	}
	var before []uint64
	if e.HasParent && len(x.chain) == 0 { // the blocks before it were held: they are the prompt's beginning
		before = l.o.Chain(nil, slot, e.Parent, MaxBlocks)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.byID[x.ID] != x: // its end is being looked at
	case e.BlockSize != 0 && e.BlockSize != x.Size, e.HasParent && len(x.chain)+len(before) == 0,
		l.blocks+len(before)+len(e.Locals) > openBlocks:
		x.lose()
	case len(x.chain)+len(before)+len(e.Locals) <= MaxBlocks:
		l.blocks += len(before) + len(e.Locals)
		x.chain = append(x.chain, before...)
		x.decodes = x.decodes || len(x.chain) > 0 && len(e.Locals) == 1
		if x.decodes {
			x.prefill = max(x.prefill, len(before))
			x.Seen.Store(math.MaxInt32)
		} else {
			x.prefill = len(x.chain) + len(e.Locals)
			x.Seen.Store(x.prefill)
		}
		x.chain = append(x.chain, e.Locals...)
		x.last = e.EngineHashes[len(e.EngineHashes)-1]
	}
}

// whose returns the request that an event belongs to; nil: none, or it is not certain.
func (l *Learner) whose(slot indexer.SlotID, e *kvevent.Event) (x *watched) {
	open := l.slots[slot]
	sole := func(fits func(*watched) bool) (x *watched, several bool) {
		for _, y := range open {
			if !y.lost && (y.Session == "" || y.Session == e.Session || !l.named[slot]) && fits(y) {
				if x != nil {
					return nil, true
				}
				x = y
			}
		}
		return x, false
	}
	follows := func(y *watched) bool {
		return len(y.chain) > 0 && e.HasParent && y.last == e.Parent && !y.closed && !y.complete()
	}
	begins := func(y *watched) bool { return len(y.chain) == 0 }
	if e.Session != "" {
		x, several := sole(func(y *watched) bool { return y.Session == e.Session && (follows(y) || begins(y)) })
		if several {
			x, _ = sole(func(y *watched) bool { return y.Session == e.Session && follows(y) })
			x = l.ofTurns(open, x, e)
		}
		if x != nil {
			l.named[slot] = true
		}
		return x
	}
	x, several := sole(follows)
	for _, y := range open {
		if x != nil && y != x && begins(y) && y.extends(x) { // its prompt may have all that x has
			x.lose()
			y.lose()
			return nil
		}
	}
	if x == nil && !several {
		x, several = sole(begins)
		if several { // its blocks may be of any of them
			for _, y := range open {
				if begins(y) && (y.Session == "" || !l.named[slot]) {
					y.lose()
				}
			}
		}
	}
	if x != nil {
		x.named = false
	}
	return x
}

// ofTurns returns whose an event is that names the session of several requests, such as the turns of a client that names it itself, and
// goes on where x's blocks end; nil: it is not certain. A turn that began when x had ended has all its blocks at once, an answer one after
// another.
func (l *Learner) ofTurns(open []*watched, x *watched, e *kvevent.Event) *watched {
	if x == nil {
		return nil
	}
	var next *watched
	for _, y := range open {
		if y.Session != e.Session || y.lost || len(y.chain) > 0 || !y.extends(x) {
			continue
		}
		if next != nil || x.ended.IsZero() || y.began.Before(x.ended) || len(e.Locals) == 1 {
			x.lose()
			y.lose()
			return nil
		}
		next = y
	}
	if next == nil {
		return x
	}
	x.closed = true
	return next
}

// lose notes that some of the request's blocks may be another's.
func (x *watched) lose() {
	x.lost = true
	x.Seen.Lose()
}

// complete reports whether a request has ended with all the blocks that it can have.
func (x *watched) complete() bool {
	return x.report.Prompt >= 0 && x.report.Output >= 0 && len(x.chain) >= (x.report.Prompt+x.report.Output)/x.Size
}

// extends reports whether a request begins with all of another one.
func (x *watched) extends(y *watched) bool {
	n := len(y.Path.Steps)
	return n > 0 && n <= len(x.Path.Steps) && x.Path.Steps[n-1].Number == y.Path.Steps[n-1].Number
}

// Run teaches what requests became until ctx ends.
func (l *Learner) Run(ctx context.Context) {
	for range l.begun.Every(ctx, grace/4) {
		l.Settle(l.o.Now())
		if l.watching.Load() > 0 {
			l.begun.Ring()
		}
	}
}

// Settle teaches what those requests became whose grace is over.
func (l *Learner) Settle(now time.Time) {
	for _, x := range l.due(now) {
		l.teach(x)
	}
}

// teach takes over what a request became.
func (l *Learner) teach(x *watched) {
	outcome := x.outcome()
	if x.report.Prompt >= 0 {
		l.o.Sizes.Learn(x.Class, &x.Path, x.report.Prompt)
		l.o.Sizes.Fill(x.Class, &x.Path)
	}
	if outcome == Learned {
		lesson := Lesson{x.Class, x.Path, x.taught()}
		if l.o.Memory.Teach(&lesson) && l.o.Share != nil {
			l.o.Share(&lesson)
		}
	}
	l.o.Outcome(outcome)
}

// due removes and returns the requests whose events are complete, and removes those whose end was not reported.
func (l *Learner) due(now time.Time) (list []*watched) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.ended) > 0 && now.Sub(l.ended[0].ended) >= grace {
		if x := l.ended[0]; l.byID[x.ID] == x {
			l.remove(x)
			list = append(list, x)
		}
		l.ended = l.ended[1:]
	}
	for slot := range l.slots {
		for len(l.slots[slot]) > 0 && now.Sub(l.slots[slot][0].began) > patience {
			l.remove(l.slots[slot][0])
		}
	}
	return list
}

func (x *watched) outcome() Outcome {
	switch {
	case x.lost:
		return Unattributed
	case len(x.chain) == 0:
		return NoEvents
	case x.report.Prompt < 0:
		if !x.named {
			return Unattributed
		}
	case len(x.chain) < x.report.Prompt/x.Size, x.report.Output >= 0 && len(x.chain) > (x.report.Prompt+x.report.Output)/x.Size:
		return LengthDiffers
	}
	return Learned
}

func (x *watched) taught() Taught {
	t := Taught{Chain: x.chain, Prompt: x.prefill}
	if x.report.Prompt >= 0 {
		t.Prompt, t.Tokens = x.report.Prompt/x.Size, x.report.Prompt
	}
	t.Chain = t.Chain[:min(t.Prompt, len(t.Chain))]
	return t
}
