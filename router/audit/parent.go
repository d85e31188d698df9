package audit

import (
	"slices"

	"github.com/sightline-router/sightline/indexer/kvevent"
)

// A request's first stored block names the block before it, by an engine hash that may have been told before our time. If the
// index does not know it, the request shows what it is: the block before in its own prompt, held now with all before it
// (package stream, stems.go).
//
// Only what is beyond doubt counts: all of the prompt's blocks behind that place were stored behind that parent and no other,
// the event's first block stands at one place of the prompt, no other open request with another beginning could be meant, and
// the engine's own count of cached tokens, where it tells one, ends there too. What is left is traffic that passes us by: a
// request with the same end at the same place behind another beginning, while one of ours is open that found all of its prompt.
// Its blocks would be taken for ours until the engine's count shows that they are not.

// parent is what a request's stored blocks showed.
type parent struct {
	engineHash uint64
	at         int  // number of the request's block behind it; 0: none was named
	doubtful   bool // more than one was named, or the prompt was stored from its beginning
}

// hangs tells whether an event that is the request's own begins behind a block that none of its events told of.
func (x *request) hangs(e *kvevent.Event) bool {
	first := slices.Index(x.Locals, e.Locals[0])
	return first == x.at && first > 0 && e.HasParent && !x.goesOn && !slices.Contains(x.Locals[first+1:], e.Locals[0]) &&
		(e.Session == "" || x.Session == "" || e.Session == x.Session)
}

// showParent takes down, for requests that an event may be of, behind which block it hangs.
func showParent(of []*request, e *kvevent.Event) {
	if i := slices.IndexFunc(of, func(x *request) bool { return e.Session != "" && x.Session == x.ID && e.Session == x.ID }); i >= 0 {
		of = of[i : i+1]
	}
	for _, x := range of {
		other := slices.ContainsFunc(of, func(y *request) bool { return !slices.Equal(x.Locals[:x.at], y.Locals[:y.at]) })
		if p := &x.parent; p.at == 0 {
			*p = parent{e.Parent, x.at, p.doubtful || other}
		} else if p.engineHash != e.Parent || p.at != x.at {
			p.doubtful = true
		}
	}
}

// shown tells whether an ended request showed a parent that the index does not know yet.
func (a *Auditor) shown(x *request) bool {
	p := &x.parent
	return a.o.Parent != nil && p.at > 0 && !p.doubtful && x.held && (x.found < 0 || x.found/x.Size == p.at) && !a.holds(x)
}

// Found takes the engine's own count of a request's cached tokens, before its End; below 0: it told none.
func (a *Auditor) Found(id string, cached int) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if x := a.byID[id]; x != nil {
		x.found = cached
	}
}
