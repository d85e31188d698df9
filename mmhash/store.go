package mmhash

import (
	"errors"
	"fmt"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/sightline-router/sightline/mmhash/enginehash"
)

// Store caches images' names: content id and recipe → name. Bounded; safe for concurrent use. A name costs about 300 bytes.
type Store struct {
	names *lru.Cache[nameKey, string]
}

type nameKey struct {
	id     ContentID
	recipe [32]byte
}

// NewStore returns a store of at most max names. It calls full for each one that is evicted.
func NewStore(max int, full func()) (*Store, error) {
	if max < 1 {
		return nil, fmt.Errorf("name store of %d entries: want at least 1", max)
	}
	c, err := lru.NewWithEvict(max, func(nameKey, string) { full() })
	if err != nil {
		return nil, fmt.Errorf("name store: %w", err)
	}
	return &Store{c}, nil
}

// Get returns an image's cached name under a recipe's key.
func (s *Store) Get(id ContentID, recipe [32]byte) (string, bool) {
	return s.names.Get(nameKey{id, recipe})
}

// Put caches a name under a recipe's key.
func (s *Store) Put(id ContentID, recipe [32]byte, name string) {
	s.names.Add(nameKey{id, recipe}, name)
}

// Names returns the names of one image, in the recipes' order. Names that are not cached are computed together in one pass over
// the source, and cached. id and size must be the source's (Identify). If the source's bytes were evicted from a cache, that is an
// error.
func (s *Store) Names(src Source, id ContentID, size int64, recipes ...enginehash.Recipe) ([]string, error) {
	names := make([]string, len(recipes))
	var at []int // of those to be computed
	var keys [][32]byte
	var digests []*enginehash.Digest
	for i, r := range recipes {
		names[i] = r.Known
		if r.Ready {
			continue
		}
		key, known := r.Key(), false
		names[i], known = s.Get(id, key)
		if known {
			continue
		}
		at, keys, digests = append(at, i), append(keys, key), append(digests, r.Start())
	}
	if len(at) == 0 {
		return names, nil
	}
	n := int64(0)
	err := src.each(func(p []byte) {
		n += int64(len(p))
		for _, d := range digests {
			d.Write(p)
		}
	})
	if err != nil {
		return nil, err
	}
	if n != size {
		return nil, errGone
	}
	for k, i := range at {
		names[i] = digests[k].Name()
		s.Put(id, keys[k], names[i])
	}
	return names, nil
}

// errGone means that an image's bytes are no longer in memory.
var errGone = errors.New("the image's bytes are not here any more")
