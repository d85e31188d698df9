package router

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/sightline-router/sightline/router/fleet"
)

// predictions remember which blocks a request was routed to, until the worker's events confirm them. Without them two
// requests with one new picture 10 ms apart would go to two workers.
//
// A block is known by its chained hash, which names its whole prefix, mixed with the slot. All blocks of a prompt lie in
// one shard, by its first block, so a prompt costs one lock, and looking is shared. Most prompts of a service begin alike
// and share a shard: the room is one for all shards. An entry ends ttl after its last use; when there is no room the oldest
// batch of all shards ends early, counted. Each key stands in one batch: used again, it moves to a later one when its own
// ends, so that a prompt asked for a thousand times is kept once. Cost: about 50 bytes a block and 30 ns a probe.
type predictions struct {
	ttl     time.Duration
	most    int64 // blocks in all shards
	size    atomic.Int64
	shard   [predShards]predShard
	dropped atomic.Uint64 // entries that ended early because there was no room
}

const (
	predShards = 64
	predBlocks = 1 << 21
	predPrompt = predBlocks / 8 // of one prompt: no request may take all the room
)

type predShard struct {
	sync.RWMutex
	until   map[uint64]int64 // key → end, Unix ns
	batches []predBatch      // by age
	oldest  atomic.Int64     // end of the first batch; 0: there is none
}

type predBatch struct {
	until int64
	keys  []uint64
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
		p.shard[i].until = make(map[uint64]int64)
	}
	return p
}

// key mixes a slot into a block's chained hash.
func key(slot uint32, block uint64) uint64 { return block ^ (uint64(slot)+1)*0x9E3779B97F4A7C15 }

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
	for from < len(chain) && s.until[key(slot, chain[from])] > t {
		from++
	}
	return from
}

// add notes that slot will hold the blocks from from on, as many as there is room for.
func (p *predictions) add(slot uint32, chain []uint64, from int, now time.Time) *promise {
	if from >= len(chain) || p.ttl <= 0 {
		return nil
	}
	t := now.UnixNano()
	made := &promise{slot: slot, from: len(chain), until: t + int64(p.ttl)}
	chain = chain[:min(len(chain), from+predPrompt)]
	for p.size.Load()+int64(len(chain)-from) > p.most && p.makeRoom(t) {
	}
	s := p.of(chain)
	s.Lock()
	defer s.Unlock()
	keys := make([]uint64, 0, len(chain)-from)
	for len(s.batches) > 0 && s.batches[0].until <= t {
		keys = p.retire(s, t, keys)
	}
	for i := from; i < len(chain); i++ {
		k := key(slot, chain[i])
		end, known := s.until[k]
		if !known {
			keys = append(keys, k)
			p.size.Add(1)
		}
		if end <= t {
			made.from = min(made.from, i)
		}
		s.until[k] = made.until
	}
	s.insert(predBatch{until: made.until, keys: keys})
	return made
}

// retire ends a shard's oldest batch and adds those of its keys that live on to keep.
func (p *predictions) retire(s *predShard, now int64, keep []uint64) []uint64 {
	old := s.batches[0]
	s.batches = s.batches[1:]
	for _, k := range old.keys {
		switch end := s.until[k]; {
		case end > old.until:
			keep = append(keep, k)
			continue
		case end > now:
			p.dropped.Add(1)
		}
		delete(s.until, k)
		p.size.Add(-1)
	}
	return keep
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
	again := predBatch{keys: p.retire(s, now, nil)} // used again since
	for _, k := range again.keys {
		again.until = max(again.until, s.until[k])
	}
	s.insert(again)
	return true
}

// insert puts a batch where its age has it, if it has keys.
func (s *predShard) insert(b predBatch) {
	if len(b.keys) > 0 {
		at, _ := slices.BinarySearchFunc(s.batches, b.until+1, func(have predBatch, until int64) int { return cmp.Compare(have.until, until) })
		s.batches = slices.Insert(s.batches, at, b)
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
		if k := key(made.slot, b); s.until[k] == made.until {
			s.until[k] = 1 // over; its batch removes it
		}
	}
}

// sightings remember which slots encoded a medium lately: their encoder cache should have it until they were given as many
// tokens of other media as that cache has room for. Per medium the last four slots count, by themselves and not by their
// number, which another worker gets when they are gone. About 200 bytes a medium; beyond mostSeen the ones that were asked
// for least lately are forgotten, and slots that left with them.
type sightings struct {
	mu    sync.Mutex
	media *simplelru.LRU[uint64, seenBy]
}

// seenBy are the newest first; those without a slot are none.
type seenBy [4]sighting

type sighting struct {
	slot *fleet.Slot
	at   uint64 // tokens that slot had encoded
}

const (
	mostSeen     = 1 << 17
	encoderCache = 8192 // tokens: vLLM's default, max_num_batched_tokens
)

func newSightings() *sightings {
	media, _ := simplelru.NewLRU[uint64, seenBy](mostSeen, nil) // fails for a size below 1
	return &sightings{media: media}
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
	s.media.Add(name, seen)
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
