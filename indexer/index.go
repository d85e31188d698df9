// Package indexer says how many leading blocks of a prompt each worker holds in its KV cache.
//
// An Index takes in what engines report, stored and removed blocks by the engine's own opaque handle, and answers for a
// request's local block hashes (mmhash/block) how many leading blocks each holder has, in which tier. A holder is one
// cache: a worker, or one data-parallel rank of it.
//
//	index.go    Index: holders come and go
//	ingest.go   Store, Remove, Clear: an event on its way into tree, sheets and table
//	drop.go     Drop: what a worker turned out not to hold
//	match.go    Match: the lookup
//	tree.go     a shard: stems found by (parent, place, local hash)
//	stem.go     a run of local hashes and who sits on it
//	seat.go     what one holder has of one stem, in one word
//	sheet.go    sixteen blocks of one holder: handles and tiers
//	table.go    handle → sheet slot; children → stem
//	memory.go   slabs without pointers; runs.go contiguous runs in them; arena.go huge pages, made ready ahead
//	budget.go   what goes first when memory is limited
//	snapshot.go one holder's blocks as a listing and as bytes
//	lock.go     the spinning reader-writer lock of a shard; prefetch_asm.go fetching ahead
//
// The answers are exact: a block counts for a holder if and only if it holds that block and all before it now. The same
// content under two handles, handles that move to other content, gaps from removals in the middle and one block in two
// tiers are all kept apart.
package indexer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// Holder names one holder of one Index: small numbers, dense, given again after Leave.
type Holder uint32

// Tier is where a block lies, the best first.
type Tier uint8

const (
	GPU Tier = iota
	CPU
	Disk
	Remote
	Tiers = 4
)

func (t Tier) String() string {
	if t < Tiers {
		return [...]string{"gpu", "cpu", "disk", "remote"}[t]
	}
	return fmt.Sprintf("tier(%d)", uint8(t))
}

// The errors of the write side. They come wrapped with what was expected and what came; test with errors.Is.
var (
	ErrUnknownHolder = errors.New("no such holder")
	ErrUnknownParent = errors.New("parent block is not held")
	ErrOwnParent     = errors.New("parent block is in its own list")
	ErrMalformed     = errors.New("malformed event")
)

// Options sets up an Index. The zero value is good: no limit.
type Options struct {
	// MaxBytes limits the index's memory; 0 is no limit. It counts whole chunks of 2 MiB, 16 MiB at the least, and not
	// the directories beside them (some 2 %). Full, the index drops what was least useful (see budget.go).
	MaxBytes int64
}

// Index is the prefix index. All methods may be called at the same time; calls for one holder are taken one by one.
//
// Measured on a shared machine with two EPYC cores (traces of internal/benchpeers): a lookup of 128 blocks among 19 M
// held ones 0.5 to 0.8 µs, among 50 M 0.6 µs; 5 to 13 M blocks/s stored per core from empty, 13 to 27 M into used memory;
// 8 to 16 M/s removed; 27 bytes a held block all told. Bad at: prompts that branch every block or two, and a fleet of
// which all prompts begin alike, whose writers share one shard.
type Index struct {
	trees [shards]tree
	mem   *memory
	seed  uint64
	epoch atomic.Uint32 // of the memory budget's clock
	tidy  budget

	mu      sync.Mutex // of the list of holders
	holders atomic.Pointer[[]*holder]
	vacant  []Holder
}

const shards = 64

// New gives an empty index.
func New(o Options) *Index {
	x := &Index{mem: newMemory(o.MaxBytes), seed: rand.Uint64()}
	x.tidy.limited, x.tidy.age = o.MaxBytes > 0, oldest
	for i := range x.trees {
		t := &x.trees[i]
		t.id, t.mem, t.seed, t.epoch = uint32(i), x.mem, x.seed, &x.epoch
		t.runs.mem, t.kids.mem = x.mem, x.mem
	}
	x.holders.Store(new([]*holder))
	return x
}

// HolderOptions says what is known of a holder when it joins.
type HolderOptions struct {
	// CountCopies: the engine may hold a block in several physical copies under one handle and reports each stored and
	// each removed. Otherwise a block stored twice and removed once is gone.
	CountCopies bool
	// BlocksHint is the number of blocks that the holder has room for, where known. Its table is then laid out at once,
	// and filling it is about a third faster.
	BlocksHint int
}

// Join adds an empty holder.
func (x *Index) Join(o HolderOptions) Holder {
	x.mu.Lock()
	defer x.mu.Unlock()
	old := *x.holders.Load()
	var id Holder
	if n := len(x.vacant); n > 0 {
		id, x.vacant = x.vacant[n-1], x.vacant[:n-1]
	} else {
		id = Holder(len(old))
	}
	h := &holder{x: x, id: id, counting: o.CountCopies, hint: o.BlocksHint}
	h.table.mem = x.mem
	h.keysOf = h.keysOfRefs
	h.layOut()
	list := make([]*holder, max(len(old), int(id)+1))
	copy(list, old)
	list[id] = h
	x.holders.Store(&list)
	return id
}

// Leave removes a holder with all that it holds; afterwards its number can be given to another. A lookup that ran before
// may still name it. Cost: 50 to 100 ns a held block; the shards are locked for one stem at a time.
func (x *Index) Leave(id Holder) error {
	h, err := x.lockHolder(id)
	if err != nil {
		return err
	}
	h.clear()
	h.gone = true
	h.mu.Unlock()

	x.mu.Lock()
	defer x.mu.Unlock()
	list := append([]*holder(nil), *x.holders.Load()...)
	list[id] = nil
	x.holders.Store(&list)
	x.vacant = append(x.vacant, id)
	return nil
}

// lockHolder gives a holder with its lock taken.
func (x *Index) lockHolder(id Holder) (*holder, error) {
	if list := *x.holders.Load(); int(id) < len(list) && list[id] != nil {
		h := list[id]
		h.mu.Lock()
		if !h.gone {
			return h, nil
		}
		h.mu.Unlock()
	}
	return nil, fmt.Errorf("holder %d: %w (want one that Join gave and Leave has not taken)", id, ErrUnknownHolder)
}

// treeOf gives the shard of a full stem number.
func (x *Index) treeOf(stem uint32) *tree { return &x.trees[stem>>stemBits] }

// treeFor gives the shard of prompts that begin with a local hash.
func (x *Index) treeFor(local uint64) *tree { return &x.trees[mix(local, x.seed)>>58] }

// HeldBlocks is the number of blocks that a holder has, by the engine's handles, in any tier.
func (x *Index) HeldBlocks(id Holder) int {
	if list := *x.holders.Load(); int(id) < len(list) && list[id] != nil {
		return int(list[id].held.Load())
	}
	return 0
}

// Partial says whether a holder may hold more than the index knows: blocks were dropped for lack of memory since it joined
// or was last cleared, or MarkPartial said so. What the index says of it is then a lower bound, and unknown parents and
// removals are to be expected.
func (x *Index) Partial(id Holder) bool {
	if list := *x.holders.Load(); int(id) < len(list) && list[id] != nil {
		return list[id].lowerBound()
	}
	return false
}

// MarkPartial notes whether a holder may hold blocks of which the index was not told: events were lost, or it joined
// late. Clear does not change it.
func (x *Index) MarkPartial(id Holder, partial bool) {
	if list := *x.holders.Load(); int(id) < len(list) && list[id] != nil {
		list[id].untold.Store(partial)
	}
}

// MarkRecurrent notes whether a holder's engine needs more for a hit than the blocks that it tells of: the states of layers
// such as mamba's. What the index says of it is then an upper bound. Clear does not change it.
func (x *Index) MarkRecurrent(id Holder, recurrent bool) {
	if list := *x.holders.Load(); int(id) < len(list) && list[id] != nil {
		list[id].upper.Store(recurrent)
	}
}

// Recurrent gives what MarkRecurrent noted.
func (x *Index) Recurrent(id Holder) bool {
	list := *x.holders.Load()
	return int(id) < len(list) && list[id] != nil && list[id].upper.Load()
}

func (h *holder) lowerBound() bool { return h.partial.Load() || h.untold.Load() }

// Stats is the index's size and what it had to drop.
type Stats struct {
	Holders  int
	Partial  int   // holders marked partial
	Blocks   int64 // held, summed over holders
	Stems    int64
	Resident int64 // bytes taken from the heap for slabs; directories come to some 2 % more
	Used     int64 // bytes of them in use
	Evicted  int64 // blocks dropped to stay in the budget
	Dropped  int64 // blocks not taken in, for lack of memory
}

// Stats counts. It locks each shard for a moment.
func (x *Index) Stats() Stats {
	s := Stats{Evicted: x.tidy.evicted.Load(), Dropped: x.tidy.dropped.Load()}
	for _, h := range *x.holders.Load() {
		if h == nil {
			continue
		}
		s.Holders++
		s.Blocks += h.held.Load()
		if h.lowerBound() {
			s.Partial++
		}
	}
	for i := range x.trees {
		t := &x.trees[i]
		t.lock.RLock()
		if t.count > 0 {
			s.Stems += int64(t.count) - 1 - int64(len(t.spare))
		}
		t.lock.RUnlock()
	}
	s.Resident, s.Used = x.mem.usage()
	return s
}
