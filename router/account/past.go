package account

import (
	"sync"
	"time"

	"github.com/sightline-router/sightline/internal/fair"
)

// Past remembers which worker had a block of a prompt last, so that a block that none holds any more can be told from a new one. A block
// is named by its chain hash, which covers everything before it. A worker that had a block, and neither holds it nor lost it with all
// others, evicted it.
//
// It is bounded: 32 bytes a block, Blocks of them, shared by clients (fair.Memory). Safe for concurrent use; no call holds the lock for
// more than 64 blocks.
type Past struct {
	begun time.Time

	mu      sync.RWMutex
	blocks  *fair.Memory[had, *had]
	workers []Cache
	numbers map[Cache]uint16
	slots   map[uint32]uint16 // number of the cache that a slot of the index has
}

// Blocks is how many blocks a Past has room for: 26 MiB.
const Blocks = 850_000

const maxCaches = 1 << 16 // with more, all is forgotten

const atOnce = 64 // blocks for which the lock is held

// Cache is a worker's: of one rank, if it has ranks (-1: it has none).
type Cache struct {
	Worker string
	Rank   int
}

// had is who had a block last.
type had struct {
	used uint32 // seconds since begun
	who  uint16 // index in workers
	fair.Kept
}

const (
	lost    = 1 << iota // the worker lost it with all others
	unclear             // the worker's events do not tell all that it holds
)

// Fate is what became of some blocks that a worker had.
type Fate struct {
	Cache
	Ago     time.Duration // since the worker was last asked for the first of them
	Lost    bool          // with all that it had
	Unclear bool          // the worker's events do not tell all that it holds
}

// NewPast returns an empty past for most blocks.
func NewPast(most int, now time.Time) *Past {
	return &Past{begun: now, blocks: fair.NewMemory[had](most), numbers: make(map[Cache]uint16), slots: make(map[uint32]uint16)}
}

// Len returns how many blocks are remembered.
func (p *Past) Len() int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.blocks.Len()
}

// Full reports whether it has no more room: older blocks may have been forgotten.
func (p *Past) Full() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.blocks.Full()
}

// Had remembers that a worker, which is a slot of the index, has the blocks of a client's prompt now. all: its events tell all that it
// holds.
func (p *Past) Had(c fair.Client, slot uint32, at Cache, chain []uint64, all bool, now time.Time) {
	one := had{used: p.seconds(now)}
	if !all {
		one.Marks = unclear
	}
	for len(chain) > 0 {
		n := min(len(chain), atOnce)
		p.mu.Lock()
		one.who = p.number(at)
		p.slots[slot] = one.who
		for _, block := range chain[:n] {
			if before := p.blocks.Find(block); before != nil {
				before.used, before.who, before.Marks = one.used, one.who, one.Marks
				before.Use()
			} else {
				p.blocks.Put(c, block, one)
			}
		}
		p.blocks.Fit()
		p.mu.Unlock()
		chain = chain[n:]
	}
}

// Lost marks the blocks that a slot loses now with all that it holds.
func (p *Past) Lost(slot uint32, chain []uint64) {
	for len(chain) > 0 {
		n := min(len(chain), atOnce)
		p.mu.Lock()
		who, known := p.slots[slot]
		for _, block := range chain[:n] {
			if one := p.blocks.Find(block); one != nil && known && one.who == who {
				one.Marks |= lost
			}
		}
		p.mu.Unlock()
		chain = chain[n:]
	}
}

// Fate returns how many of a prompt's leading blocks had the same fate, and which; 0: nothing is remembered of the first.
func (p *Past) Fate(chain []uint64, now time.Time) (n int, f Fate) {
	var first had
	for len(chain) > n {
		p.mu.RLock()
		for _, block := range chain[n:min(len(chain), n+atOnce)] {
			var one had
			at := p.blocks.Find(block)
			ok := at != nil
			if ok {
				one = *at
				one.Marks &= lost | unclear
			}
			if n == 0 && ok {
				first = one
				f = Fate{Cache: p.workers[one.who], Lost: one.Marks&lost != 0, Unclear: one.Marks&unclear != 0,
					Ago: max(0, now.Sub(p.begun)-time.Duration(one.used)*time.Second)}
			}
			if !ok || one.who != first.who || one.Marks != first.Marks {
				p.mu.RUnlock()
				return n, f
			}
			n++
		}
		p.mu.RUnlock()
	}
	return n, f
}

func (p *Past) seconds(now time.Time) uint32 { return uint32(max(0, now.Sub(p.begun)/time.Second)) }

// number returns a cache's number. If there are too many, all is forgotten.
func (p *Past) number(at Cache) uint16 {
	if n, ok := p.numbers[at]; ok {
		return n
	}
	if len(p.workers) == maxCaches {
		p.blocks.Clear()
		clear(p.numbers)
		clear(p.slots)
		p.workers = nil
	}
	n := uint16(len(p.workers))
	p.workers, p.numbers[at] = append(p.workers, at), n
	return n
}
