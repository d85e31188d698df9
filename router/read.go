package router

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/learned"
	"github.com/sightline-router/sightline/workers/fleet"
)

// A class is the set of workers of a model that key their cache alike: one release, one set of flags, one block size. A model
// during a rolling upgrade has two. All classes share one index; a request is looked up once for each class that has workers,
// with that class's keys, and the candidates of all classes are ranked together, in tokens.
//
//	body ─▶ a reading for each distinct Prompts ─▶ block hashes for each class ─▶ overlap of the class's slots
//
// Classes that differ only in block size share a reading. A class whose engine will refuse the request is left out; the others
// stay. How large a worker's blocks are, and whether their hashes cover the tokens after them, is known by its events; slots of one
// class that differ in that, or in the rules that have stepped aside for them, are looked up apart. Those that are looked up together are a
// group; a group is named by its index in scratch.blocks, and the first groups are those of the classes, in their order.

// Class is a class of a model's workers that differs from the model's own Prompts.
type Class struct {
	Name      string            // as in fleet.Worker.Class
	Prompts   *engine.LiveModel // may be the model's, or another class's
	BlockSize int               // until events show it; may differ from that of Prompts
	Unit      int               // as in Model
}

// Class returns the class of a name; an unknown name gives the model's own class, "".
func (m *Model) Class(name string) Class {
	for _, c := range m.Classes {
		if c.Name == name {
			return c
		}
	}
	return Class{Prompts: m.Prompts, BlockSize: m.Prompts.Server().BlockSize, Unit: m.Unit}
}

// servedModel is a Model prepared for decisions.
type servedModel struct {
	*Model
	classes []servedClass       // the first is the model's own, for workers that name none
	prompts []*engine.LiveModel // distinct ones, by reading
}

type servedClass struct {
	Class
	reading  int // index of its reading
	rules    rules.Rules
	sessions bool         // its workers' events name the session that we give a request
	judged   *audit.Class // what is known of the rules that compute its prompts
}

func newServedModel(m *Model) *servedModel {
	s := &servedModel{Model: m}
	for _, c := range append([]Class{m.Class("")}, m.Classes...) {
		at := slices.Index(s.prompts, c.Prompts)
		if at < 0 {
			at, s.prompts = len(s.prompts), append(s.prompts, c.Prompts)
		}
		server := c.Prompts.Server()
		s.classes = append(s.classes, servedClass{Class: c, reading: at, rules: server.Rules(), sessions: namesSessions(server)})
	}
	return s
}

// classOf returns the index of a worker's class.
func (m *servedModel) classOf(w *fleet.Worker) int {
	return max(0, slices.IndexFunc(m.classes, func(c servedClass) bool { return c.Name == w.Class }))
}

// reading is a request as one kind of engine reads it.
type reading struct {
	needed       bool // workers of its classes exist
	edits        []body.Edit
	model        *engine.Model  // which reads the request
	prompt       *engine.Prompt // the longest one, since all prompts of a request share a worker; if err is set, an empty one
	computed     *engine.Prompt // the prompt by the rules that have stepped aside; nil: none has
	facts        engine.Facts   // valid even with an error
	engineTokens int            // prompt tokens that the engine will report; 0: not known
	err          error
	panicked     any
}

// refused reports whether the engine will answer with an error.
func (rd *reading) refused() bool { return errors.As(rd.err, new(*engine.Refused)) }

// read makes the readings that the slots need, concurrently, since they wait for the same images.
func (x *planner) read(ctx context.Context) {
	s := x.mem
	x.markNeededClasses()
	own := slices.IndexFunc(s.readings, func(rd reading) bool { return rd.needed })
	var others sync.WaitGroup
	one := func(i int) {
		defer func() { s.readings[i].panicked = recover() }() // re-raised in this request's own goroutine when all are done
		s.readings[i].read(ctx, x.model.prompts[i].Model(), x.req.Path, x.adapter, &s.req)
	}
	for i := own + 1; i < len(s.readings); i++ {
		if s.readings[i].needed {
			others.Go(func() { one(i) })
		}
	}
	one(own)
	others.Wait()
	s.longest = 0
	for i := range s.readings {
		rd := &s.readings[i]
		if rd.panicked != nil {
			panic(rd.panicked)
		}
		if rd.needed {
			s.longest = max(s.longest, len(rd.prompt.IDs))
		}
	}
}

func (rd *reading) read(ctx context.Context, m *engine.Model, path, adapter string, req *body.Request) {
	prompts, err := m.Read(ctx, path, adapter, req)
	rd.model, rd.edits, rd.facts = m, prompts.Edits, prompts.Facts
	if err != nil {
		rd.err, rd.prompt = err, &engine.Prompt{Why: err.Error()}
		return
	}
	rd.prompt = &prompts.List[0]
	exact := true
	for i := range prompts.List {
		one := &prompts.List[i]
		if len(one.IDs) > len(rd.prompt.IDs) {
			rd.prompt = one
		}
		rd.engineTokens += len(one.IDs)
		exact = exact && one.Exact
	}
	if !exact {
		rd.engineTokens = 0
	}
}

// unreadable returns why no reading has a prompt, "" if one has. In the first case it applies only the body edits on which all
// engines agree, so that any worker can read the result. theirs: the mistake is the client's, and the engine will report it.
func (x *planner) unreadable() (why string, theirs bool) {
	var first *reading
	learns := false
	for i := range x.mem.readings {
		rd := &x.mem.readings[i]
		switch {
		case !rd.needed:
			continue
		case rd.err == nil:
			return "", false
		case first == nil:
			first = rd
		}
		learns = learns || x.learning != nil && !rd.refused()
	}
	if learns { // by some
		return "", false
	}
	if x.editsAgree() {
		x.addEdits(first.edits)
	}
	if first.refused() {
		return "the engine will answer with an error", true
	}
	return first.err.Error(), false
}

// editsAgree reports whether all engines that may get the request need the same body edits.
func (x *planner) editsAgree() bool {
	var first *reading
	for i := range x.mem.readings {
		switch rd := &x.mem.readings[i]; {
		case !rd.needed:
		case first == nil:
			first = rd
		case !sameEdits(first.edits, rd.edits):
			return false
		}
	}
	return true
}

// addEdits adds changes to the edits that clean the body, in the order of the body.
func (x *planner) addEdits(changes []body.Edit) {
	x.out.Edits = slices.Concat(x.cleanEdits, changes)
	slices.SortStableFunc(x.out.Edits, func(a, b Edit) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
}

func sameEdits(a, b []body.Edit) bool {
	return slices.EqualFunc(a, b, func(a, b body.Edit) bool { return a.From == b.From && a.To == b.To && bytes.Equal(a.Text, b.Text) })
}

// markNeededClasses notes which classes have workers among the slots, and so which readings are needed, and lists what is looked up for
// them.
func (x *planner) markNeededClasses() {
	s := x.mem
	s.readings = slices.Grow(s.readings[:0], len(x.model.prompts))[:len(x.model.prompts)]
	clear(s.readings)
	s.readings[0].needed = len(x.slots) == 0
	s.beginBlocks(x.model)
	for pass := range 2 { // a class's first group has the form of its first slot that has stored something
		for _, slot := range x.known {
			form := x.opt.Index.Form(slot.ID)
			if class := x.model.classOf(slot.Worker); pass == 0 {
				s.expectForm(class, form)
			} else {
				s.setGroup(slot.ID, s.groupFor(class, form, s.blocks[class].standing.Aside(slot.Worker.Name)))
			}
		}
	}
	for _, slot := range x.slots {
		b := &s.blocks[x.groupOf(slot)]
		b.hasWorkers, s.readings[b.class.reading].needed = true, true
	}
}

// groupOf returns a slot's group.
func (x *planner) groupOf(slot *fleet.Slot) int { return int(x.mem.groups[slot.ID]) }

// beginBlocks begins with one group for each class of a model.
func (s *scratch) beginBlocks(m *servedModel) {
	s.blocks = s.blocks[:0]
	for i := range m.classes {
		s.addBlocks(&m.classes[i], block.Form{}, m.classes[i].judged.Standing(), 0)
	}
}

// addBlocks adds a group. It uses the slices of an earlier decision's again.
func (s *scratch) addBlocks(class *servedClass, form block.Form, standing *audit.Standing, aside audit.Rules) {
	n := len(s.blocks)
	s.blocks = slices.Grow(s.blocks, 1)[:n+1]
	b := &s.blocks[n]
	b.class, b.form, b.hasWorkers, b.standing, b.aside, b.cut.computed, b.front = class, form, false, standing, aside, nil, 0
	b.recalled = recalled{Prompt: learned.Prompt{Blocks: b.recalled.Blocks[:0]}}
}

// expectForm gives a class's first group a form, unless it has one.
func (s *scratch) expectForm(class int, form block.Form) {
	if s.blocks[class].form == (block.Form{}) {
		s.blocks[class].form = form
	}
}

// groupFor returns the group of those slots of a class that have blocks of a form and for which the same rules have stepped aside. If it is
// not listed yet, it is added. A slot that has stored nothing has no form: its blocks are expected to be like those of the first group.
func (s *scratch) groupFor(class int, form block.Form, aside audit.Rules) int {
	own := &s.blocks[class]
	if own.form == (block.Form{}) {
		own.form.Size = own.class.BlockSize
	}
	if form == (block.Form{}) {
		form = own.form
	}
	for i := range s.blocks {
		if b := &s.blocks[i]; b.class == own.class && b.form == form && b.aside == aside {
			return i
		}
	}
	s.addBlocks(own.class, form, own.standing, aside)
	return len(s.blocks) - 1
}

// setGroup records a slot's group.
func (s *scratch) setGroup(id indexer.SlotID, group int) {
	for int(id) >= len(s.groups) {
		s.groups = append(s.groups, 0)
	}
	s.groups[id] = uint16(group)
}

// hashPrompts hashes the prompt for each group that may get it. It runs before the admission lock is taken.
func (x *planner) hashPrompts() {
	x.shaped = shaped(&x.mem.req)
	for group := range x.mem.blocks {
		x.stepAside(group)
		if x.mem.blocks[group].hasWorkers && !x.reading(group).refused() {
			x.hashPrompt(group)
		}
	}
}
