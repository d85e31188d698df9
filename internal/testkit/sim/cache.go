package sim

import (
	"slices"

	"github.com/sightline-router/sightline/internal/testkit/vllmid"
)

// pool is the prefix cache of one data-parallel rank, with the semantics of vLLM's BlockPool (v1/core/block_pool.py):
//
//   - A physical block holds the tokens of one full block, or is being filled, or is free.
//   - Free blocks keep what they hold until they are taken again: the free list is the LRU order, and a request gives its
//     blocks back last block first, so that tails go before heads. Blocks that hold nothing go to the list's front.
//   - Equal content may lie in several physical blocks. Each is announced when stored, and its removal when taken.
//
// Physical block 0 is reserved, as in vLLM, so a pool of n has n-1 to give. Not safe for concurrent use.
type pool struct {
	blocks     []physical
	free       int // length of the free list
	head, tail int32
	held       map[vllmid.Digest]*content
	once       bool    // of several copies of a block only the first is told, and its removal when the last has gone
	noClear    bool    // a reset is told block by block
	events     []event // not yet published
}

type physical struct {
	content    *content // nil: nothing that can be found
	users      int      // running requests that hold the block
	prev, next int32    // neighbours in the free list; only while users == 0
}

// content is one cached block as a worker's truth: what a router should know of it.
type content struct {
	hash, parent vllmid.Digest // parent "": the first block of a prompt
	tokens       []uint32
	keys         []vllmid.Key
	copies       []int32 // physical blocks that hold it, oldest first
}

const none = int32(-1)

func newPool(n int) *pool {
	p := &pool{blocks: make([]physical, n), head: none, tail: none, held: make(map[vllmid.Digest]*content)}
	for i := n - 1; i > 0; i-- { // each in front of the last
		p.pushFree(int32(i))
	}
	return p
}

// pushFree puts a block at the end of the free list, or in front where it holds nothing to keep.
func (p *pool) pushFree(i int32) {
	b := &p.blocks[i]
	b.prev, b.next = p.tail, none
	if b.content == nil {
		b.prev, b.next = none, p.head
	}
	if b.prev == none {
		p.head = i
	} else {
		p.blocks[b.prev].next = i
	}
	if b.next == none {
		p.tail = i
	} else {
		p.blocks[b.next].prev = i
	}
	p.free++
}

func (p *pool) unlinkFree(i int32) {
	b := &p.blocks[i]
	if b.prev == none {
		p.head = b.next
	} else {
		p.blocks[b.prev].next = b.next
	}
	if b.next == none {
		p.tail = b.prev
	} else {
		p.blocks[b.next].prev = b.prev
	}
	p.free--
}

// find gives the oldest physical copies of the leading blocks that are held, at most limit of them.
func (p *pool) find(chain []vllmid.Digest, limit int) []int32 {
	var hits []int32
	for i := 0; i < limit && i < len(chain); i++ {
		c := p.held[chain[i]]
		if c == nil {
			break
		}
		hits = append(hits, c.copies[0])
	}
	return hits
}

// freeAfter is the number of free blocks once hits are in use.
func (p *pool) freeAfter(hits []int32) int {
	n := p.free
	for _, i := range hits {
		if p.blocks[i].users == 0 {
			n--
		}
	}
	return n
}

// pin takes blocks that hold something into use.
func (p *pool) pin(ids []int32) {
	for _, i := range ids {
		if p.blocks[i].users == 0 {
			p.unlinkFree(i)
		}
		p.blocks[i].users++
	}
}

// take appends n free blocks to ids, least recently used first. What they held is forgotten and announced as removed.
// The caller has seen to it that n are free.
func (p *pool) take(ids []int32, n int) []int32 {
	for range n {
		i := p.head
		p.unlinkFree(i)
		b := &p.blocks[i]
		b.users = 1
		if c := b.content; c != nil {
			b.content = nil
			c.copies = slices.DeleteFunc(c.copies, func(id int32) bool { return id == i })
			if len(c.copies) == 0 {
				delete(p.held, c.hash)
			}
			if len(c.copies) == 0 || !p.once {
				p.events = append(p.events, event{kind: removed, hashes: []vllmid.Digest{c.hash}})
			}
		}
		ids = append(ids, i)
	}
	return ids
}

// release gives a request's blocks back, last first.
func (p *pool) release(ids []int32) {
	for k := len(ids) - 1; k >= 0; k-- {
		b := &p.blocks[ids[k]]
		if b.users--; b.users == 0 {
			p.pushFree(ids[k])
		}
	}
}

// store makes the full blocks [from, to) of a sequence findable and announces them, as one event where all are news.
func (p *pool) store(s *sequence, from, to int) {
	for i := from; i < to; i++ {
		hash := s.chain[i]
		c := p.held[hash]
		if c != nil && p.once {
			p.tell(s, from, i)
			from = i + 1
		}
		if c == nil {
			c = &content{hash: hash, tokens: slices.Clone(s.tokens[i*s.size : (i+1)*s.size]), keys: s.keys[i]}
			if i > 0 {
				c.parent = s.chain[i-1]
			}
			p.held[hash] = c
		}
		c.copies = append(c.copies, s.blocks[i])
		p.blocks[s.blocks[i]].content = c
	}
	p.tell(s, from, to)
}

// tell announces blocks [from, to).
func (p *pool) tell(s *sequence, from, to int) {
	if from >= to {
		return
	}
	e := event{kind: stored, hashes: s.chain[from:to], tokens: s.tokens[from*s.size : to*s.size], keys: s.keys[from:to], adapter: s.adapter, session: s.session,
		items: s.items, at: from * s.size}
	if from > 0 {
		e.parent = s.chain[from-1]
	} else {
		e.salt = s.scope.Salt
	}
	p.events = append(p.events, e)
}

// reset forgets everything; false if a request is running. The event waits for the next batch, as in vLLM.
func (p *pool) reset() bool {
	if p.free != len(p.blocks)-1 {
		return false
	}
	for i := range p.blocks {
		p.blocks[i].content = nil
	}
	for h := range p.held {
		if p.noClear {
			p.events = append(p.events, event{kind: removed, hashes: []vllmid.Digest{h}})
		}
	}
	clear(p.held)
	if !p.noClear {
		p.events = append(p.events, event{kind: cleared})
	}
	return true
}

// usage is the share of blocks in use by running requests, 0 to 1.
func (p *pool) usage() float64 {
	return 1 - float64(p.free)/float64(len(p.blocks)-1)
}
