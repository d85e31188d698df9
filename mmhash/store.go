package mmhash

import (
	"fmt"

	lru "github.com/hashicorp/golang-lru/v2"
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
