package engine

import (
	"encoding/binary"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/mmhash/block"
)

// Names that cannot be computed (a processor's own hash) are learned: the router's audit reads them from the
// events of the worker that served the medium. A name is used after two sightings that agree, and dropped when one disagrees.
// Learned names serve lookups only and are never sent to a worker.

// maxLearnedNames bounds the names that are remembered, about 300 bytes each; the least recently used are evicted.
const maxLearnedNames = 1 << 16

type learnedNames struct {
	secret *block.Secret // of this process alone

	mu    sync.Mutex
	names *simplelru.LRU[uint64, sightings] // by nameKey
}

type sightings struct {
	name  string
	times int
}

func newLearnedNames() *learnedNames {
	names, _ := simplelru.NewLRU[uint64, sightings](maxLearnedNames, nil) // fails for a size below 1
	return &learnedNames{secret: block.NewSecret(), names: names}
}

// nameKey returns a key for what a name depends on besides the engine: the model, the content and the request's processor settings. For
// what the engine fetches itself, also its URL: otherwise an image host could name everybody's copy of a picture. It has a secret, so
// that no client finds settings under which its medium has another's key.
func (m *Model) nameKey(md *Medium, settings ...string) uint64 {
	var text []byte
	for _, s := range append([]string{m.Name, m.Server.EngineVersion, md.Modality, md.Facts.ID.String()}, settings...) {
		text = append(binary.AppendUvarint(text, uint64(len(s))), s...)
	}
	return m.Media.learned.secret.Key().Digest(text)
}

// Learn records the name that the engine's events give a medium. It does nothing and returns false if the content is not known, or
// if the name was computed by a rule that is known for sure.
func (m *Model) Learn(md *Medium, name string) bool {
	if md.nameKey == 0 || len(name) > 512 {
		return false
	}
	if doubtful := m.keys.Learns == rules.LearnsAll && md.Name != name; md.HasName && !md.learned && !doubtful {
		return false
	}
	if m.Media.learned.add(md.nameKey, name) {
		m.Media.noRoom("learned names")
	}
	return true
}

// add records a sighting. It reports whether another entry was evicted for it.
func (l *learnedNames) add(ident uint64, name string) (full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, _ := l.names.Get(ident)
	if s.name != name {
		s = sightings{name: name}
	}
	s.times++
	return l.names.Add(ident, s)
}

// name returns the learned name for a key.
func (l *learnedNames) name(ident uint64) (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, _ := l.names.Get(ident)
	return s.name, s.times >= 2
}
