package router

import (
	"sync"
	"sync/atomic"
	"time"
)

// predictions remember which blocks a request was routed to, until the worker's events confirm them. Without them two
// requests with one new picture 10 ms apart would go to two workers.
//
// A block is known by its chained hash, which names its whole prefix, mixed with the slot. All blocks of a prompt lie in
// one shard, so a prompt costs one lock. An entry ends ttl after its last use; when a shard is full the oldest batch
// ends early, counted. Each key stands in one batch: used again, it moves to a later one when its own ends, so that a
// prompt asked for a thousand times is kept once. Cost: about 50 bytes a block and 30 ns a probe.
type predictions struct {
	ttl     time.Duration
	shard   [predShards]predShard
	dropped atomic.Uint64 // entries that ended early because a shard was full
}

const (
	predShards  = 64
	predEntries = 1 << 15 // blocks a shard, 2 M in all
)

type predShard struct {
	sync.Mutex
	until   map[uint64]int64 // key → end, Unix ns
	batches []predBatch      // by age
}

type predBatch struct {
	until int64
	keys  []uint64
}

func newPredictions(ttl time.Duration) *predictions {
	p := &predictions{ttl: ttl}
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
	s.Lock()
	defer s.Unlock()
	for from < len(chain) && s.until[key(slot, chain[from])] > t {
		from++
	}
	return from
}

// add notes that slot will hold the blocks from from on, as many as a shard has room for.
func (p *predictions) add(slot uint32, chain []uint64, from int, now time.Time) {
	if from >= len(chain) || p.ttl <= 0 {
		return
	}
	s := p.of(chain)
	t := now.UnixNano()
	until := t + int64(p.ttl)
	chain = chain[from:min(len(chain), from+predEntries)]
	keys := make([]uint64, 0, len(chain))
	s.Lock()
	defer s.Unlock()
	for len(s.batches) > 0 && (s.batches[0].until <= t || len(s.until)+len(chain) > predEntries) {
		old := s.batches[0]
		s.batches = s.batches[1:]
		for _, k := range old.keys {
			switch end := s.until[k]; {
			case end > old.until:
				keys = append(keys, k)
				continue
			case end > t:
				p.dropped.Add(1)
			}
			delete(s.until, k)
		}
	}
	for _, b := range chain {
		k := key(slot, b)
		if _, known := s.until[k]; !known {
			keys = append(keys, k)
		}
		s.until[k] = until
	}
	if len(keys) > 0 {
		s.batches = append(s.batches, predBatch{until: until, keys: keys})
	}
}

// drop takes back what add noted, for a request that the worker refused or that went elsewhere.
func (p *predictions) drop(slot uint32, chain []uint64, from int) {
	if from >= len(chain) {
		return
	}
	s := p.of(chain)
	s.Lock()
	defer s.Unlock()
	for _, b := range chain[from:] {
		if k := key(slot, b); s.until[k] != 0 {
			s.until[k] = 1 // over; its batch removes it
		}
	}
}

// sightings remember which slots were sent a medium lately: their encoder cache should have it. Per medium the last
// four slots count. Bounded: the oldest media are forgotten first.
type sightings struct {
	shard [seenShards]struct {
		sync.Mutex
		at    map[uint64]*[4]uint32 // slot+1, newest first; 0: none
		order []uint64
	}
}

const (
	seenShards = 16
	seenMedia  = 1 << 13 // media a shard, 128 k in all
)

func newSightings() *sightings {
	s := new(sightings)
	for i := range s.shard {
		s.shard[i].at = make(map[uint64]*[4]uint32)
	}
	return s
}

func (s *sightings) by(name uint64) (slots [4]uint32) {
	sh := &s.shard[name%seenShards]
	sh.Lock()
	defer sh.Unlock()
	if at := sh.at[name]; at != nil {
		slots = *at
	}
	return slots
}

func (s *sightings) add(name uint64, slot uint32) {
	sh := &s.shard[name%seenShards]
	sh.Lock()
	defer sh.Unlock()
	at := sh.at[name]
	if at == nil {
		if len(sh.order) >= seenMedia {
			delete(sh.at, sh.order[0])
			sh.order = sh.order[1:]
		}
		at = new([4]uint32)
		sh.at[name] = at
		sh.order = append(sh.order, name)
	}
	put := slot + 1
	for i := range at {
		put, at[i] = at[i], put
		if put == slot+1 || put == 0 {
			return
		}
	}
}

// holds reports whether slot is among slots.
func holds(slots [4]uint32, slot uint32) bool {
	for _, s := range slots {
		if s == slot+1 {
			return true
		}
	}
	return false
}
