package media

import (
	"errors"

	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/enginehash"
)

// Names returns the names of one image, in the recipes' order. Names that store lacks are computed together in one pass over
// the source, and put into it. id and size must be the source's (Identify). If the source's bytes were evicted from a cache, that is an
// error.
func Names(store *mmhash.Store, src Source, id mmhash.ContentID, size int64, recipes ...enginehash.Recipe) ([]string, error) {
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
		names[i], known = store.Get(id, key)
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
		store.Put(id, keys[k], names[i])
	}
	return names, nil
}

// errGone means that an image's bytes are no longer in memory.
var errGone = errors.New("the image's bytes are not here any more")
