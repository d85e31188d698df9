// Package speculative keeps what routed prompts will leave at their workers, until the workers' events confirm it. Without it, two requests
// with the same new image 10 ms apart would go to two workers.
//
// A block is identified by its chain hash, which covers its whole prefix (promises.go). All blocks of a prompt lie in one shard,
// selected by the first block, so a prompt costs one lock, and lookups share it. Most prompts of a service begin alike and fall
// into one shard, so the limit is common to all shards. An entry expires ttl after its last use; at the limit the oldest batch of
// all shards ends early and is counted. Each promise is in one batch: if it was used again, it moves to a later batch when its
// own ends, so a prompt that is sent a thousand times is stored once. Cost: about 60 bytes for each block and slot.
package speculative

import (
	"container/heap"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Index stores which slots are predicted to hold which blocks. It is safe for concurrent use.
type Index struct {
	ttl      time.Duration // for how long a prediction counts by default; 0: nothing is predicted
	capacity int64         // limit of size
	size     atomic.Int64  // promises of all shards, each of one block to one slot
	shard    [shards]shard
	dropped  atomic.Uint64 // entries that ended early for lack of room
}

const (
	shards           = 64
	Blocks           = 1 << 21         // promises that an index has room for
	PromptBlocks     = Blocks / 8      // of one prompt: no request may take all the room
	ttlWithoutEvents = 2 * time.Minute // without events nothing else tells what a worker holds (NVIDIA Dynamo 1.6: 120 s)
)

// Longest returns the longest time that a prediction counts for any worker, given the default.
func Longest(ttl time.Duration) time.Duration { return max(ttl, ttlWithoutEvents) }

type shard struct {
	sync.RWMutex
	promisedBlocks
	batches batches
	oldest  atomic.Int64 // end of the batch that ends first; 0: none
}

// batches is a heap, ordered by until.
type batches []batch

type batch struct {
	until  int64
	slot   uint32
	blocks []uint64
}

func (b batches) Len() int           { return len(b) }
func (b batches) Less(i, j int) bool { return b[i].until < b[j].until }
func (b batches) Swap(i, j int)      { b[i], b[j] = b[j], b[i] }
func (b *batches) Push(x any)        { *b = append(*b, x.(batch)) }
func (b *batches) Pop() any {
	last := len(*b) - 1
	x := (*b)[last]
	(*b)[last] = batch{} // release blocks: the backing array is reused
	*b = (*b)[:last]
	return x
}

// Promise is what one call of Add recorded. Blocks before from had been predicted on the slot already.
type Promise struct {
	slot  uint32
	from  int
	until int64
}

// New returns an empty index for most promises of one block to one slot; Blocks is the usual number. ttl is for how long a prediction
// counts by default; 0: nothing is predicted.
func New(ttl time.Duration, most int64) *Index {
	p := &Index{ttl: ttl, capacity: most}
	for i := range p.shard {
		p.shard[i].first = make(map[uint64]firstPromised)
	}
	return p
}

func (p *Index) shardOf(chain []uint64) *shard { return &p.shard[chain[0]%shards] }

// Leading returns how many leading blocks slot holds or is predicted to hold, given that events prove the first from.
func (p *Index) Leading(slot uint32, chain []uint64, from int, now time.Time) int {
	if from >= len(chain) {
		return from
	}
	s := p.shardOf(chain)
	t := now.UnixNano()
	s.RLock()
	defer s.RUnlock()
	for ; from < len(chain); from++ {
		if end, _ := s.until(chain[from], slot); end <= t {
			break
		}
	}
	return from
}

// Extend does what Leading does, for many slots at once.
func (p *Index) Extend(chain []uint64, slots *Reaches, now time.Time) {
	if len(chain) > 0 {
		s := p.shardOf(chain)
		s.RLock()
		defer s.RUnlock()
		slots.extend(&s.promisedBlocks, chain, now.UnixNano())
	}
}

// Add predicts for the duration lasts that slot will hold the blocks of chain from index from on, as many as fit.
func (p *Index) Add(slot uint32, chain []uint64, from int, lasts time.Duration, now time.Time) *Promise {
	if from >= len(chain) || p.ttl <= 0 {
		return nil
	}
	t := now.UnixNano()
	made := &Promise{slot: slot, from: len(chain), until: (t + int64(lasts)) &^ kept}
	chain = chain[:min(len(chain), from+PromptBlocks)]
	for p.size.Load()+int64(len(chain)-from) > p.capacity && p.makeRoom(t) {
	}
	s := p.shardOf(chain)
	s.Lock()
	defer s.Unlock()
	for len(s.batches) > 0 && s.batches[0].until <= t {
		p.expireOldest(s, t)
	}
	blocks := make([]uint64, 0, len(chain)-from)
	for i := from; i < len(chain); i++ {
		end, known := s.put(chain[i], slot, made.until)
		if !known {
			blocks = append(blocks, chain[i])
		}
		if end <= t {
			made.from = min(made.from, i)
		}
	}
	p.size.Add(int64(len(blocks)))
	s.insert(batch{made.until, slot, blocks})
	return made
}

// expireOldest ends a shard's oldest batch. Blocks that were used again since move to a later one.
func (p *Index) expireOldest(s *shard, now int64) {
	old := heap.Pop(&s.batches).(batch)
	again := batch{slot: old.slot}
	for _, b := range old.blocks {
		end := s.end(b, old.slot, old.until)
		if end > old.until {
			again.blocks, again.until = append(again.blocks, b), max(again.until, end)
		} else if end > now {
			p.dropped.Add(1)
		}
	}
	p.size.Add(int64(len(again.blocks) - len(old.blocks)))
	s.insert(again)
}

// makeRoom ends the oldest batch of all shards. It returns false if there is none.
func (p *Index) makeRoom(now int64) bool {
	var s *shard
	for i := range p.shard {
		if at := p.shard[i].oldest.Load(); at != 0 && (s == nil || at < s.oldest.Load()) {
			s = &p.shard[i]
		}
	}
	if s == nil {
		return false
	}
	s.Lock()
	defer s.Unlock()
	if len(s.batches) == 0 {
		return true // another goroutine was first
	}
	p.expireOldest(s, now)
	return true
}

// insert adds a batch, if it has blocks.
func (s *shard) insert(b batch) {
	if len(b.blocks) > 0 {
		heap.Push(&s.batches, b)
	}
	first := int64(0)
	if len(s.batches) > 0 {
		first = s.batches[0].until
	}
	s.oldest.Store(first)
}

// Withdraw withdraws a promise whose request was refused by the worker or went elsewhere. Predictions made before it, or renewed
// since, belong to other requests and stay.
func (p *Index) Withdraw(made *Promise, chain []uint64) {
	if made == nil || made.from >= len(chain) {
		return
	}
	s := p.shardOf(chain)
	s.Lock()
	defer s.Unlock()
	for _, b := range chain[made.from:] {
		if end, _ := s.until(b, made.slot); end == made.until {
			s.put(b, made.slot, 1) // expired; its batch removes it
		}
	}
}

// Keep notes that the request of a promise has ended well: its blocks are still predicted, but nobody computes them any more.
func (p *Index) Keep(made *Promise, chain []uint64) {
	if made == nil || len(chain) == 0 {
		return
	}
	s := p.shardOf(chain)
	for part := range slices.Chunk(chain, 64) { // also blocks that it promised again; others look up in between
		s.Lock()
		for _, b := range part {
			if end, _ := s.until(b, made.slot); end == made.until {
				s.put(b, made.slot, end|kept)
			}
		}
		s.Unlock()
	}
}

// Computed returns how many blocks of a chain in a row, from index from on, requests that have not ended compute at some slot.
func (p *Index) Computed(chain []uint64, from int, now time.Time) (n int) {
	if from >= len(chain) {
		return 0
	}
	s := p.shardOf(chain)
	s.RLock()
	defer s.RUnlock()
	for _, b := range chain[from:] {
		if !s.computed(b, now.UnixNano()) {
			break
		}
		n++
	}
	return n
}

// Size returns the number of promises.
func (p *Index) Size() int64 { return p.size.Load() }

// Dropped returns how many promises ended early for lack of room.
func (p *Index) Dropped() uint64 { return p.dropped.Load() }
