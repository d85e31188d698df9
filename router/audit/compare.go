package audit

import (
	"slices"
	"time"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
)

// request is an open request.
type request struct {
	Expectation
	beganAt, endedAt time.Time // over is guarded by Auditor.mu
	slot             *slot
	eventsBefore     uint64   // slot.events when it came
	ids              []uint32 // nil if there was no room: compared by block

	next        uint64 // engine hash of the last reported block of the request
	nextPos     int    // index of the block after it; -1: none reported yet
	eventBlock  int    // block at which the event compared last begins
	continues   bool   // that event continues after the last reported block of the request
	parent      parent
	found, more int  // see Found. Guarded by Auditor.mu until the end
	held        bool // all its blocks were reported, if only for a moment
	otherSize   int  // block size of an event whose blocks are of another form
	finding     *Finding
	guessed     bool // where its first event belongs is only probable: what is held before may have been found out (parent.go)
	certain     bool // the event of finding is this request's: it names its session
	judged      bool // its verdict is given
	borrowed    bool // another request has its session. Guarded by Auditor.mu until the end
	twice       bool // the same prompt was sent to another slot meanwhile. Guarded by Auditor.mu until the end
	named       bool // an event of slot namedAt has named it. Both are guarded by Auditor.mu until the end
	namedAt     indexer.SlotID
	rivalEvents int // further events that departed from the request: which one is its own is not known
}

type relation uint8

const (
	unrelated relation = iota // not related to the request
	same                      // its blocks are the request's
	diverged                  // begins like the request and then differs
)

// minAgreement is how many tokens must agree before a difference is attributed to the request: a shorter beginning is common to all
// requests with the same template.
const minAgreement = 16

// compare returns how an event, which may name the request, relates to it, and follows its blocks. It judges only the known part of the
// prompt: if the prompt is exact only in part, the worker's events continue after it with media and text that cannot be compared.
func (x *request) compare(e *kvevent.Event, named bool, before *heldBefore) relation {
	if e.BlockSize != x.Size || e.Lookahead != x.Lookahead {
		x.otherSize = e.BlockSize
		return unrelated
	}
	p, child := x.positionOf(e, before)
	x.continues = p >= 0 && p == x.nextPos && e.Parent == x.next
	x.eventBlock = p
	if p < 0 {
		return unrelated
	}
	n := x.blocks(e, p)
	its := child || named && !e.HasParent // whatever the event's tokens are
	if n > 0 {
		x.next, x.nextPos = e.EngineHashes[n-1], p+n
	}
	if p+n < len(x.Locals) {
		switch {
		case n == len(e.Locals):
			return same
		case n > 0, its, x.agree(e, p) >= minAgreement:
			return diverged
		}
		return unrelated
	}
	x.held = x.held || n > 0 || child
	if x.held && (x.Prompt.Exact || n == len(e.Locals) || p >= x.known()) {
		return same // the rest was generated or is not known
	}
	switch { // after the last hashable block, tokens can still be compared
	case n == 0 && !its && x.agree(e, p) < minAgreement:
		return unrelated
	case !x.agrees(e, p):
		return diverged
	}
	x.held = true
	x.next, x.nextPos = e.EngineHashes[len(e.EngineHashes)-1], p+len(e.EngineHashes)
	return same
}

// known returns the number of blocks with at least one known token: no event after them can be compared.
func (x *request) known() int { return max(len(x.Locals), (len(x.ids)+x.Size-1)/x.Size) }

// positionOf returns the index of the request's block that an event's first block stands for, -1: none; child means that the event's
// parent is a block of the request.
func (x *request) positionOf(e *kvevent.Event, before *heldBefore) (at int, child bool) {
	switch {
	case !e.HasParent:
		return 0, false
	case x.nextPos >= 0 && e.Parent == x.next:
		return x.nextPos, true
	}
	at = slices.Index(x.Locals, e.Locals[0])
	if at <= 0 && x.nextPos < 0 && x.From > 0 {
		at = x.From // its parent may be the prefix that was there
	}
	if at <= 0 {
		return -1, false
	}
	if held := before.locals(); len(held) > 0 && !slices.Equal(held, x.Locals[:at]) {
		return -1, false // a prompt that begins otherwise
	}
	return at, false
}

// blocks returns how many leading blocks of an event are the request's.
func (x *request) blocks(e *kvevent.Event, p int) (n int) {
	for n < len(e.Locals) && p+n < len(x.Locals) && e.Locals[n] == x.Locals[p+n] {
		n++
	}
	return n
}

// agree returns how many leading tokens of an event are the request's.
func (x *request) agree(e *kvevent.Event, p int) (n int) {
	for n < len(e.Tokens) && p*x.Size+n < len(x.ids) && e.Tokens[n] == x.ids[p*x.Size+n] {
		n++
	}
	return n
}

// agrees reports whether an event and the request have the same tokens as far as both are known.
func (x *request) agrees(e *kvevent.Event, p int) bool {
	return x.agree(e, p) >= min(len(e.Tokens), len(x.ids)-p*x.Size)
}

// explain returns the first difference between the request and an event that begins at block p.
func (x *request) explain(e *kvevent.Event, p int) *Finding {
	if len(e.Tokens) == 0 || x.ids == nil {
		return x.differentBlock(p + x.blocks(e, p))
	}
	n := x.agree(e, p)
	at := p*x.Size + n
	if n == len(e.Tokens) || at >= len(x.ids) { // the tokens are equal: a name, a salt or an adapter differs
		return x.explainKeys(e, p)
	}
	for i := range x.Prompt.Media {
		md := &x.Prompt.Media[i]
		end := md.Offset + md.Length
		switch {
		case at > md.Offset && at < end:
			return &Finding{Verdict: Span, Position: md.Offset, Ours: md.Length, Theirs: at - md.Offset}
		case at == end && n > 0 && e.Tokens[n] == e.Tokens[n-1]:
			more := n
			for more < len(e.Tokens) && e.Tokens[more] == e.Tokens[n] {
				more++
			}
			return &Finding{Verdict: Span, Position: md.Offset, Ours: md.Length, Theirs: md.Length + more - n}
		}
	}
	return &Finding{Verdict: Token, Position: at, Ours: int(x.ids[at]), Theirs: int(e.Tokens[n])}
}

// differentBlock returns the finding about a block of which only the hash is known.
func (x *request) differentBlock(n int) *Finding {
	f := &Finding{Verdict: Block, Position: n * x.Size}
	f.InMedium = slices.ContainsFunc(x.Prompt.Media, func(md engine.Medium) bool {
		return md.Offset < f.Position+x.Size && md.Offset+md.Length > f.Position
	})
	return f
}

// explainKeys returns which of the other parts of the block key differs.
func (x *request) explainKeys(e *kvevent.Event, p int) *Finding {
	for i := range e.Media {
		m := &e.Media[i]
		if md := x.mediumAt(m, p); md != nil && md.HasName && md.Name != string(m.Name) {
			return &Finding{Verdict: MediaName, Position: md.Offset}
		}
	}
	return &Finding{Verdict: Keys, Position: (p + x.blocks(e, p)) * x.Size}
}

// mediumAt returns the request's medium that a mention in an event stands for.
func (x *request) mediumAt(m *kvevent.MediaRef, p int) (found *engine.Medium) {
	from := (p + m.Block) * x.Size
	for i := range x.Prompt.Media {
		md := &x.Prompt.Media[i]
		switch {
		case m.Paired && md.Offset == from+m.Offset:
			return md
		case !m.Paired && md.Offset < from+x.Size && md.Offset+md.Length > from:
			if found != nil {
				return nil // two media touch the block
			}
			found = md
		}
	}
	return found
}
