package router

import (
	"container/heap"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/sightline-router/sightline/router/fleet"
)

// predictions record the blocks of routed prompts by slot until the worker's events confirm them. Without them, two requests with
// the same new picture 10 ms apart would go to two workers.
//
// A block is identified by its chain hash, which covers its whole prefix (promised.go). All blocks of a prompt lie in one shard,
// selected by the first block, so a prompt costs one lock, and lookups share it. Most prompts of a service begin alike and fall
// into one shard, so the limit is common to all shards. An entry expires ttl after its last use; at the limit the oldest batch of
// all shards ends early and is counted. Each promise is in one batch: if it was used again, it moves to a later batch when its
// own ends, so a prompt that is sent a thousand times is stored once. Cost: about 60 bytes for each block and slot.
type predictions struct {
	ttl      time.Duration // Options.PredictedTTL at the start; 0: nothing is predicted
	capacity int64         // limit of size
	size     atomic.Int64  // promises of all shards, each of one block to one slot
	shard    [predShards]predShard
	dropped  atomic.Uint64 // entries that ended early for lack of room
}

const (
	predShards       = 64
	predBlocks       = 1 << 21
	predPrompt       = predBlocks / 8  // of one prompt: no request may take all the room
	ttlWithoutEvents = 2 * time.Minute // for a worker whose events do not come, since nothing else tells what it holds (NVIDIA Dynamo 1.6: 120 s)
)

// LongestPrediction returns the longest time that a prediction counts for any worker, given Options.PredictedTTL.
func LongestPrediction(ttl time.Duration) time.Duration { return max(ttl, ttlWithoutEvents) }

type predShard struct {
	sync.RWMutex
	promisedBlocks
	batches predBatches
	oldest  atomic.Int64 // end of the batch that ends first; 0: none
}

// predBatches is a heap, ordered by until.
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
	(*b)[last] = predBatch{} // release blocks: the backing array is reused
	*b = (*b)[:last]
	return x
}

// promise is what one call of add recorded. Blocks before from had been predicted on the slot already.
type promise struct {
	slot  uint32
	from  int
	until int64
}

func newPredictions(ttl time.Duration, most int64) *predictions {
	p := &predictions{ttl: ttl, capacity: most}
	for i := range p.shard {
		p.shard[i].first = make(map[uint64]firstPromised)
	}
	return p
}

func (p *predictions) shardOf(chain []uint64) *predShard { return &p.shard[chain[0]%predShards] }

// leading returns how many leading blocks slot holds or is predicted to hold, given that events prove the first from.
func (p *predictions) leading(slot uint32, chain []uint64, from int, now time.Time) int {
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

// extend does what leading does, for many slots at once.
func (p *predictions) extend(chain []uint64, slots *reaches, now time.Time) {
	if len(chain) > 0 {
		s := p.shardOf(chain)
		s.RLock()
		defer s.RUnlock()
		slots.extend(&s.promisedBlocks, chain, now.UnixNano())
	}
}

// predictionTTL returns how long a prediction for a slot counts. Events confirm it only after the request's prefill, so the time of the
// queue ahead is added. A prompt of another part of the index is never confirmed, unless its replica is asked and answers.
func (r *Router) predictionTTL(slot *fleet.Slot, locals []uint64, now time.Time) time.Duration {
	ttl := r.serving.Load().predictedTTL
	most := LongestPrediction(ttl)
	if !sendsEvents(slot, now) || !r.partAnswered.Load() && r.inOtherPart(locals) {
		return most
	}
	if load := slot.Load(now); load.Rate > 0 {
		ttl += time.Duration(min(most.Seconds(), load.Backlog/load.Rate) * float64(time.Second))
	}
	return min(most, ttl)
}

// add predicts for the duration lasts that slot will hold the blocks of chain from index from on, as many as fit.
func (p *predictions) add(slot uint32, chain []uint64, from int, lasts time.Duration, now time.Time) *promise {
	if from >= len(chain) || p.ttl <= 0 {
		return nil
	}
	t := now.UnixNano()
	made := &promise{slot: slot, from: len(chain), until: t + int64(lasts)}
	chain = chain[:min(len(chain), from+predPrompt)]
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
	s.insert(predBatch{made.until, slot, blocks})
	return made
}

// expireOldest ends a shard's oldest batch. Blocks that were used again since move to a later one.
func (p *predictions) expireOldest(s *predShard, now int64) {
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

// makeRoom ends the oldest batch of all shards. It returns false if there is none.
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
		return true // another goroutine was first
	}
	p.expireOldest(s, now)
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

// withdraw withdraws a promise whose request was refused by the worker or went elsewhere. Predictions made before it, or renewed
// since, belong to other requests and stay.
func (p *predictions) withdraw(made *promise, chain []uint64) {
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

// sightings record which slots lately encoded a medium. A slot's encoder cache should still have it until the slot has been given
// as many tokens of other media as the cache has room for. The last eight slots of each medium are kept, by pointer and not by
// slot ID, which is reused after a worker leaves. About 260 bytes a medium; beyond maxSeen the least recently used are evicted,
// and with them slots that have left.
type sightings struct {
	mu       sync.Mutex
	media    *simplelru.LRU[uint64, seenBy]
	onNoRoom func(what string)
}

// seenBy has the newest first; unused entries have no slot.
type seenBy [8]sighting

type sighting struct {
	slot *fleet.Slot
	at   uint64 // tokens that slot had encoded by then
}

const (
	maxSeen      = 1 << 17
	encoderCache = 8192 // tokens: vLLM's default, max_num_batched_tokens
)

func newSightings(full func(what string)) *sightings {
	media, _ := simplelru.NewLRU[uint64, seenBy](maxSeen, nil) // fails only for a size below 1
	return &sightings{media: media, onNoRoom: full}
}

// slotsOf returns the slots that saw a medium.
func (s *sightings) slotsOf(name uint64) seenBy {
	s.mu.Lock()
	defer s.mu.Unlock()
	slots, _ := s.media.Peek(name) // add makes it recent
	return slots
}

// add records that a slot encodes a medium of so many tokens, or finds it in its cache: then it returns false.
func (s *sightings) add(name uint64, slot *fleet.Slot, tokens int) (isNew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen, _ := s.media.Get(name)
	if isNew = !seen.holds(slot); !isNew {
		tokens = 0
	}
	put := sighting{slot, slot.AddEncoded(tokens)}
	for i := range seen {
		put, seen[i] = seen[i], put
		if put.slot == slot || put.slot == nil {
			break
		}
	}
	if s.media.Add(name, seen) {
		s.onNoRoom("pictures seen")
	}
	return isNew
}

// withdraw records that a slot has not encoded a medium after all.
func (s *sightings) withdraw(name uint64, slot *fleet.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen, _ := s.media.Peek(name)
	for i := range seen {
		if seen[i].slot == slot {
			copy(seen[i:], seen[i+1:])
			seen[len(seen)-1] = sighting{}
			s.media.Add(name, seen)
			return
		}
	}
}

// holds reports whether a slot's encoder cache should have the medium.
func (b *seenBy) holds(slot *fleet.Slot) bool {
	for i := range b {
		if b[i].slot == slot {
			return slot.AddEncoded(0)-b[i].at < encoderCache
		}
	}
	return false
}
