// Package indexer says how many leading blocks of a prompt each worker holds in its KV cache.
//
// An Index takes in what engines report, stored and removed blocks by the engine's own opaque engine hash, and answers for a
// request's local block hashes (mmhash/block) how many leading blocks each slot has, in which tier. A slot is one
// cache: a worker, or one data-parallel rank of it.
//
//	index.go    Index: slots come and go
//	ingest.go   Store, Remove, Clear: an event on its way into tree, pages and table
//	drop.go     Drop: what a worker turned out not to hold
//	match.go    Match: the lookup
//	tree.go     a shard: nodes found by (parent, place, local hash)
//	node.go     a run of local hashes and who sits on it
//	residency.go     what one slot has of one node, in one word
//	page.go    sixteen blocks of one slot: engine hashes and tiers
//	table.go    engine hash → page slot; children → node
//	memory.go   slabs without pointers; runs.go contiguous runs in them; arena.go huge pages, made ready ahead
//	budget.go   what goes first when memory is limited
//	snapshot.go one slot's blocks as a listing and as bytes
//	lock.go     the spinning reader-writer lock of a shard; prefetch_asm.go fetching ahead
//
// The answers are exact: a block counts for a slot if and only if it holds that block and all before it now. The same
// content under two engine hashes, engine hashes that move to other content, gaps from removals in the middle and one block in two
// tiers are all kept apart.
package indexer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// Slot names one slot of one Index: small numbers, dense, given again after Leave.
type SlotID uint32

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
	ErrUnknownSlot   = errors.New("no such slot")
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

// Index is the prefix index. All methods may be called at the same time; calls for one slot are taken one by one.
//
// Measured on a shared machine with two EPYC cores (traces of internal/testkit/benchpeers): a lookup of 128 blocks among 19 M
// held ones 0.5 to 0.8 µs, among 50 M 0.6 µs; 5 to 13 M blocks/s stored per core from empty, 13 to 27 M into used memory;
// 8 to 16 M/s removed; 27 bytes a held block all told. Bad at: prompts that branch every block or two, and a fleet of
// which all prompts begin alike, whose writers share one shard.
type Index struct {
	shards [shardCount]shard
	mem    *memory
	seed   uint64
	epoch  atomic.Uint32 // of the memory budget's clock
	budget budget

	mu     sync.Mutex // of the list of slots
	slots  atomic.Pointer[[]*slot]
	vacant []SlotID
}

const shardCount = 64

// New gives an empty index.
func New(o Options) *Index {
	x := &Index{mem: newMemory(o.MaxBytes), seed: rand.Uint64()}
	x.budget.limited, x.budget.idleEpochs = o.MaxBytes > 0, maxIdleEpochs
	for i := range x.shards {
		sh := &x.shards[i]
		sh.id, sh.mem, sh.seed, sh.epoch = uint32(i), x.mem, x.seed, &x.epoch
		sh.runs.mem, sh.children.mem = x.mem, x.mem
	}
	x.slots.Store(new([]*slot))
	return x
}

// HolderOptions says what is known of a slot when it joins.
type SlotOptions struct {
	// CountCopies: the engine may hold a block in several physical copies under one engine hash and reports each stored and
	// each removed. Otherwise a block stored twice and removed once is gone.
	CountCopies bool
}

// Join adds an empty slot.
func (x *Index) Join(o SlotOptions) SlotID {
	x.mu.Lock()
	defer x.mu.Unlock()
	old := *x.slots.Load()
	var id SlotID
	if n := len(x.vacant); n > 0 {
		id, x.vacant = x.vacant[n-1], x.vacant[:n-1]
	} else {
		id = SlotID(len(old))
	}
	s := &slot{x: x, id: id, countCopies: o.CountCopies}
	s.table.mem = x.mem
	s.keysOf = s.keysOfRefs
	list := make([]*slot, max(len(old), int(id)+1))
	copy(list, old)
	list[id] = s
	x.slots.Store(&list)
	return id
}

// Leave removes a slot with all that it holds; afterwards its number can be given to another. A lookup that ran before
// may still name it. Cost: 50 to 100 ns a held block; the shards are locked for one node at a time.
func (x *Index) Leave(id SlotID) error {
	s, err := x.lockSlot(id)
	if err != nil {
		return err
	}
	s.clear()
	s.gone = true
	s.mu.Unlock()

	x.mu.Lock()
	defer x.mu.Unlock()
	list := append([]*slot(nil), *x.slots.Load()...)
	list[id] = nil
	x.slots.Store(&list)
	x.vacant = append(x.vacant, id)
	return nil
}

// lockHolder gives a slot with its lock taken.
func (x *Index) lockSlot(id SlotID) (*slot, error) {
	if list := *x.slots.Load(); int(id) < len(list) && list[id] != nil {
		s := list[id]
		s.mu.Lock()
		if !s.gone {
			return s, nil
		}
		s.mu.Unlock()
	}
	return nil, fmt.Errorf("slot %d: %w (want one that Join gave and Leave has not taken)", id, ErrUnknownSlot)
}

// treeOf gives the shard of a full node number.
func (x *Index) shardOfNode(node uint32) *shard { return &x.shards[node>>nodeBits] }

// treeFor gives the shard of prompts that begin with a local hash.
func (x *Index) shardForPrompt(local uint64) *shard { return &x.shards[mix(local, x.seed)>>58] }

// HeldBlocks is the number of blocks that a slot has, by the engine's engine hashes, in any tier.
func (x *Index) HeldBlocks(id SlotID) int {
	if list := *x.slots.Load(); int(id) < len(list) && list[id] != nil {
		return int(list[id].heldBlocks.Load())
	}
	return 0
}

// Partial says whether a slot may hold more than the index knows: blocks were dropped for lack of memory since it joined
// or was last cleared, or MarkPartial said so. What the index says of it is then a lower bound, and unknown parents and
// removals are to be expected.
func (x *Index) Partial(id SlotID) bool {
	if list := *x.slots.Load(); int(id) < len(list) && list[id] != nil {
		return list[id].lowerBound()
	}
	return false
}

// MarkPartial notes whether a slot may hold blocks of which the index was not told: events were lost, or it joined
// late. Clear does not change it.
func (x *Index) MarkPartial(id SlotID, partial bool) {
	if list := *x.slots.Load(); int(id) < len(list) && list[id] != nil {
		list[id].markedPartial.Store(partial)
	}
}

// MarkRecurrent notes whether a slot's engine needs more for a hit than the blocks that it tells of: the states of layers
// such as mamba's. What the index says of it is then an upper bound. Clear does not change it.
func (x *Index) MarkRecurrent(id SlotID, recurrent bool) {
	if list := *x.slots.Load(); int(id) < len(list) && list[id] != nil {
		list[id].recurrent.Store(recurrent)
	}
}

// Recurrent gives what MarkRecurrent noted.
func (x *Index) Recurrent(id SlotID) bool {
	list := *x.slots.Load()
	return int(id) < len(list) && list[id] != nil && list[id].recurrent.Load()
}

func (s *slot) lowerBound() bool { return s.partial.Load() || s.markedPartial.Load() }

// Stats is the index's size and what it had to drop.
type Stats struct {
	Slots    int
	Partial  int   // slots marked partial
	Blocks   int64 // held, summed over slots
	Nodes    int64
	Resident int64 // bytes taken from the heap for slabs; directories come to some 2 % more
	Used     int64 // bytes of them in use
	Evicted  int64 // blocks dropped to stay in the budget
	Dropped  int64 // blocks not taken in, for lack of memory
}

// Stats counts. It locks each shard for a moment.
func (x *Index) Stats() Stats {
	out := Stats{Evicted: x.budget.evicted.Load(), Dropped: x.budget.dropped.Load()}
	for _, s := range *x.slots.Load() {
		if s == nil {
			continue
		}
		out.Slots++
		out.Blocks += s.heldBlocks.Load()
		if s.lowerBound() {
			out.Partial++
		}
	}
	for i := range x.shards {
		sh := &x.shards[i]
		sh.lock.RLock()
		if sh.numbersUsed > 0 {
			out.Nodes += int64(sh.numbersUsed) - 1 - int64(len(sh.freeNumbers))
		}
		sh.lock.RUnlock()
	}
	out.Resident, out.Used = x.mem.usage()
	return out
}
