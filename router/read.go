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
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/router/fleet"
)

// A class is the workers of a model that cache a prompt under one key: one release, one set of flags, one block size. A
// model in the middle of a rolling upgrade has two. All classes lie in one index; a request is looked up there once for
// each class that has workers, with that class's own keys, and the candidates of all are ranked together, in tokens.
//
//	body ─▶ a reading for each different Prompts ─▶ block hashes for each class ─▶ overlap of the class's slots
//
// Classes that differ in block size alone share a reading. An engine that will refuse the request leaves the choice, with
// its class; the others stay.

// Class is a class of a model's workers, beside the one of the model's own Prompts.
type Class struct {
	Name      string       // as fleet.Worker.Class names it
	Prompts   *engine.Live // may be the model's, or another class's
	BlockSize int          // may differ from that of Prompts
	Unit      int          // as the model's
}

// Class is the class of a name; one that the model has not counts as its own, "".
func (m *Model) Class(name string) Class {
	for _, c := range m.Classes {
		if c.Name == name {
			return c
		}
	}
	return Class{Prompts: m.Prompts, BlockSize: m.Prompts.Server().BlockSize, Unit: m.Unit}
}

// servedModel is a Model as decisions use it.
type servedModel struct {
	*Model
	classes []servedClass  // the first is the model's own, for workers that name none
	prompts []*engine.Live // different ones, by reading
}

type servedClass struct {
	Class
	reading  int // its number
	rules    rules.Rules
	sessions bool // its workers' events name the session that we give a request
	unit     int  // blocks that its workers' lower tiers give back at once
}

func newServedModel(m *Model) *servedModel {
	s := &servedModel{Model: m}
	for _, c := range append([]Class{m.Class("")}, m.Classes...) {
		at := slices.Index(s.prompts, c.Prompts)
		if at < 0 {
			at, s.prompts = len(s.prompts), append(s.prompts, c.Prompts)
		}
		server := c.Prompts.Server()
		s.classes = append(s.classes, servedClass{c, at, server.Rules(), namesSessions(server), max(1, c.Unit/max(1, c.BlockSize))})
	}
	return s
}

// classOf is the number of a worker's class.
func (m *servedModel) classOf(w *fleet.Worker) int {
	return max(0, slices.IndexFunc(m.classes, func(c servedClass) bool { return c.Name == w.Class }))
}

// reading is a request as one kind of engine reads it.
type reading struct {
	wanted   bool // workers of its classes are there
	edits    []body.Edit
	prompt   *engine.Prompt // the longest one, for prompts of one request share a worker; with err: one of which nothing is known
	several  bool           // there are several of them
	reuse    prompt.Reuse
	usage    int // prompt tokens that the engine will report; 0: not known
	err      error
	panicked any
}

// refused tells whether the engine will answer with an error.
func (rd *reading) refused() bool { return errors.As(rd.err, new(*engine.Refused)) }

// read makes the readings that the slots need, side by side: they wait for the same pictures.
func (x *decision) read(ctx context.Context) {
	s := x.mem
	x.wanted()
	own := slices.IndexFunc(s.readings, func(rd reading) bool { return rd.wanted })
	var others sync.WaitGroup
	one := func(i int) {
		defer func() { s.readings[i].panicked = recover() }() // it is this request's, and goes on in its goroutine when all are done
		s.readings[i].read(ctx, x.model.prompts[i].Model(), x.req.Path, x.adapter, &s.req)
	}
	for i := own + 1; i < len(s.readings); i++ {
		if s.readings[i].wanted {
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
		if rd.wanted {
			s.longest = max(s.longest, len(rd.prompt.IDs))
		}
	}
}

func (rd *reading) read(ctx context.Context, m *engine.Model, path, adapter string, req *body.Request) {
	prompts, err := m.Read(ctx, path, adapter, req)
	rd.edits = prompts.Edits
	if err != nil {
		rd.err, rd.prompt = err, &engine.Prompt{Why: err.Error()}
		return
	}
	rd.prompt, rd.several, rd.reuse = &prompts.List[0], len(prompts.List) > 1, prompts.Reuse
	exact := true
	for i := range prompts.List {
		one := &prompts.List[i]
		if len(one.IDs) > len(rd.prompt.IDs) {
			rd.prompt = one
		}
		rd.usage += len(one.IDs)
		exact = exact && one.Exact
	}
	if !exact {
		rd.usage = 0
	}
}

// unreadable says why no reading has a prompt, "" if one has. Then only the changes are made that every engine wants:
// whoever gets the request can read it. theirs: the mistake is the client's, which the engine will tell it.
func (x *decision) unreadable() (why string, theirs bool) {
	var first *reading
	for i := range x.mem.readings {
		rd := &x.mem.readings[i]
		switch {
		case !rd.wanted:
			continue
		case rd.err == nil:
			return "", false
		case first == nil:
			first = rd
		}
	}
	if x.agreed() {
		x.edit(first.edits)
	}
	if first.refused() {
		return "the engine will answer with an error", true
	}
	return first.err.Error(), false
}

// agreed tells whether all engines that may get the request want its body changed alike.
func (x *decision) agreed() bool {
	var first *reading
	for i := range x.mem.readings {
		switch rd := &x.mem.readings[i]; {
		case !rd.wanted:
		case first == nil:
			first = rd
		case !sameEdits(first.edits, rd.edits):
			return false
		}
	}
	return true
}

// edit adds changes to those that clean the body, in the body's order.
func (x *decision) edit(changes []body.Edit) {
	x.out.Edits = slices.Concat(x.cuts, changes)
	slices.SortStableFunc(x.out.Edits, func(a, b Edit) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
}

func sameEdits(a, b []body.Edit) bool {
	return slices.EqualFunc(a, b, func(a, b body.Edit) bool { return a.From == b.From && a.To == b.To && bytes.Equal(a.Text, b.Text) })
}
