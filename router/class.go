package router

import (
	"context"
	"errors"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/mmhash/chat"
	"github.com/sightline-router/sightline/router/fleet"
	"github.com/sightline-router/sightline/router/pick"
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
	Prompts   *mmhash.Live // may be the model's, or another class's
	BlockSize int          // 0: as Prompts says
}

// classes are a model's, as decisions use them; the first is the model's own, for workers that name none.
type classes struct {
	list    []Class
	reads   []int          // by class: the number of its reading
	prompts []*mmhash.Live // by reading
}

func classesOf(m *Model) (cs classes) {
	cs.list = append([]Class{{Prompts: m.Prompts}}, m.Classes...)
	for i := range cs.list {
		c := &cs.list[i]
		if c.BlockSize == 0 {
			c.BlockSize = c.Prompts.Server().BlockSize
		}
		at := slices.Index(cs.prompts, c.Prompts)
		if at < 0 {
			at, cs.prompts = len(cs.prompts), append(cs.prompts, c.Prompts)
		}
		cs.reads = append(cs.reads, at)
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

// reading is a request as one kind of engine reads it.
type reading struct {
	used  bool // workers of its classes are there
	model *mmhash.Model
	edits []mmhash.Edit
	p     *mmhash.Prompt // the longest of its prompts: they share a worker; nil: err
	usage int            // prompt tokens that the engine will report; 0: not known
	err   error
}

// refused is the engine's refusal, or ours; nil: there is none.
func (r *reading) refused() *mmhash.Refused {
	var refused *mmhash.Refused
	errors.As(r.err, &refused)
	return refused
}

// read makes the readings that the slots need, side by side: they wait for the same pictures.
func (s *scratch) read(ctx context.Context, path string, n named, slots []*fleet.Slot) {
	cs := &n.model.classes
	s.readings = slices.Grow(s.readings[:0], len(cs.prompts))[:len(cs.prompts)]
	clear(s.readings)
	s.readings[0].used = len(slots) == 0
	for _, slot := range slots {
		s.readings[cs.reads[cs.of(slot.Worker)]].used = true
	}
	var rest sync.WaitGroup
	first := true
	for i := len(s.readings) - 1; i >= 0; i-- {
		rd := &s.readings[i]
		if !rd.used {
			continue
		}
		one := func() { rd.read(ctx, cs.prompts[i].Model(), path, n.lora, &s.req) }
		if last := !slices.ContainsFunc(s.readings[:i], func(r reading) bool { return r.used }); last {
			one()
		} else {
			rest.Go(one)
		}
		first = false
	}
	_ = first
	rest.Wait()
}
