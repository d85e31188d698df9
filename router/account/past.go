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
// It is bounded: 36 bytes a block, Blocks of them. When it is full, the oldest block of the client with most blocks is forgotten, unless it
// was used since it was remembered, so no client can push out what is another's fair share. Clients are counted in 256 groups.
//
// Cost: looking a block up 30 to 80 ns, remembering one 100 to 200 ns. Safe for concurrent use; no call holds the lock for more than 64
// blocks.
type Past struct {
	most  int
	begun time.Time

	mu      sync.RWMutex
	blocks  table
	workers []Place
	numbers map[Place]uint16
	slots   map[uint32]uint16 // number of the place that a slot of the index has
	queues  [256]queue
}

// Blocks is how many blocks a Past has room for: 30 MiB.
const Blocks = 850_000

const maxPlaces = 1 << 16 // with more, all is forgotten

const atOnce = 64 // blocks for which the lock is held

// Place is a worker's cache: of one rank, if it has ranks (-1: it has none).
type Place struct {
	Worker string
	Rank   int
}

// had is who had a block last.
type had struct {
	used  uint32 // seconds since begun
	who   uint16 // index in workers
	queue uint8  // that it counts in
	flags uint8
}

const (
	again   = 1 << iota // it was used again since it came to its place in the queue
	lost                // the worker lost it with all others
	unclear             // the worker's events do not tell all that it holds
)

// Fate is what became of some blocks that a worker had.
type Fate struct {
	Place
	Ago     time.Duration // since the worker was last asked for the first of them
	Lost    bool          // with all that it had
	Unclear bool          // the worker's events do not tell all that it holds
}

// NewPast returns an empty past for most blocks.
func NewPast(most int, now time.Time) *Past {
	return &Past{most: most, begun: now, numbers: make(map[Place]uint16),
		slots: make(map[uint32]uint16)}
}

// Len returns how many blocks are remembered.
func (p *Past) Len() int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.blocks.count
}

// Had remembers that a worker, which is a slot of the index, has the blocks of a client's prompt now. all: its events tell all that it
// holds.
func (p *Past) Had(c fair.Client, slot uint32, at Place, chain []uint64, all bool, now time.Time) {
	one := had{used: p.seconds(now), queue: uint8(c)}
	if !all {
		one.flags = unclear
	}
	for len(chain) > 0 {
		n := min(len(chain), atOnce)
		p.mu.Lock()
		one.who = p.number(at)
		p.slots[slot] = one.who
		for _, block := range chain[:n] {
			if before := p.blocks.find(block); before != nil {
				queue := before.queue
				*before = one
				before.queue, before.flags = queue, one.flags|again
			} else if block != 0 {
				p.queues[one.queue].push(block)
				p.blocks.put(block, one)
			}
		}
		p.makeRoom()
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
			if one := p.blocks.find(block); one != nil && known && one.who == who {
				one.flags |= lost
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
			at := p.blocks.find(block)
			ok := at != nil
			if ok {
				one = *at
				one.flags &= lost | unclear
			}
			if n == 0 && ok {
				first = one
				f = Fate{Place: p.workers[one.who], Lost: one.flags&lost != 0, Unclear: one.flags&unclear != 0,
					Ago: max(0, now.Sub(p.begun)-time.Duration(one.used)*time.Second)}
			}
			if !ok || one.who != first.who || one.flags != first.flags {
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

// number returns a place's number. If there are too many, all is forgotten.
func (p *Past) number(at Place) uint16 {
	if n, ok := p.numbers[at]; ok {
		return n
	}
	if len(p.workers) == maxPlaces {
		p.blocks = table{}
		clear(p.numbers)
		clear(p.slots)
		p.workers, p.queues = nil, [256]queue{}
	}
	n := uint16(len(p.workers))
	p.workers, p.numbers[at] = append(p.workers, at), n
	return n
}

// makeRoom forgets blocks until the others fit.
func (p *Past) makeRoom() {
	for p.blocks.count > p.most {
		most := &p.queues[0]
		for i := range p.queues {
			if p.queues[i].length > most.length {
				most = &p.queues[i]
			}
		}
		for range atOnce {
			if p.blocks.count <= p.most || most.length == 0 {
				break
			}
			most.forget(&p.blocks)
		}
	}
}

// queue has blocks in the order in which they came.
type queue struct {
	parts  []*[queuePart]uint64
	first  int // in parts[0]
	length int
}

const queuePart = 512

// forget forgets the oldest block that was not used again, of the first eight.
func (q *queue) forget(blocks *table) {
	for tries := 1; ; tries++ {
		block := q.pop()
		one := blocks.find(block)
		if one.flags&again == 0 || tries == 8 {
			blocks.remove(block)
			return
		}
		one.flags &^= again
		q.push(block)
	}
}

func (q *queue) push(block uint64) {
	at := q.first + q.length
	if at/queuePart == len(q.parts) {
		q.parts = append(q.parts, new([queuePart]uint64))
	}
	q.parts[at/queuePart][at%queuePart] = block
	q.length++
}

func (q *queue) pop() uint64 {
	block := q.parts[0][q.first]
	q.first, q.length = q.first+1, q.length-1
	if q.first == queuePart {
		q.parts, q.first = q.parts[1:], 0
	}
	return block
}
