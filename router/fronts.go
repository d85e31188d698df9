package router

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// fronts count the requests of each quarter second by the longest beginning that a worker holds. One that several requests of the
// previous quarter had is worth a second copy before its holder has a queue (choose.Candidate.Again); a single request foretells
// nothing. Prompts that come all at once, as those of one program, are within one quarter, and make no copies.
type fronts struct {
	mu sync.Mutex
	of *simplelru.LRU[uint64, front] // by the chain hash of its last block
}

type front struct {
	quarter      int64 // quarters of a second since 1970
	came, before int   // requests in it, and in the one before
}

const maxFronts = 4096

func newFronts() *fronts {
	of, _ := simplelru.NewLRU[uint64, front](maxFronts, nil) // fails only for a size below 1
	return &fronts{of: of}
}

// expected returns how many requests of the next second should begin like this, after those of the previous quarter.
func (f *fronts) expected(key uint64, now time.Time) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	one, _ := f.of.Peek(key)
	return 4 * max(0, one.at(now).before-1)
}

// add counts a request.
func (f *fronts) add(key uint64, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	one, _ := f.of.Get(key)
	one = one.at(now)
	one.came++
	f.of.Add(key, one)
}

// at returns the counts as of another time.
func (o front) at(now time.Time) front {
	switch quarter := now.UnixMilli() / 250; quarter - o.quarter {
	case 0:
		return o
	case 1:
		return front{quarter: quarter, before: o.came}
	default:
		return front{quarter: quarter}
	}
}
