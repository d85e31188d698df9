package router

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// fronts count requests by the longest beginning that a worker holds. As many as came recently are expected again
// (choose.Candidate.Again), so a beginning that becomes hot is copied before its holder has a queue, and no more once it is not asked
// about. A single request foretells nothing. Prompts that come all at once, as those of one program, are within one quarter second,
// which counts once it is over.
type fronts struct {
	mu sync.Mutex
	of *simplelru.LRU[uint64, front] // by the chain hash of its last block
}

type front struct {
	quarter int64   // quarters of a second since 1970
	came    int     // requests in it
	before  float64 // those of earlier quarters that still count
}

const (
	maxFronts     = 4096
	frontHalfLife = 40 // quarters
)

func newFronts() *fronts {
	of, _ := simplelru.NewLRU[uint64, front](maxFronts, nil) // fails only for a size below 1
	return &fronts{of: of}
}

// expected returns how many requests should begin like this.
func (f *fronts) expected(key uint64, now time.Time) float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	one, _ := f.of.Peek(key)
	return max(0, one.at(now).before-1)
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
	quarter := now.UnixMilli() / 250
	if quarter == o.quarter {
		return o
	}
	return front{quarter: quarter, before: (o.before + float64(o.came)) * math.Exp2(-float64(quarter-o.quarter)/frontHalfLife)}
}

// count counts a request by what it was looked up with, once where workers of several classes hold the same.
func (f *fronts) count(all []lookup, now time.Time) {
	for i := range all {
		front := all[i].front
		if front != 0 && !slices.ContainsFunc(all[:i], func(l lookup) bool { return l.front == front }) {
			f.add(front, now)
		}
	}
}
