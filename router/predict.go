package router

import (
	"container/heap"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/sightline-router/sightline/router/fleet"
)

// predictions remember which blocks a request was routed to, until the worker's events confirm them. Without them two
// requests with one new picture 10 ms apart would go to two workers.
//
// A block is known by its chained hash, which names its whole prefix (promised.go). All blocks of a prompt lie in one shard,
// by its first block, so a prompt costs one lock, and looking is shared. Most prompts of a service begin alike
// and share a shard: the room is one for all shards. An entry ends ttl after its last use; when there is no room the oldest
// batch of all shards ends early, counted. Each promise stands in one batch: used again, it moves to a later one when its own
// ends, so that a prompt asked for a thousand times is kept once. Cost: about 60 bytes a block and slot.
type predictions struct {
	ttl     time.Duration // Options.PredictedTTL at the start; 0: none is kept
	most    int64         // blocks in all shards
	size    atomic.Int64  // promises, each of a block to a slot
	shard   [predShards]predShard
	dropped atomic.Uint64 // entries that ended early because there was no room
}

const (
	predShards = 64
	predBlocks = 1 << 21
	predPrompt = predBlocks / 8  // of one prompt: no request may take all the room
	untoldTTL  = 2 * time.Minute // of a worker whose events do not come: nothing else will tell what it holds (NVIDIA Dynamo 1.6: 120 s)
)

// LongestPrediction is how long a prediction of any worker counts, under an Options.PredictedTTL.
func LongestPrediction(ttl time.Duration) time.Duration { return max(ttl, untoldTTL) }

type predShard struct {
	sync.RWMutex
	promisedBlocks
	batches predBatches
	oldest  atomic.Int64 // end of the batch that ends first; 0: there is none
}

// predBatches is a heap: the first ends first.
type predBatches []predBatch

type predBatch struct {
	until  int64
	slot   uint32
	blocks []uint64
}

func (b predBatches) Len() int           { return len(b) }
func (b predBatches) Less(i, j int) bool { return b[i].until < b[j].until }
func (b predBatches) Swap(i, j int)      { b[i], b[j] = b[j], b[i] }
func (b *predBatches) Push(x any)        { *b = append(*b, x.(predBatch)) }
func (b *predBatches) Pop() any {
	last := len(*b) - 1
	x := (*b)[last]
	(*b)[last] = predBatch{} // the array lives on
	*b = (*b)[:last]
	return x
}

// promise is what add noted: the blocks that were not predicted on the slot before begin at from.
type promise struct {
	slot  uint32
	from  int
	until int64
}

func newPredictions(ttl time.Duration, most int64) *predictions {
	p := &predictions{ttl: ttl, most: most}
	for i := range p.shard {
		p.shard[i].first = make(map[uint64]firstPromised)
	}
	return p
}

func (p *predictions) of(chain []uint64) *predShard { return &p.shard[chain[0]%predShards] }

// leading gives how many blocks slot holds or should hold, where events prove the first from.
func (p *predictions) leading(slot uint32, chain []uint64, from int, now time.Time) int {
	if from >= len(chain) {
		return from
	}
	s := p.of(chain)
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

// extend is leading for many slots at once.
func (p *predictions) extend(chain []uint64, slots *reaches, now time.Time) {
	if len(chain) > 0 {
		s := p.of(chain)
		s.RLock()
		defer s.RUnlock()
		slots.extend(&s.promisedBlocks, chain, now.UnixNano())
	}
}

// lasts is how long a prediction of a slot counts. Events confirm it only when the request's turn comes, so the time of the
// queue before it comes on top. A prompt of another part of the index is confirmed by none, unless its replica is asked and answers.
func (r *Router) lasts(slot *fleet.Slot, locals []uint64, now time.Time) time.Duration {
	ttl := r.serving.Load().predictedTTL
	most := LongestPrediction(ttl)
	if !tells(slot, now) || !r.answered.Load() && r.elsewhere(locals) {
		return most
	}
	if load := slot.Load(now); load.Rate > 0 {
		ttl += time.Duration(min(most.Seconds(), load.Backlog/load.Rate) * float64(time.Second))
	}
	return min(most, ttl)
}

// add notes that slot will hold the blocks from from on, as many as there is room for, and that this counts for a time.
func (p *predictions) add(slot uint32, chain []uint64, from int, lasts time.Duration, now time.Time) *promise {
	if from >= len(chain) || p.ttl <= 0 {
		return nil
	}
	t := now.UnixNano()
	made := &promise{slot: slot, from: len(chain), until: t + int64(lasts)}
	chain = chain[:min(len(chain), from+predPrompt)]
	for p.size.Load()+int64(len(chain)-from) > p.most && p.makeRoom(t) {
	}
	s := p.of(chain)
	s.Lock()
	defer s.Unlock()
	for len(s.batches) > 0 && s.batches[0].until <= t {
		p.retire(s, t)
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
	s.insert(predBatch{made.until, slot, blocks})
	return made
}

// retire ends a shard's oldest batch. What was used again since lives on in a later one.
func (p *predictions) retire(s *predShard, now int64) {
	old := heap.Pop(&s.batches).(predBatch)
	again := predBatch{slot: old.slot}
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

// makeRoom ends the oldest batch of all shards; false: there is none.
func (p *predictions) makeRoom(now int64) bool {
	var s *predShard
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
		return true // another was here first
	}
	p.retire(s, now)
	return true
}

// insert adds a batch, if it has blocks.
func (s *predShard) insert(b predBatch) {
	if len(b.blocks) > 0 {
		heap.Push(&s.batches, b)
	}
	first := int64(0)
	if len(s.batches) > 0 {
		first = s.batches[0].until
	}
	s.oldest.Store(first)
}

// drop takes a promise back, for a request that the worker refused or that went elsewhere. What was predicted there before
// it, or has been since, stays: it is another request's.
func (p *predictions) drop(made *promise, chain []uint64) {
	if made == nil || made.from >= len(chain) {
		return
	}
	s := p.of(chain)
	s.Lock()
	defer s.Unlock()
	for _, b := range chain[made.from:] {
		if end, _ := s.until(b, made.slot); end == made.until {
			s.put(b, made.slot, 1) // over; its batch removes it
		}
	}
}

// sightings remember which slots encoded a medium lately: their encoder cache should have it until they were given as many
// tokens of other media as that cache has room for. Per medium the last eight slots count, by themselves and not by their
// number, which another worker gets when they are gone. About 260 bytes a medium; beyond mostSeen the ones that were asked
// for least lately are forgotten, and slots that left with them.
type sightings struct {
	mu    sync.Mutex
	media *simplelru.LRU[uint64, seenBy]
	full  func(what string)
}

// seenBy are the newest first; those without a slot are none.
type seenBy [8]sighting

type sighting struct {
	slot *fleet.Slot
	at   uint64 // tokens that slot had encoded
}

const (
	mostSeen     = 1 << 17
	encoderCache = 8192 // tokens: vLLM's default, max_num_batched_tokens
)

func newSightings(full func(what string)) *sightings {
	media, _ := simplelru.NewLRU[uint64, seenBy](mostSeen, nil) // fails for a size below 1
	return &sightings{media: media, full: full}
}

// by lists who saw the medium of a name.
func (s *sightings) by(name uint64) seenBy {
	s.mu.Lock()
	defer s.mu.Unlock()
	slots, _ := s.media.Get(name)
	return slots
}

// add notes that a slot encodes a medium of so many tokens, or takes it from its cache.
func (s *sightings) add(name uint64, slot *fleet.Slot, tokens int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen, _ := s.media.Get(name)
	if seen.holds(slot) {
		tokens = 0
	}
	put := sighting{slot, slot.Encoded(tokens)}
	for i := range seen {
		put, seen[i] = seen[i], put
		if put.slot == slot || put.slot == nil {
			break
		}
	}
	if s.media.Add(name, seen) {
		s.full("pictures seen")
	}
}

// holds reports whether a slot's encoder cache should have the medium.
func (b *seenBy) holds(slot *fleet.Slot) bool {
	for i := range b {
		if b[i].slot == slot {
			return slot.Encoded(0)-b[i].at < encoderCache
		}
	}
	return false
}
