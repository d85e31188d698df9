package engine

import (
	"sync"

	"github.com/zeebo/xxh3"
)

// Names that cannot be computed (a processor's own hash, frames of a video) are learned: the router's audit finds the
// medium in the events of the worker that served it. A name counts after two sightings that agree, and no longer once
// one disagrees. TensorRT-LLM's names are computed, but which of its rules a build has its release does not tell for sure:
// there a learned name goes before a computed one. What is learned is only ever looked up, never sent to a worker.

// learnedNames bounds what is remembered, about 200 bytes each; the oldest go first.
const learnedNames = 1 << 16

type learned struct {
	mu    sync.Mutex
	names map[uint64]sighting
	order []uint64
}

type sighting struct {
	name  string
	times int
}

// ident is what a name depends on beside the engine: the model, the content and the request's processor settings.
func (m *Model) ident(md *Medium, settings ...string) uint64 {
	h := xxh3.HashString(m.Name + "\x00" + m.Server.EngineVersion + "\x00" + md.Modality + "\x00" + md.Facts.ID.String())
	for _, s := range settings {
		h = h*31 + xxh3.HashString(s)
	}
	return h
}

// Learn takes the name that the engine gave a medium, as its events tell it. It reports false, and does nothing, for a
// medium whose name was computed and not by a rule that may be another, or whose content is not known.
func (m *Model) Learn(md *Medium, name string) bool {
	if md.ident == 0 || md.Named && !md.learned && (m.names.trt == nil || md.Name == name) || len(name) > 512 {
		return false
	}
	l := &m.Media.learned
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.names[md.ident]
	switch {
	case !ok:
		if l.names == nil {
			l.names = make(map[uint64]sighting)
		}
		if len(l.order) >= learnedNames {
			delete(l.names, l.order[0])
			l.order = l.order[1:]
		}
		l.order = append(l.order, md.ident)
		s = sighting{name: name, times: 1}
	case s.name == name:
		s.times++
	default:
		s = sighting{name: name, times: 1}
	}
	l.names[md.ident] = s
	return true
}

// name is what was learned for an identity.
func (l *learned) name(ident uint64) (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.names[ident]
	return s.name, s.times >= 2
}
