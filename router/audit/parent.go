package audit

import (
	"slices"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
)

// A request's first stored block names the previous block by its engine hash, which may have been reported before the router
// started. If the index does not know that hash, the request reveals what it is: the previous block of its own prompt, held now
// with all before it (package stream, inferredprefixes.go).
//
// Only certain cases count: all of the prompt's blocks from that place on were stored after that parent and no other, the event's
// first block occurs once in the prompt, no other open request with another beginning could be meant, the engine fetched no image
// before that place itself, and its count of cached tokens, if reported, ends there too. One error remains possible with traffic
// that bypasses us: a request with the same end at the same place after another beginning, while a request of ours is open that
// found its whole prompt cached. Its blocks would be taken for ours until the engine's count disproves them.

// heldBefore are the blocks before an event's first one, if the index knows them.
type heldBefore struct {
	index  *indexer.Index
	slot   indexer.SlotID
	e      *kvevent.Event
	looked bool
	blocks []uint64
}

const maxHeld = 1 << 14 // blocks

// locals returns them; none: the event begins a prompt, or they are not known.
func (h *heldBefore) locals() []uint64 {
	if !h.looked && h.e.HasParent {
		h.blocks = h.index.Chain(nil, h.slot, h.e.Parent, maxHeld)
	}
	h.looked = true
	return h.blocks
}

// follow finds where in the prompt a request's first event begins, if the slot held blocks before it. The event carries the request's
// id. The held blocks are the beginning of the prompt; they may differ from those that were computed for it.
func (x *request) follow(before *heldBefore) {
	if x.judged || x.nextPos >= 0 || x.finding != nil || before.e.BlockSize != x.Size || len(before.locals()) == 0 {
		return // of another size: its process was started anew otherwise
	}
	held, n := before.locals(), 0
	for n < min(len(held), len(x.Locals)) && held[n] == x.Locals[n] {
		n++
	}
	x.guessed = before.index.Partial(x.Slot)
	switch {
	case n == len(held):
		x.next, x.nextPos = before.e.Parent, n
	case n < len(x.Locals):
		x.finding, x.certain = x.differentBlock(n), !x.guessed
	default:
		x.held = true
	}
}

// parent is what a request's stored blocks revealed.
type parent struct {
	engineHash uint64
	at         int  // index of the request's block after it; 0: none was named
	ambiguous  bool // more than one was named, or the prompt was stored from its beginning
}

// followsUnknown reports whether an event of the request begins after a block that none of its events reported.
func (x *request) followsUnknown(e *kvevent.Event) bool {
	first := slices.Index(x.Locals, e.Locals[0])
	return first == x.eventBlock && first > 0 && e.HasParent && !x.continues && !slices.Contains(x.Locals[first+1:], e.Locals[0]) &&
		(e.Session == "" || x.Session == "" || e.Session == x.Session)
}

// recordParent records, for the requests that an event may belong to, the parent that it names.
func recordParent(of []*request, e *kvevent.Event) {
	if i := slices.IndexFunc(of, func(x *request) bool { return e.Session != "" && x.Session == x.ID && e.Session == x.ID }); i >= 0 {
		of = of[i : i+1]
	}
	for _, x := range of {
		other := slices.ContainsFunc(of, func(y *request) bool { return !slices.Equal(x.Locals[:x.eventBlock], y.Locals[:y.eventBlock]) })
		if p := &x.parent; p.at == 0 {
			*p = parent{e.Parent, x.eventBlock, p.ambiguous || other}
		} else if p.engineHash != e.Parent || p.at != x.eventBlock {
			p.ambiguous = true
		}
	}
}

// revealedParent reports whether an ended request revealed a parent that the index does not know yet.
func (a *placements) revealedParent(x *request) bool {
	p := &x.parent
	return a.o.Parent != nil && p.at > 0 && !p.ambiguous && x.held && p.at*x.Size <= x.Prompt.StablePrefix() &&
		(x.found < 0 || x.found/x.Size == p.at) && !a.holds(x)
}

// Found records the engine's count of a request's cached tokens, before its End (below 0: not reported), and by how many its count of
// the prompt's tokens exceeds ours (0: they are equal, or one is not known).
func (a *Auditor) Found(id string, cached, more int) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if x := a.byID[id]; x != nil {
		x.found, x.more = cached, more
	}
}
