package learned

import (
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
	openPerSlot = 128     // requests watched at once at a slot; with one more the oldest teaches nothing, another replica's first
	openSteps   = 1 << 20 // of the paths of all watched requests: 24 MiB
	openBlocks  = 1 << 22 // of the chains of all, and of what was recalled of them: 32 MiB
)

// MaxBlocks limits the blocks of a chain that is learned.
const MaxBlocks = 1 << 14

// Learner watches the blocks that workers report, attributes them to the requests that they serve, and teaches a Memory at the end.
//
// An event belongs to a request
//
//   - if it names the session that this request has and no other one,
//   - or, without a session, if it goes on where the request's blocks end,
//   - or else to one that has no blocks yet: of those whose recalled beginning agrees with the event's blocks and all before them, to the
//     one that agrees furthest, and of several to the one with which the engine begins: that is due first, else the oldest.
//
// Where another request could be meant, what is taught is a guess (Taught.Guess).
//
// It is safe for concurrent use; a nil Learner does nothing.
type Learner struct {
	o         Options
	mu        sync.Mutex
	slots     map[indexer.SlotID][]*watched // oldest first
	named     map[indexer.SlotID]bool       // slots whose events name sessions: one without is not of a request that has one
	byID      map[string]*watched
	ended     []*watched // in the order of their ends
	steps     int
	blocks    int      // see openBlocks
	sums      []uint64 // of an event's blocks and those before them, see sum
	sequences map[indexer.SlotID]*sequences

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
	ID        string
	Slot      indexer.SlotID
	Worker    uint32 // see Taught.Worker
	Class     uint32
	Size      int    // tokens in a block
	Session   string // that the engine's events name; "": they name none
	Path      Path
	Due       int64       // when, if the slot serves what is due first (order of router); 0: it serves them as they come, or how is not known
	Begin     []uint64    // local hashes of the blocks that its prompt should begin with; nil: none are known
	AtEnd     bool        // the engine stores an answer's blocks when it ends (rules.Rules.AnswersAtEnd)
	Shared    bool        // others send requests to the slot: other replicas, or clients that go past Sightline
	Unwatched bool        // some of these are not watched
	Theirs    bool        // another replica's: it teaches nothing and Drop ends it; of its steps only the first numbers are known
	Seen      *fleet.Seen // told how many blocks of the prompt are stored
	Said      *Said       // reads the answer; nil: nothing does
}

// sequence is what a slot has stored of a request, up to now. What it stores behind the last block is the request's answer, or of a request
// that goes on with that.
type sequence struct {
	last  uint64 // engine hash
	steps int    // of the request's path; 0: it is not known
	path  uint64 // first number of its last step
	id    string // of the request
	open  bool   // it may go on: it was not heard to have ended and is not watched any more, or these may be another one's blocks
}

// sequences are the latest of a slot, in the order of their beginnings from next on.
type sequences struct {
	list []sequence
	next int
}

const mostSequences = 2 * openPerSlot // of a slot

// ends returns the sequence behind whose last block an event is; nil: none is known.
func (l *Learner) ends(slot indexer.SlotID, e *kvevent.Event) *sequence {
	of := l.sequences[slot]
	if of == nil || !e.HasParent {
		return nil
	}
	for i := range of.list {
		if of.list[i].last == e.Parent {
			return &of.list[i]
		}
	}
	return nil
}

// newSequence returns one that has begun, in the place of the oldest if there are too many.
func (l *Learner) newSequence(slot indexer.SlotID) *sequence {
	of := l.sequences[slot]
	if of == nil {
		of = new(sequences)
		l.sequences[slot] = of
	}
	if len(of.list) < mostSequences {
		of.list = append(of.list, sequence{})
		return &of.list[len(of.list)-1]
	}
	s := &of.list[of.next]
	*s, of.next = sequence{}, (of.next+1)%mostSequences
	return s
}

type watched struct {
	Request
	began, ended time.Time
	report       Report
	sums         []uint64 // of Begin, see sum
	chain        []uint64
	sum          uint64 // of chain
	last         uint64 // engine hash of chain's last block
	prefill      int    // blocks of chain that are the prompt's, as far as events tell
	events       int
	lookahead    int  // of the latest event
	decodes      bool // a block of the answer has come alone
	lost         bool // some of its blocks may be missing
	guess        bool // some of its blocks may be another's
	closed       bool // what follows its blocks is another's
	named        bool // every event of it has named its session
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
		byID: make(map[string]*watched), sequences: make(map[indexer.SlotID]*sequences), begun: make(retry.Bell, 1)}
}

// sum returns a number of all blocks up to one, from that of those before it: equal beginnings have equal sums, others hardly ever.
func sum(before, local uint64) uint64 { return (before ^ local) * 0x9e3779b97f4a7c15 }

func appendSums(dst, chain []uint64, before uint64) []uint64 {
	for _, local := range chain {
		before = sum(before, local)
		dst = append(dst, before)
	}
	return dst
}

// Named reports whether a slot's events name sessions.
func (l *Learner) Named(slot indexer.SlotID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.named[slot]
}

// Watch begins to watch a request, which must not change any more.
func (l *Learner) Watch(r *Request) {
	if l == nil {
		return
	}
	x := &watched{Request: *r, began: l.o.Now(), report: Report{-1, -1}, named: true, sums: appendSums(nil, r.Begin, 0)}
	x.Begin = nil
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.byID[r.ID]; old != nil {
		l.remove(old)
	}
	switch {
	case r.Theirs && (l.named[r.Slot] || l.steps > openSteps/2 || l.blocks > openBlocks/2): // its session is not known here
		r.Seen.Lose()
		return
	case l.steps+len(r.Path.Steps) > openSteps || l.blocks+len(x.sums) > openBlocks:
		l.o.Outcome(NoRoom)
		r.Seen.Lose()
		return
	}
	if open := l.slots[r.Slot]; len(open) == openPerSlot {
		switch theirs := slices.IndexFunc(open, func(x *watched) bool { return x.Theirs }); {
		case theirs >= 0:
			l.remove(open[theirs])
		case r.Theirs: // it takes no place of one that teaches
			r.Seen.Lose()
			return
		default:
			l.remove(open[0])
			l.o.Outcome(NoRoom)
		}
	}
	l.insert(x)
}

func (l *Learner) insert(x *watched) {
	l.slots[x.Slot] = append(l.slots[x.Slot], x)
	l.byID[x.ID] = x
	l.steps += len(x.Path.Steps)
	l.blocks += len(x.sums)
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
	if of := l.sequences[x.Slot]; of != nil && x.ended.IsZero() {
		for i := range of.list {
			of.list[i].open = of.list[i].open || of.list[i].id == x.ID
		}
	}
	l.steps -= len(x.Path.Steps)
	l.blocks -= len(x.sums) + len(x.chain)
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

// Move says that another slot of the same class serves a request, where it is due otherwise: see Request.Due.
func (l *Learner) Move(id string, slot indexer.SlotID, worker uint32, due int64) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if x := l.byID[id]; x != nil && x.Slot != slot {
		l.remove(x)
		moved := &watched{Request: x.Request, began: x.began, report: x.report, named: true, sums: x.sums}
		moved.Slot, moved.Worker, moved.Due = slot, worker, due
		moved.Seen.Store(0)
		l.insert(moved)
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
	delete(l.sequences, slot)
}

// Clear forgets all requests: they do not mean anything any more, since paths are made under another secret.
func (l *Learner) Clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.byID {
		l.remove(x)
	}
	clear(l.sequences)
}

// Stored attributes a stored event of a slot, before the index has it. It keeps nothing of e. A slot's events come one after another.
func (l *Learner) Stored(slot indexer.SlotID, e *kvevent.Event) {
	if l == nil || l.watching.Load() == 0 || e.Tier != kvevent.GPU || e.MediaUnknown || len(e.Locals) == 0 ||
		len(e.EngineHashes) != len(e.Locals) {
		return
	}
	l.mu.Lock()
	x, waits := l.goesOn(slot, e)
	l.mu.Unlock()
	var before []uint64
	if e.HasParent && (x == nil && waits || x != nil && len(x.chain) == 0) { // the blocks before it were held: they are the prompt's beginning
		before = l.o.Chain(nil, slot, e.Parent, MaxBlocks)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.ends(slot, e)
	if x == nil && waits {
		x = l.begins(slot, e, before, now)
	}
	if now == nil {
		now = l.newSequence(slot)
	}
	now.last = e.EngineHashes[len(e.EngineHashes)-1]
	if x != nil && len(x.Path.Steps) > 0 {
		now.steps = len(x.Path.Steps)
		now.path, now.id = x.Path.Steps[now.steps-1].Number[0], x.ID
		now.open = x.guess || l.byID[x.ID] != x && x.ended.IsZero()
	}
	if x != nil && l.byID[x.ID] == x { // else its end is being looked at
		l.append(x, e, before)
	}
}

// append takes over the blocks of an event that is x's, behind those before if it is the first.
func (l *Learner) append(x *watched, e *kvevent.Event, before []uint64) {
	if len(x.chain) > 0 {
		before = nil
	}
	n := len(before) + len(e.Locals)
	switch {
	case e.BlockSize != 0 && e.BlockSize != x.Size, e.HasParent && len(x.chain)+len(before) == 0, l.blocks+n > openBlocks:
		x.lose()
	case len(x.chain)+n <= MaxBlocks:
		l.blocks += n
		held := len(x.chain) + len(before)
		x.chain = append(append(x.chain, before...), e.Locals...)
		for _, local := range x.chain[len(x.chain)-n:] {
			x.sum = sum(x.sum, local)
		}
		x.last = e.EngineHashes[len(e.EngineHashes)-1]
		x.events, x.lookahead = x.events+1, e.Lookahead
		x.decodes = x.decodes || held > 0 && len(e.Locals) == 1 && !x.AtEnd
		switch {
		case x.decodes:
			x.prefill = max(x.prefill, len(before))
			x.Seen.Store(math.MaxInt32)
		case x.AtEnd && x.events > 1: // it may be the answer
			x.prefill = held
			x.Seen.Store(len(x.chain))
		default:
			x.prefill = len(x.chain)
			x.Seen.Store(x.prefill)
		}
	}
}

// sole returns the only open request of a slot that fits.
func (l *Learner) sole(slot indexer.SlotID, fits func(*watched) bool) (x *watched, several bool) {
	for _, y := range l.slots[slot] {
		if !y.lost && fits(y) {
			if x != nil {
				return x, true
			}
			x = y
		}
	}
	return x, false
}

// goesOn reports whether an event goes on where a request's blocks end.
func (x *watched) goesOn(e *kvevent.Event) bool {
	return len(x.chain) > 0 && e.HasParent && x.last == e.Parent && !x.closed && !x.complete()
}

// goesOn returns whose an event is by its session, or because it goes on where a request's blocks end. If there is none, waits says
// whether a request without blocks is open that may have it.
func (l *Learner) goesOn(slot indexer.SlotID, e *kvevent.Event) (x *watched, waits bool) {
	if e.Session != "" {
		x = l.ofSession(slot, e)
		l.named[slot] = l.named[slot] || x != nil
		return x, false
	}
	x, several := l.sole(slot, func(y *watched) bool { return l.nameless(y) && y.goesOn(e) })
	if x == nil {
		return nil, slices.ContainsFunc(l.slots[slot], l.waits)
	}
	x.guess = x.guess || several
	x.named = false
	if y := l.overtakes(slot, x); y != nil {
		x.guess, y.guess, y.named = true, true, false
		if x.done(e) {
			return y, false
		}
	}
	return x, false
}

// nameless reports whether an event without a session may be a request's.
func (l *Learner) nameless(x *watched) bool { return x.Session == "" || !l.named[x.Slot] }

// waits reports whether an event without a session may have a request's first blocks.
func (l *Learner) waits(x *watched) bool { return len(x.chain) == 0 && !x.lost && l.nameless(x) }

// overtakes returns a request without blocks whose prompt may begin with all of x's blocks, so that the event behind them may be its own.
func (l *Learner) overtakes(slot indexer.SlotID, x *watched) *watched {
	for _, y := range l.slots[slot] {
		n := len(x.chain)
		if l.waits(y) && (y.extends(x) || n <= len(y.sums) && y.sums[n-1] == x.sum) {
			return y
		}
	}
	return nil
}

// done reports whether an event that goes on where x's blocks end is more probably another request's: x has ended, or has all its prompt
// and several blocks come at once.
func (x *watched) done(e *kvevent.Event) bool {
	return !x.ended.IsZero() || len(e.Locals) > 1 && x.Seen != nil && len(x.chain) >= x.Seen.Blocks
}

// ofSession returns whose an event is that names a session; nil: it is not certain. Where several requests have it, such as the turns of a
// client that names it itself, it is the one whose blocks it goes on behind, or a turn that began when that one had ended: a turn has all
// its blocks at once, an answer one after another.
func (l *Learner) ofSession(slot indexer.SlotID, e *kvevent.Event) *watched {
	x, several := l.sole(slot, func(y *watched) bool { return y.Session == e.Session && (y.goesOn(e) || len(y.chain) == 0) })
	if !several {
		return x
	}
	x, several = l.sole(slot, func(y *watched) bool { return y.Session == e.Session && y.goesOn(e) })
	if x == nil || several {
		return nil
	}
	next, several := l.sole(slot, func(y *watched) bool { return y.Session == e.Session && len(y.chain) == 0 && y.extends(x) })
	switch {
	case next == nil:
		return x
	case several || x.ended.IsZero() || next.began.Before(x.ended) || len(e.Locals) == 1:
		x.lose()
		next.lose()
		return nil
	}
	x.closed = true
	return next
}

// begins returns the request whose first blocks an event has, behind those before, which are of a sequence; nil: it is none's, or none is
// known. Cost: linear in the blocks, and a comparison for each request.
func (l *Learner) begins(slot indexer.SlotID, e *kvevent.Event, before []uint64, of *sequence) (best *watched) {
	l.sums = appendSums(l.sums[:0], before, 0)
	from := uint64(0)
	if len(before) > 0 {
		from = l.sums[len(before)-1]
	}
	l.sums = appendSums(l.sums, e.Locals, from)
	over := of != nil && of.steps > 0 && !of.open && l.byID[of.id] == nil // what follows is no answer to it, unless others are here too
	candidates, most, sole := 0, 0, (*watched)(nil)
	for _, y := range l.slots[slot] {
		if !l.waits(y) {
			continue
		}
		agreed := min(len(y.sums), len(l.sums))
		one := len(e.Locals) == 1 && !y.AtEnd
		if of != nil && (!over || y.Shared) && (one || of.steps > 0) && !y.goesOnWith(of) ||
			(one || over) && agreed < len(before) && !y.fits(len(l.sums)) {
			continue // a block of another one's answer
		}
		candidates++
		sole = y
		if e.HasParent && len(before) == 0 || agreed > 0 && y.sums[agreed-1] != l.sums[agreed-1] {
			continue
		}
		if best != nil { // if it is another's, the next one may go to a wrong one too, though only one is left then
			y.guess, best.guess = true, true
		}
		switch open, was := y.ended.IsZero(), best != nil && best.ended.IsZero(); {
		case best == nil, open && !was, open == was && (agreed > most || agreed == most && y.Due < best.Due):
			best, most = y, agreed
		}
	}
	if best == nil && candidates == 1 { // what is recalled of it may be wrong
		best = sole
	}
	if best == nil {
		return nil
	}
	best.guess, best.named = best.guess || candidates > 1 || best.Shared, false
	return best
}

// fits reports whether a prompt may have about so many blocks.
func (x *watched) fits(blocks int) bool {
	return x.Seen == nil || 4*max(blocks-x.Seen.Blocks, x.Seen.Blocks-blocks) <= x.Seen.Blocks+8
}

// lose notes that some of the request's blocks may be missing.
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
	return n > 0 && n <= len(x.Path.Steps) && x.Path.Steps[n-1].Number[0] == y.Path.Steps[n-1].Number[0]
}

// goesOnWith reports whether a request goes on behind that of a sequence.
func (x *watched) goesOnWith(s *sequence) bool {
	return s.steps > 0 && s.steps < len(x.Path.Steps) && x.Path.Steps[s.steps-1].Number[0] == s.path
}
