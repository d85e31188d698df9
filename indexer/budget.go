package indexer

import "sync/atomic"

type budget struct {
	limited          bool
	evicted, dropped atomic.Int64
}

func (x *Index) keepBudget(int) {}
