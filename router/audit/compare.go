package audit

import (
	"slices"
	"time"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer/kvevent"
)

// request is an open one.
type request struct {
	Expectation
	since, over time.Time // over is guarded by Auditor.mu
	home        *slot
	before      uint64   // the slot's events when it came
	ids         []uint32 // nil where there was no room: compared by block

	next      uint64 // engine hash of the last block that was told and is ours
	nextPos   int    // number of the block behind it; -1: none was told yet
	at        int    // block where the last event compared begins
	goesOn    bool   // behind the last that was told and is ours
	parent    parent
	found     int  // cached tokens, by the engine's own count; below 0: not told. Guarded by Auditor.mu until the end
	held      bool // all its blocks were told, if only for a moment
	otherSize int  // tokens a block of an event that cannot be compared
	finding   *Finding
	told      []told // what the event with the finding calls the request's media
	rivals    int    // further events that departed from it: which one is its own is not known
}

type likeness uint8

const (
	foreign  likeness = iota // says nothing of the request
	same                     // its blocks are the request's
	departed                 // begins as the request does, and goes on otherwise
)

// evidence is how many tokens must agree before a difference is taken for one of the same request: a shorter beginning
// is common to all requests of a template.
const evidence = 16

// compare tells what an event is to a request, and follows the request's blocks. It speaks of what is known of the prompt
// alone: of one that is exact only in part the worker's events go on behind that, with media and text that cannot be
// compared.
func (x *request) compare(e *kvevent.Event) likeness {
	if e.BlockSize != x.Size {
		x.otherSize = e.BlockSize
		return foreign
	}
	p, child := x.place(e)
	x.goesOn = p >= 0 && p == x.nextPos && e.Parent == x.next
	if x.at = p; p < 0 {
		return foreign
	}
	n := x.blocks(e, p)
	if n > 0 {
		x.next, x.nextPos = e.EngineHashes[n-1], p+n
	}
	if p+n < len(x.Locals) {
		switch {
		case n == len(e.Locals):
			return same
		case n > 0, child, x.agree(e, p) >= evidence:
			return departed
		}
		return foreign
	}
	if x.held = x.held || n > 0 || child; x.held && (x.Prompt.Exact || n == len(e.Locals) || p >= x.known()) {
		return same // what stands behind was generated, or is not known
	}
	switch { // behind what can be hashed there are tokens that can still be compared
	case n == 0 && !child && x.agree(e, p) < evidence:
		return foreign
	case !x.agrees(e, p):
		return departed
	}
	x.held = true
	x.next, x.nextPos = e.EngineHashes[len(e.EngineHashes)-1], p+len(e.EngineHashes)
	return same
}

// known counts the request's blocks of which a token is known: behind them no event can be compared.
func (x *request) known() int { return max(len(x.Locals), (len(x.ids)+x.Size-1)/x.Size) }

// place is the number of the request's block that an event's first block stands for, -1: none; child says that the
// event goes on behind a block of the request's own.
func (x *request) place(e *kvevent.Event) (at int, child bool) {
	switch {
	case !e.HasParent:
		return 0, false
	case x.nextPos >= 0 && e.Parent == x.next:
		return x.nextPos, true
	}
	if at := slices.Index(x.Locals, e.Locals[0]); at > 0 {
		return at, false
	}
	if x.nextPos < 0 && x.From > 0 {
		return x.From, false // its parent may be the prefix that was there
	}
	return -1, false
}

// blocks counts the leading blocks of an event that are the request's own.
func (x *request) blocks(e *kvevent.Event, p int) (n int) {
	for n < len(e.Locals) && p+n < len(x.Locals) && e.Locals[n] == x.Locals[p+n] {
		n++
	}
	return n
}

// agree counts the leading tokens of an event that are the request's own.
func (x *request) agree(e *kvevent.Event, p int) (n int) {
	for n < len(e.Tokens) && p*x.Size+n < len(x.ids) && e.Tokens[n] == x.ids[p*x.Size+n] {
		n++
	}
	return n
}

// agrees tells whether an event and the request have the same tokens where both are known.
func (x *request) agrees(e *kvevent.Event, p int) bool {
	return x.agree(e, p) >= min(len(e.Tokens), len(x.ids)-p*x.Size)
}

// explain names the first difference between an event that begins at block p and the request.
func (x *request) explain(e *kvevent.Event, p int) *Finding {
	if len(e.Tokens) == 0 || x.ids == nil {
		return &Finding{Verdict: Block, Position: (p + x.blocks(e, p)) * x.Size}
	}
	n := x.agree(e, p)
	at := p*x.Size + n
	if n == len(e.Tokens) || at >= len(x.ids) { // the tokens are equal: a name, a salt or an adapter is not
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

// explainKeys tells which of the things beside tokens is different.
func (x *request) explainKeys(e *kvevent.Event, p int) *Finding {
	for i := range e.Media {
		m := &e.Media[i]
		if md := x.mediumAt(m, p); md != nil && md.Named && md.Name != string(m.Name) {
			return &Finding{Verdict: MediaName, Position: md.Offset}
		}
	}
	return &Finding{Verdict: Keys, Position: (p + x.blocks(e, p)) * x.Size}
}

// mediumAt is the request's medium that an event's mention stands for.
func (x *request) mediumAt(m *kvevent.Mention, p int) (found *engine.Medium) {
	from := (p + m.Block) * x.Size
	for i := range x.Prompt.Media {
		md := &x.Prompt.Media[i]
		switch {
		case m.Paired && md.Offset == from+m.Offset:
			return md
		case !m.Paired && md.Offset < from+x.Size && md.Offset+md.Length > from:
			if found != nil {
				return nil // two of them touch the block
			}
			found = md
		}
	}
	return found
}

// told is what an event calls a medium of a request.
type told struct {
	medium *engine.Medium
	name   string
}

// learn takes names that could not be computed, or were computed by a rule that was in doubt, and gives how many.
func (x *request) learn(names []told) (n int) {
	for _, t := range names {
		if x.Prompts.Learn(t.medium, t.name) {
			n++
		}
	}
	return n
}

// names reads what an event with the request's tokens calls the request's media.
func (x *request) names(e *kvevent.Event) (out []told) {
	p := x.at
	if len(e.Media) == 0 || p*x.Size >= len(x.ids) || !x.agrees(e, p) {
		return nil
	}
	var last *engine.Medium
	for i := range e.Media {
		md := x.mediumAt(&e.Media[i], p)
		if md == nil || md == last {
			continue
		}
		last = md
		out = append(out, told{md, string(e.Media[i].Name)})
	}
	return out
}
