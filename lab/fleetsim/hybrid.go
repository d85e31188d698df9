package fleetsim

import (
	"slices"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/lab/vllmcache"
)

// Workers of hybrid models: the cache is vllmcache, as vLLM has it, with sliding windows or recurrent states beside full attention. A
// run's blocks are found only if every group holds what it needs, and of windows and states little is kept (Engine.Retention).

// hybrid is one worker's cache with several groups, full attention the first.
type hybrid struct {
	*vllmcache.Cache[int32, struct{}]
	groups []vllmcache.Group
	most   int // blocks that runs may need at once
	needs  int // blocks that those admitted may need
}

type hybridRun struct {
	vllmcache.Request[int32]
	needs int
}

func newHybrid(e *Engine, w *worker) *hybrid {
	if e.Groups == nil {
		return nil
	}
	c, err := vllmcache.New[int32, struct{}](vllmcache.Options{Groups: e.Groups, Blocks: e.Blocks, Retention: e.Retention, Step: e.Budget})
	if err != nil || c.Unit() != e.BlockSize {
		panic("a scenario whose groups do not go together")
	}
	h := &hybrid{Cache: c, groups: e.Groups, most: e.Blocks - 1}

	c.Content = func(*vllmcache.Request[int32], int, int) (none struct{}) { return none }
	c.Tell = func(v vllmcache.Event[int32]) {
		one := change{group: v.Group, stored: v.Stored, block: v.Hash}
		if !v.Stored {
			one.remains = c.Held()[vllmcache.Key[int32]{Group: v.Group, Hash: v.Hash}] != nil
		} else {
			one.run, one.from, one.to = v.Request.Owner.(*run), v.From/e.BlockSize, v.To/e.BlockSize
			for _, i := range v.Kept {
				one.kept = append(one.kept, one.run.blocks[(i+1)*v.Size/e.BlockSize-1])
			}
		}
		w.out = append(w.out, one)
	}
	return h
}

// hits returns how many leading tokens of a prompt a worker would find.
func (w *worker) hits(r *run) int {
	if w.hybrid == nil {
		return w.cache.hits(r.blocks, (r.input-1)/w.BlockSize) * w.BlockSize
	}
	return w.hybrid.Found(&vllmcache.Request[int32]{Hashes: r.blocks}, r.input-1)
}

// admitHybrid begins a run: it gets blocks for a first chunk of at most budget tokens. ok is false if there is no room.
func (w *worker) admitHybrid(r *run, budget int) (hit int, ok bool) {
	h := w.hybrid
	if r.hybrid == nil {
		r.hybrid = &hybridRun{Request: vllmcache.Request[int32]{Prompt: r.input, Tokens: r.input, Hashes: r.blocks, Owner: r}}
		for _, g := range h.groups {
			tokens := r.input + r.output
			switch g.Kind {
			case vllmcache.Window:
				tokens = min(tokens, g.Window+w.Budget+2*g.BlockSize)
			case vllmcache.State:
				tokens = min(tokens, 3*g.BlockSize)
			}
			r.hybrid.needs += (tokens+g.BlockSize-1)/g.BlockSize + 1
		}
	}
	if h.needs > 0 && h.needs+r.hybrid.needs > h.most {
		return 0, false
	}
	found := h.Find(&r.hybrid.Request, r.input-1)
	r.chunk = h.Chunk(&r.hybrid.Request, found.Tokens, found.Junction, min(budget, r.input-found.Tokens))
	if !h.Allocate(&r.hybrid.Request, found, r.chunk) {
		return 0, false
	}
	h.needs += r.hybrid.needs
	return found.Tokens, true
}

// advance gives a running run the blocks of its next tokens, at most so many, and returns how many it computes.
func (w *worker) advance(r *run, tokens int) int {
	if w.hybrid == nil {
		return tokens
	}
	q := &r.hybrid.Request
	q.Tokens = r.input + r.made
	if at := q.Computed % w.BlockSize; q.Computed >= r.input && at > 1 && at < w.BlockSize-1 { // no block begins or ends
		q.Computed++
		return 1
	}
	n := w.hybrid.Chunk(q, q.Computed, q.Junction, min(tokens, q.Tokens-q.Computed))
	if n > 0 && !w.hybrid.Allocate(q, nil, n) {
		panic("a run was admitted without the room that it needs")
	}
	return n
}

// release gives a run's blocks back.
func (w *worker) release(r *run) {
	if w.hybrid == nil {
		w.cache.release(r.held)
		return
	}
	w.hybrid.Release(&r.hybrid.Request)
	w.hybrid.needs -= r.hybrid.needs
}

// groupsKnown is what a router makes of events of further groups.
type groupsKnown uint8

const (
	allGroups groupsKnown = iota // all are followed
	fullGroup                    // those of the full group alone
)

// applyGroup hands the index an event of another group than the full one.
func (s *sightline) applyGroup(v *View, slot indexer.SlotID, c change) {
	if s.groups == fullGroup {
		return
	}
	g := v.sim.setup.Engine.Groups[c.group]
	e := kvevent.Event{Group: c.group, Spec: kvevent.Spec{BlockSize: g.BlockSize}}
	if !c.stored {
		c.kept = []int32{c.block}
	}
	for _, b := range c.kept {
		e.EngineHashes = append(e.EngineHashes, v.sim.trace.chain[b])
	}
	if !c.stored {
		_, _ = s.index.RemoveGroup(slot, c.group, e.EngineHashes)
		return
	}
	switch g.Kind {
	case vllmcache.Window:
		e.Spec.Need, e.Spec.Window = kvevent.NeedWindow, g.Window
	case vllmcache.State:
		e.Spec.Need = kvevent.NeedLast
	}
	_, _ = s.index.StoreGroup(slot, v.Size, &e)
}

// hybridPickers are the pickers for scenarios with hybrid workers, a few since they take longer and without the oracle, which knows no
// junctions; the last lacks the feature under test.
func hybridPickers() []Rival {
	few := []string{"sightline", "round robin", "least request", "Dynamo linear", "llm-d filter", "vLLM smetric"}
	pickers := slices.DeleteFunc(Pickers(), func(r Rival) bool { return !slices.Contains(few, r.Name) })
	return append(pickers, Rival{"full group alone", func(v *View) Picker {
		s := newSightline(v).(*sightline)
		s.groups = fullGroup
		return s
	}})
}

// windows gives workers sliding windows of 128 tokens in half of the layers, as GPT-OSS has them. A block is one group's, so there
// are twice as many of them in the same memory.
func windows(s *Setup) {
	size := s.Engine.BlockSize
	s.Engine.Groups = []vllmcache.Group{{Kind: vllmcache.Full, BlockSize: size}, {Kind: vllmcache.Window, BlockSize: size, Window: 128}}
	s.Engine.Blocks *= 2
}

// states gives workers recurrent states in half of the layers.
func states(s *Setup) {
	size := s.Engine.BlockSize
	s.Engine.Groups = []vllmcache.Group{{Kind: vllmcache.Full, BlockSize: size}, {Kind: vllmcache.State, BlockSize: size}}
	s.Engine.Blocks *= 2
}
