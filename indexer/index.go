// Package indexer tells, for a prompt, how many of its leading blocks each worker holds in its KV cache.
//
// An Index takes in the blocks that engines report as stored and removed, and answers lookups by the prompt's local block hashes
// (package mmhash/block). It uses two numbers for a block: the local hash, which both sides compute from tokens and media, and
// the engine block hash (engine hash for short), which is the engine's own and opaque: it identifies a parent or a removed block,
// and differs from engine to engine. A slot is one cache: a worker, or one data-parallel rank of it.
//
// Cost: a lookup takes 0.1 to 0.8 µs and a stored block about 0.1 µs and 27 bytes; neither allocates per block. Only the write
// side returns errors, which name what was expected; a lookup cannot fail.
//
// Answers are exact: a block counts for a slot if and only if the slot now holds that block and all blocks before it. The index
// handles content under two engine hashes, an engine hash that is reused for other content, gaps left by removals, and a block in
// two tiers.
//
// The index is a prefix tree whose nodes are spread over shards:
//
//	index.go      Index, slots that join and leave, Stats
//	match.go      Match: the lookup
//	ingest.go     Store, Remove, Clear; write.go: one slice of a stored event under a shard's lock
//	groups.go     further KV cache groups of hybrid models; hybrid.go: how much of a prompt counts with them
//	drop.go       Drop: blocks that a worker turned out not to hold; doubt.go: blocks that it may not hold because messages were lost
//	shard.go      a shard: nodes found by (parent, offset, local hash); how calls go from shard to shard
//	node.go       a node: a run of local hashes, and the slots that hold some of it
//	residency.go  what one slot holds of one node, in one word
//	page.go       sixteen blocks of one slot: engine hashes and tiers
//	slot.go       a slot's private state
//	table.go      hash table: engine hash → page entry; (parent, offset, local hash) → node
//	memory.go     slabs without pointers; runs.go contiguous runs in them; arena.go huge pages, touched ahead of use
//	budget.go     what is evicted when memory is limited
//	snapshot.go   one slot's blocks as a listing, and as the events that rebuild them
//	lock.go       the spinning reader-writer lock of a shard; prefetch_asm.go fetching ahead
package indexer

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/mmhash/block"
)

// SlotID names one slot of one Index. Numbers are small and dense; they are reused after Leave.
type SlotID uint32

// Tier is where a block is stored, fastest first.
type Tier = kvevent.Tier

// The tiers, and their number.
const (
	GPU    = kvevent.GPU
	CPU    = kvevent.CPU
	Disk   = kvevent.Disk
	Remote = kvevent.Remote
	Tiers  = kvevent.Tiers
)

// The errors of the write side. They are wrapped with what was expected and what came; test with errors.Is.
var (
	ErrUnknownSlot   = errors.New("no such slot")
	ErrUnknownParent = errors.New("parent block is not held")
	ErrOwnParent     = errors.New("parent block is in its own list")
	ErrMalformed     = errors.New("malformed event")
)

// Options configure an Index. The zero value has no limit.
type Options struct {
	// MaxBytes limits the index's memory; 0 is no limit. It counts whole chunks of 2 MiB, at least 16 MiB and at most 32 GiB, and
	// not the table directories, which add about 2 %. Of it, a quarter at most is for what is kept beside the blocks (Reserve), shared
	// by the slots' owners. It leaves less for blocks, but takes none back. A full index evicts the least recently used blocks (see
	// budget.go).
	MaxBytes int64
}

// Index is the prefix index. All methods are safe for concurrent use; calls for one slot are serialized.
//
// Measured on a shared machine with two EPYC cores (traces of lab/benchpeers): a lookup of 128 blocks among 19 M
// held ones 0.5 to 0.8 µs, among 50 M 0.6 µs; 5 to 13 M blocks/s stored per core from empty, 13 to 27 M into used memory; 8 to 16
// M/s removed; 27 bytes a held block in all. Bad at: prompts that branch every block or two.
type Index struct {
	shards  [shardCount]shard
	mem     *memory
	seed    uint64
	epoch   atomic.Uint32 // clock of the memory budget, see budget.go
	budget  budget
	hybrids atomic.Int32 // slots with groups: while there are none, lookups do nothing for them
	onLost  atomic.Pointer[func(SlotID, []Block)]

	slotList
}

// slotList are an index's slots, and what is known of each besides its blocks.
type slotList struct {
	mu     sync.Mutex // guards changes of the list of slots; readers load it
	slots  atomic.Pointer[[]*slot]
	views  atomic.Pointer[[]atomic.Pointer[groupView]] // by slot; nil: it has no groups, or they are not understood
	vacant []SlotID
}

const shardCount = 64

// New returns an empty index.
func New(o Options) *Index {
	x := &Index{mem: newMemory(o.MaxBytes), seed: rand.Uint64()}
	x.budget.limited, x.budget.idleEpochs = o.MaxBytes > 0, maxIdleEpochs
	for i := range x.shards {
		sh := &x.shards[i]
		sh.first, sh.mem, sh.seed, sh.epoch = uint32(i)<<nodeBits, x.mem, x.seed, &x.epoch
		sh.runs.mem, sh.children.mem = x.mem, x.mem
	}
	x.slots.Store(new([]*slot))
	x.views.Store(new([]atomic.Pointer[groupView]))
	return x
}

// SlotOptions describe a slot's engine.
type SlotOptions struct {
	// CountCopies: the engine reports every physical copy of a block, under the same engine hash, as stored and as removed
	// (vLLM). Otherwise a block that was stored twice is gone after one removal.
	CountCopies bool
	// Owner is who has the slot, for what is shared: a worker, whatever the number of its ranks. 0: nobody else.
	Owner fair.Client
}

// Join adds an empty slot and returns its number.
func (x *Index) Join(o SlotOptions) SlotID {
	x.mu.Lock()
	defer x.mu.Unlock()
	old := *x.slots.Load()
	id, ok := pop(&x.vacant)
	if !ok {
		id = SlotID(len(old))
	}
	s := &slot{pages: pages{x: x, id: id}, countCopies: o.CountCopies}
	s.table.mem, s.table.payer = x.mem, cmp.Or(o.Owner, fair.Client(id+1))
	s.keysOf = s.keysOfRefs
	list := make([]*slot, max(len(old), int(id)+1))
	copy(list, old)
	list[id] = s
	x.slots.Store(&list)
	return id
}

// OnLost sets a function that is called with what a slot holds (see Blocks) just before it is cleared or leaves. It must not call the
// index. Events of the slot wait meanwhile.
func (x *Index) OnLost(do func(SlotID, []Block)) { x.onLost.Store(&do) }

// Leave removes a slot with all that it holds; its number may then be reused. A lookup that began before may still return it.
// Cost: 50 to 100 ns a held block; the shards are locked for one node at a time.
func (x *Index) Leave(id SlotID) error {
	s, err := x.lockSlot(id)
	if err != nil {
		return err
	}
	s.clear()
	s.gone = true
	s.reserve(-s.beside)
	if s.groups != nil {
		x.setView(id, nil)
		x.hybrids.Add(-1)
	}
	s.mu.Unlock()

	x.mu.Lock()
	defer x.mu.Unlock()
	list := slices.Clone(*x.slots.Load())
	list[id] = nil
	x.slots.Store(&list)
	x.vacant = append(x.vacant, id)
	return nil
}

// slot returns a slot without taking its lock; nil if there is none with that number.
func (x *slotList) slot(id SlotID) *slot {
	if list := *x.slots.Load(); int(id) < len(list) {
		return list[id]
	}
	return nil
}

// lockSlot returns a slot with its lock taken.
func (x *slotList) lockSlot(id SlotID) (*slot, error) {
	if s := x.slot(id); s != nil {
		s.mu.Lock()
		if !s.gone {
			return s, nil
		}
		s.mu.Unlock()
	}
	return nil, fmt.Errorf("slot %d: %w (want one that Join gave and Leave has not taken)", id, ErrUnknownSlot)
}

// shardOfNode returns the shard of a node.
func (x *Index) shardOfNode(id uint32) *shard { return &x.shards[id>>nodeBits] }

// shardOfKey returns the shard of a node by its childKey, from bits that the table of children does not use.
func (x *Index) shardOfKey(key uint64) *shard { return &x.shards[key>>16%shardCount] }

// HeldBlocks returns the number of blocks that a slot holds in any tier, counted by engine hash; 0 for an unknown slot.
func (x *slotList) HeldBlocks(id SlotID) int {
	if s := x.slot(id); s != nil {
		return int(s.heldBlocks.Load())
	}
	return 0
}

// Mark says how far a slot's matches can be trusted; Clear does not change it. partial: the slot may hold blocks that were never
// reported to the index, because events were lost or its feed began late. upperBound: a hit needs more than the events say
// (kvevent.Batch.UpperBound).
func (x *slotList) Mark(id SlotID, partial, upperBound bool) {
	if s := x.slot(id); s != nil {
		s.markedPartial.Store(partial)
		s.upperBound.Store(upperBound)
	}
}

// Partial reports whether a slot's matches are a lower bound: Mark said so, or blocks were dropped for lack of memory since it
// joined or was last cleared. Unknown parents and removals of unknown blocks are then to be expected.
func (x *slotList) Partial(id SlotID) bool {
	s := x.slot(id)
	return s != nil && s.lowerBound()
}

// SetForm says how the blocks of a slot are made of prompts, as its stored events show.
func (x *slotList) SetForm(id SlotID, f block.Form) {
	if s := x.slot(id); s != nil {
		s.form.Store(uint64(f.Size)<<32 | uint64(f.Lookahead))
	}
}

// Form returns what SetForm said last; the zero value: nothing yet.
func (x *slotList) Form(id SlotID) block.Form {
	if s := x.slot(id); s != nil {
		packed := s.form.Load()
		return block.Form{Size: int(packed >> 32), Lookahead: int(uint32(packed))}
	}
	return block.Form{}
}

// UpperBound reports whether a slot's matches are an upper bound: Mark said so, its groups are not understood, or WindowsMayWithhold.
func (x *slotList) UpperBound(id SlotID) bool {
	s := x.slot(id)
	return s != nil && (s.upperBound.Load() || s.unclear.Load() || x.WindowsMayWithhold(id))
}

func (s *slot) lowerBound() bool { return s.partial.Load() || s.markedPartial.Load() }

// Stats is the index's size, and what was evicted or dropped.
type Stats struct {
	Slots    int
	Partial  int   // slots that are partial
	Blocks   int64 // held blocks, summed over slots
	Nodes    int64
	Resident int64 // bytes allocated for slabs and groups; table directories add about 2 %
	Used     int64 // bytes of Resident in use
	Evicted  int64 // blocks evicted to stay within MaxBytes
	Dropped  int64 // reported blocks that were not stored, for lack of memory
}

// Stats returns the current values. It locks each shard briefly.
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
	out.Resident, out.Used = out.Resident+x.mem.beside.Load(), out.Used+x.mem.beside.Load()
	return out
}
