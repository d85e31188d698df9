package router

import (
	"context"
	"slices"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router/fleet"
)

// Place decides and books a prompt that has been read already: for simulations, which have no bodies. An unknown model gets no
// targets.
func (r *Router) Place(id, model string, p *engine.Prompt) Decision {
	r.opt.Ledger.Expire()
	x := r.newPlanner(&Request{ID: id}, &r.live, r.opt.UnsteeredShare, r.scratch.Get().(*scratch))
	x.mem.req.Model = model
	x.preparePrompt(p)
	r.conclude(x)
	r.decided(x)
	x.mem.release()
	r.scratch.Put(x.mem)
	return x.out
}

// preparePrompt does what prepare does, for a prompt that has been read.
func (x *planner) preparePrompt(p *engine.Prompt) {
	if why := x.findModel(); why != "" {
		x.out.Why = why
		return
	}
	if refusal := x.keepAvailable(); refusal != nil {
		x.refuse(refusal)
		return
	}
	x.markNeededClasses()
	for i := range x.mem.readings {
		x.mem.readings[i] = reading{needed: x.mem.readings[i].needed, prompt: p, engineTokens: len(p.IDs)}
	}
	x.hashAndAskHolders(context.Background())
	if len(x.slots) == 0 {
		x.out.Why = noWorker
	}
}

// markNeededClasses notes which classes have workers among the slots, and so which readings are needed, and lists what is looked up for
// them.
func (x *planner) markNeededClasses() {
	s := x.mem
	s.readings = slices.Grow(s.readings[:0], len(x.model.prompts))[:len(x.model.prompts)]
	clear(s.readings)
	s.readings[0].needed = len(x.slots) == 0
	s.beginBlocks(x.model)
	for pass := range 2 { // a class's own entry has the form of its first slot that has stored something
		for _, slot := range x.known {
			form := x.opt.Index.Form(slot.ID)
			if class := x.model.classOf(slot.Worker); pass == 0 {
				s.expectForm(class, form)
			} else {
				s.setClass(slot.ID, s.blocksOf(class, form))
			}
		}
	}
	for _, slot := range x.slots {
		b := &s.blocks[x.classOf(slot)]
		b.hasWorkers, s.readings[b.class.reading].needed = true, true
	}
}

// classOf returns the index in scratch.blocks of what is looked up for a slot.
func (x *planner) classOf(slot *fleet.Slot) int { return int(x.mem.classes[slot.ID]) }

// beginBlocks lists an entry for each class of a model.
func (s *scratch) beginBlocks(m *servedModel) {
	s.blocks = s.blocks[:0]
	for i := range m.classes {
		s.addBlocks(&m.classes[i], block.Form{})
	}
}

// addBlocks adds an entry, with the memory of an earlier decision.
func (s *scratch) addBlocks(class *servedClass, form block.Form) {
	n := len(s.blocks)
	s.blocks = slices.Grow(s.blocks, 1)[:n+1]
	s.blocks[n].class, s.blocks[n].form, s.blocks[n].hasWorkers = class, form, false
}

// expectForm gives a class's own entry a form, unless it has one.
func (s *scratch) expectForm(class int, form block.Form) {
	if s.blocks[class].form == (block.Form{}) {
		s.blocks[class].form = form
	}
}

// blocksOf returns the entry of a class's slots with blocks of a form; those that have stored nothing are expected to be like the others.
func (s *scratch) blocksOf(class int, form block.Form) int {
	own := &s.blocks[class]
	if own.form == (block.Form{}) {
		own.form.Size = own.class.BlockSize
	}
	if form == own.form || form == (block.Form{}) {
		return class
	}
	for i := range s.blocks {
		if s.blocks[i].class == own.class && s.blocks[i].form == form {
			return i
		}
	}
	s.addBlocks(own.class, form)
	return len(s.blocks) - 1
}

// setClass records the entry of a slot.
func (s *scratch) setClass(id indexer.SlotID, class int) {
	for int(id) >= len(s.classes) {
		s.classes = append(s.classes, 0)
	}
	s.classes[id] = uint16(class)
}
