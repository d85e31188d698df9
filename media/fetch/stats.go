package fetch

import (
	"errors"
	"sync/atomic"
)

// Stats is what a Fetcher did since it was made.
type Stats struct {
	Hits      uint64          // Gets answered from memory, stale ones too
	Downloads uint64          // images read
	Unchanged uint64          // checks that ended in 304 or an equal validator
	Failed    map[Kind]uint64 // Gets that ended in an error
}

type counters struct {
	hits, downloads, unchanged atomic.Uint64
	failed                     [kinds]atomic.Uint64
}

// Stats returns the counters.
func (f *Fetcher) Stats() Stats {
	s := Stats{Hits: f.stats.hits.Load(), Downloads: f.stats.downloads.Load(), Unchanged: f.stats.unchanged.Load(), Failed: map[Kind]uint64{}}
	for k := range f.stats.failed {
		if n := f.stats.failed[k].Load(); n > 0 {
			s.Failed[Kind(k)] = n
		}
	}
	return s
}

// count notes how a Get ended.
func (f *Fetcher) count(err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		f.stats.failed[e.Kind].Add(1)
	}
	return err
}
