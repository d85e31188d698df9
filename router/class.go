package router

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/router/fleet"
	"github.com/sightline-router/sightline/router/pick"
)

// A class is the workers of a model that cache a prompt under one key: one release, one set of flags, one block size. A
// model in the middle of a rolling upgrade has two. All classes lie in one index; a request is looked up there once for
// each class that has workers, with that class's own keys, and the candidates of all are ranked together, in tokens.
//
//	body ─▶ a view for each different Prompts ─▶ block hashes for each class ─▶ overlap of the class's slots
//
// Classes that differ in block size alone share a view. An engine that will refuse the request leaves the choice, with
// its class; the others stay.

// Class is a class of a model's workers, beside the one of the model's own Prompts.
type Class struct {
	Name      string       // as fleet.Worker.Class names it
	Prompts   *engine.Live // may be the model's, or another class's
	BlockSize int          // may differ from that of Prompts
}

// Class is the class of a name; one that the model has not counts as its own, "".
func (m *Model) Class(name string) Class {
	for _, c := range m.Classes {
		if c.Name == name {
			return c
		}
	}
	return Class{Prompts: m.Prompts, BlockSize: m.Prompts.Server().BlockSize}
}

// classes are a model's, as decisions use them; the first is the model's own, for workers that name none.
type classes struct {
	list    []Class
	reads   []int          // by class: the number of its view
	prompts []*engine.Live // by view
	session []bool         // by class: its workers' events name the session that we give a request
	rules   []rules.Rules  // by class
}

func classesOf(m *Model) (cs classes) {
	cs.list = append([]Class{m.Class("")}, m.Classes...)
	for _, c := range cs.list {
		at := slices.Index(cs.prompts, c.Prompts)
		if at < 0 {
			at, cs.prompts = len(cs.prompts), append(cs.prompts, c.Prompts)
		}
		cs.reads = append(cs.reads, at)
		cs.session = append(cs.session, namesSessions(c.Prompts.Server()))
		cs.rules = append(cs.rules, c.Prompts.Server().Rules())
	}
	return cs
}

// of is the number of a worker's class.
func (cs *classes) of(w *fleet.Worker) int {
	for i := range cs.list {
		if cs.list[i].Name == w.Class {
			return i
		}
	}
	return 0
}

// view is a request as one kind of engine reads it.
type view struct {
	used     bool // workers of its classes are there
	edits    []body.Edit
	p        *engine.Prompt // the longest of its prompts: they share a worker; nil: err
	several  bool           // there are several of them
	reuse    prompt.Reuse
	usage    int // prompt tokens that the engine will report; 0: not known
	err      error
	panicked any
}

// look is what one class looks up.
type look struct {
	used   bool // the class has workers
	locals []uint64
	chain  []uint64
}

// refused is the engine's refusal, or ours; nil: there is none.
func (rd *view) refused() (refused *engine.Refused) {
	if rd.err != nil {
		errors.As(rd.err, &refused)
	}
	return refused
}

// read makes the views that the slots need, side by side: they wait for the same pictures.
func (s *scratch) read(ctx context.Context, path string, n named, slots []*fleet.Slot) {
	cs := &n.model.classes
	s.views = slices.Grow(s.views[:0], len(cs.prompts))[:len(cs.prompts)]
	clear(s.views)
	s.looks = slices.Grow(s.looks[:0], len(cs.list))[:len(cs.list)]
	for i := range s.looks {
		s.looks[i].used = false
	}
	s.views[0].used = len(slots) == 0
	for _, slot := range slots {
		class := cs.of(slot.Worker)
		s.looks[class].used, s.views[cs.reads[class]].used = true, true
	}
	own := slices.IndexFunc(s.views, func(rd view) bool { return rd.used })
	var others sync.WaitGroup
	one := func(i int) {
		defer func() { s.views[i].panicked = recover() }() // it is this request's, and goes on in its goroutine when all are done
		s.views[i].read(ctx, cs.prompts[i].Model(), path, n.lora, &s.req)
	}
	for i := own + 1; i < len(s.views); i++ {
		if s.views[i].used {
			others.Go(func() { one(i) })
		}
	}
	one(own)
	others.Wait()
	s.longest = 0
	for i := range s.views {
		rd := &s.views[i]
		if rd.panicked != nil {
			panic(rd.panicked)
		}
		if rd.p != nil {
			s.longest = max(s.longest, len(rd.p.IDs))
		}
	}
}

func (rd *view) read(ctx context.Context, m *engine.Model, path, lora string, req *body.Request) {
	prompts, err := m.Read(ctx, path, lora, req)
	if prompts != nil {
		rd.edits = prompts.Edits
	}
	if rd.err = err; err != nil {
		return
	}
	// Several prompts of one request share a worker: the longest one decides.
	exact := true
	rd.p, rd.several, rd.reuse = &prompts.List[0], len(prompts.List) > 1, prompts.Reuse
	for i := range prompts.List {
		one := &prompts.List[i]
		if len(one.IDs) > len(rd.p.IDs) {
			rd.p = one
		}
		rd.usage += len(one.IDs)
		exact = exact && one.Exact
	}
	if !exact {
		rd.usage = 0
	}
}

// failed is the view that speaks for all if none has a prompt; else nil.
func (s *scratch) failed() (first *view) {
	good := false
	for i := range s.views {
		rd := &s.views[i]
		if !rd.used {
			continue
		}
		good = good || rd.err == nil
		if first == nil {
			first = rd
		}
	}
	if good {
		return nil
	}
	return first
}

// editsForAny are the changes that every engine wants: whoever gets the request can read it.
func (s *scratch) editsForAny() (common []body.Edit) {
	for i, first := 0, true; i < len(s.views); i++ {
		rd := &s.views[i]
		switch {
		case !rd.used:
		case first:
			common, first = rd.edits, false
		case !sameEdits(common, rd.edits):
			return nil
		}
	}
	return common
}

func sameEdits(a, b []body.Edit) bool {
	return slices.EqualFunc(a, b, func(a, b body.Edit) bool { return a.From == b.From && a.To == b.To && bytes.Equal(a.Text, b.Text) })
}

// candidates looks a class's prompt up and adds its slots. An engine that will refuse it has no candidates; one whose
// prompt is not known has some of which nothing is known.
func (r *Router) candidates(s *scratch, cs *classes, class int, slots []*fleet.Slot, lora string, now time.Time) {
	rd, l, size := &s.views[cs.reads[class]], &s.looks[class], cs.list[class].BlockSize
	if !l.used || rd.refused() != nil {
		return
	}
	l.locals, l.chain, s.matches.Slots = l.locals[:0], l.chain[:0], s.matches.Slots[:0]
	tokens := s.longest
	if rd.p != nil {
		tokens = len(rd.p.IDs)
		if like := s.twin(cs, class); like != nil {
			l.locals, l.chain = append(l.locals, like.locals...), append(l.chain, like.chain...)
		} else {
			l.locals = rd.p.Locals(l.locals, size, lora)
			l.chain = block.Chain(l.chain, l.locals, 0, false)
		}
		if rd.reuse != prompt.Recomputed {
			r.opt.Index.Match(l.locals, &s.matches)
		}
	}
	for _, h := range s.matches.Slots {
		for int(h.Slot) >= len(s.held) {
			s.held = append(s.held, 0)
		}
		s.held[h.Slot] = int32(h.Blocks)
	}
	from := len(s.candidates)
	for i, slot := range slots {
		if len(cs.list) > 1 && cs.of(slot.Worker) != class {
			continue
		}
		c := pick.Candidate{Slot: i, First: slot.Worker == s.trial, Tokens: tokens}
		exact := 0
		if int(slot.ID) < len(s.held) {
			exact = int(s.held[slot.ID])
		}
		if slot.EventAge != nil {
			exact, c.Doubtful = believed(exact, slot.EventAge(now))
		}
		c.Exact = exact * size
		c.Predicted = c.Exact
		if len(l.chain) > 0 && rd.reuse != prompt.Recomputed {
			c.Predicted = r.predicted.leading(uint32(slot.ID), l.chain, exact, now) * size
		}
		c.Shared = c.Predicted - c.Exact
		load := slot.Load(now)
		c.Inflight, c.Backlog, c.Recent, c.Usage = load.Inflight, load.Backlog, load.Recent, load.Usage
		s.candidates = append(s.candidates, c)
	}
	for _, h := range s.matches.Slots {
		s.held[h.Slot] = 0
	}
	if rd.p != nil {
		r.encoding(rd.p, slots, s.candidates[from:])
	}
}

// twin is what an earlier class looked up, if this one has the same blocks: two releases read most requests alike.
func (s *scratch) twin(cs *classes, class int) *look {
	p := s.views[cs.reads[class]].p
	for i := range class {
		if q := s.views[cs.reads[i]].p; s.looks[i].used && q != nil && cs.list[i].BlockSize == cs.list[class].BlockSize && p.SameBlocks(q) {
			return &s.looks[i]
		}
	}
	return nil
}

// alike keeps of the ranked candidates those that take the body as the best one does: Envoy changes it once.
func (r *Router) alike(ranked []pick.Candidate, slots []*fleet.Slot, s *scratch, cs *classes, model string) []pick.Candidate {
	if len(cs.prompts) == 1 {
		return ranked
	}
	editsOf := func(c pick.Candidate) []body.Edit { return s.views[cs.reads[cs.of(slots[c.Slot].Worker)]].edits }
	kept := slices.DeleteFunc(ranked[1:], func(c pick.Candidate) bool { return !sameEdits(editsOf(c), editsOf(ranked[0])) })
	if len(kept) < len(ranked)-1 {
		r.opt.Log.Info("classes of a model need different changes of a body: only workers of one kind are offered", zap.String("model", model))
	}
	return ranked[:1+len(kept)]
}
