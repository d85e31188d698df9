// Package vllmcache is the KV cache of one vLLM engine, without the tensors: its block pool, its KV cache groups, what it finds for a
// prompt, what it keeps and evicts, and the events that tell of it. It follows vLLM 0.32 and 0.33 (v1/core/block_pool.py,
// kv_cache_coordinator.py, single_type_kv_cache_manager.py) and shares nothing with our index, which it judges; recordings of vLLM
// judge it (package sim). Drafting (EAGLE, MTP), connectors and sub-block hits (prefix_match_unit) are not in it.
//
//   - A block holds the tokens of one full block, is being filled, or is free. Free blocks keep what they hold until they are taken
//     again: the free list is the LRU order, and a request gives its blocks back last block first. Blocks that hold nothing that can
//     be found go to the list's front.
//   - Equal content may lie in several blocks. Each is told when stored, and its removal when it is taken.
//   - Block 0 is the null block: a pool of n has n-1 to give.
package vllmcache

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Kind says which blocks of a prefix a group needs to resume after it.
type Kind string

// The kinds, by the names that ParseGroups reads.
const (
	Full   Kind = "full"   // all
	Window Kind = "window" // those that a window before the next token touches
	Chunk  Kind = "chunk"  // those since the last multiple of the chunk
	State  Kind = "state"  // the last one: the state of a recurrent layer (Mamba, "align" mode)
)

// Group is one KV cache group. Groups that are equal are looked up together.
type Group struct {
	Kind      Kind
	BlockSize int // tokens
	Window    int // tokens of the window or of the chunk
}

// ParseGroups reads "full:16,window:16:1024": each group's kind, the tokens of its blocks, of its window or chunk.
func ParseGroups(text string) (groups []Group, err error) {
	for one := range strings.SplitSeq(text, ",") {
		part := strings.Split(one, ":")
		g := Group{Kind: Kind(part[0])}
		want := 2
		if g.Kind == Window || g.Kind == Chunk {
			want = 3
		}
		if ok := len(part) == want && slices.Contains([]Kind{Full, Window, Chunk, State}, g.Kind); !ok {
			return nil, fmt.Errorf("group %q: want full:BLOCK, state:BLOCK, window:BLOCK:TOKENS or chunk:BLOCK:TOKENS", one)
		}
		for i, to := range []*int{&g.BlockSize, &g.Window}[:want-1] {
			*to, err = strconv.Atoi(part[i+1])
			if err != nil || *to < 1 {
				return nil, fmt.Errorf("group %q: %q is no number of tokens", one, part[i+1])
			}
		}
		groups = append(groups, g)
	}
	return groups, nil
}

// Dense as Options.Retention keeps all states and every block of a window that a hit may need.
const Dense = -1

// Options describe a cache. Groups and Blocks are required.
type Options struct {
	Groups []Group
	Blocks int
	// Retention is prefix_cache_retention_interval: windows and states are kept where a prompt ends, where another one was found to
	// part from it, and, if it is above 0, every Retention tokens.
	Retention int
	// Step is the most tokens of a step (max_num_batched_tokens); 0: no limit.
	Step int
	// Once: of several copies of a block only the first is told, and its removal when the last has gone, as other engines do.
	Once bool
}

// Key is what can be found: the hash of a prefix, in one group.
type Key[H comparable] struct {
	Group int
	Hash  H
}

// Held is one Key's blocks, oldest first, and what the first of them held.
type Held[C any] struct {
	Blocks  []int32
	Content C
}

// Event tells of a change. Stored: a request's tokens [From, To) in a group; of the blocks of Size tokens in them, those with the
// numbers Kept can be found from now on (numbers count from the prompt's first block). Else Hash left the group.
type Event[H comparable] struct {
	Stored         bool
	Group          int
	Request        *Request[H]
	From, To, Size int
	Kept           []int
	Hash           H
}

// Request is one prompt at the engine. The caller sets the first fields, and appends hashes as tokens come.
type Request[H comparable] struct {
	Prompt   int // tokens
	Tokens   int // known so far, with those generated
	Hashes   []H // of the prefix after each Unit tokens
	Owner    any
	Computed int // tokens
	Junction int // where this prompt parts from what one group holds and another does not; 0: none
	running  bool
	rows     []row // by group
}

// row is what a request has of one group.
type row struct {
	blocks  []int32 // by block of the prefix; 0 is the null block
	stored  int     // blocks that are stored or passed over
	retired int     // State: blocks before it are given back
	last    int     // State: the block of the step before; -1: none
	steps   bool    // State: it had blocks allocated
}

// Hit is what was found of a prompt.
type Hit struct {
	Tokens, Junction int
	rows             [][]int32
}

// Cache is not safe for concurrent use.
type Cache[H comparable, C any] struct {
	// Tell is called with each event.
	Tell func(Event[H])
	// Content makes what Held shows of a request's tokens [from, to).
	Content func(r *Request[H], from, to int) C

	o      Options
	unit   int     // tokens of a hash
	align  int     // of hits
	specs  [][]int // equal groups, those that need all blocks first
	state  int     // block size of the states; 0: there are none
	blocks []block[H]
	free   int
	head   int32
	tail   int32
	held   map[Key[H]]*Held[C]
	fresh  map[Key[H]]bool // states that the current step computes
}

type block[H comparable] struct {
	keys       []Key[H] // the first is of its last token; none: nothing that can be found
	users      int
	prev, next int32 // in the free list
}

const none = int32(-1)

// New makes a cache. Error: groups that do not go together.
func New[H comparable, C any](o Options) (*Cache[H, C], error) {
	if len(o.Groups) == 0 {
		return nil, fmt.Errorf("a KV cache without groups")
	}
	c := &Cache[H, C]{o: o, unit: o.Groups[0].BlockSize, align: 1, blocks: make([]block[H], o.Blocks), head: none, tail: none,
		held: map[Key[H]]*Held[C]{}, fresh: map[Key[H]]bool{}}
	for i, g := range o.Groups {
		c.unit, c.align = gcd(c.unit, g.BlockSize), c.align/gcd(c.align, g.BlockSize)*g.BlockSize
		if g.Kind == State {
			c.state = g.BlockSize
		}
		at := slices.IndexFunc(c.specs, func(s []int) bool { return o.Groups[s[0]] == g })
		switch {
		case at >= 0:
			c.specs[at] = append(c.specs[at], i)
		case g.Kind == Full:
			n := 0
			for n < len(c.specs) && o.Groups[c.specs[n][0]].Kind == Full {
				n++
			}
			c.specs = slices.Insert(c.specs, n, []int{i})
		default:
			c.specs = append(c.specs, []int{i})
		}
	}
	if r := o.Retention; r > 0 && r%c.align != 0 {
		return nil, fmt.Errorf("retention of %d tokens: want a multiple of %d, the least common multiple of the groups' blocks", r, c.align)
	}
	var all []int32
	for i := 1; i < o.Blocks; i++ {
		all = append(all, int32(i))
	}
	c.push(all, false)
	return c, nil
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Unit is how many tokens a hash covers after the one before.
func (c *Cache[H, C]) Unit() int { return c.unit }

// Kept is how many tokens of a prompt all groups keep once it is computed (estimate_cached_tokens): windows and states keep the end at
// which a repetition resumes, and that computes a token.
func (c *Cache[H, C]) Kept(prompt int) int {
	for _, g := range c.o.Groups {
		if (g.Kind == Window || g.Kind == State) && c.o.Retention != Dense {
			return (prompt - 1) / c.align * c.align
		}
	}
	return prompt / c.align * c.align
}

// Free is the number of free blocks.
func (c *Cache[H, C]) Free() int { return c.free }

// Held gives all that can be found. It must not be changed.
func (c *Cache[H, C]) Held() map[Key[H]]*Held[C] { return c.held }

// BeginStep says that what the last step computed is there.
func (c *Cache[H, C]) BeginStep() { clear(c.fresh) }

// push puts blocks into the free list: in front, the first of them to be taken first, or at its end.
func (c *Cache[H, C]) push(ids []int32, front bool) {
	if front {
		slices.Reverse(ids)
	}
	for _, i := range ids {
		b := &c.blocks[i]
		b.prev, b.next = c.tail, none
		if front {
			b.prev, b.next = none, c.head
		}
		if b.prev == none {
			c.head = i
		} else {
			c.blocks[b.prev].next = i
		}
		if b.next == none {
			c.tail = i
		} else {
			c.blocks[b.next].prev = i
		}
	}
	c.free += len(ids)
}

func (c *Cache[H, C]) unlink(i int32) {
	b := &c.blocks[i]
	if b.prev == none {
		c.head = b.next
	} else {
		c.blocks[b.prev].next = b.next
	}
	if b.next == none {
		c.tail = b.prev
	} else {
		c.blocks[b.next].prev = b.prev
	}
	c.free--
}

// touch takes found blocks into use.
func (c *Cache[H, C]) touch(ids []int32) {
	for _, i := range ids {
		if i == 0 {
			continue
		}
		if c.blocks[i].users == 0 {
			c.unlink(i)
		}
		c.blocks[i].users++
	}
}

// take appends n free blocks to ids, least recently used first; what they held is forgotten, and told.
func (c *Cache[H, C]) take(ids []int32, n int) []int32 {
	for range n {
		i := c.head
		c.unlink(i)
		c.blocks[i].users = 1
		c.forget(i)
		ids = append(ids, i)
	}
	return ids
}

func (c *Cache[H, C]) forget(i int32) {
	b := &c.blocks[i]
	for _, key := range b.keys {
		h := c.held[key]
		h.Blocks = slices.DeleteFunc(h.Blocks, func(id int32) bool { return id == i })
		if len(h.Blocks) == 0 {
			delete(c.held, key)
		}
		if len(h.Blocks) == 0 || !c.o.Once {
			c.Tell(Event[H]{Group: key.Group, Hash: key.Hash})
		}
	}
	b.keys = nil
}

// giveBack frees blocks in the order in which they shall be taken again.
func (c *Cache[H, C]) giveBack(ids []int32) {
	var first, last []int32
	for _, i := range ids {
		if i == 0 {
			continue
		}
		b := &c.blocks[i]
		b.users--
		if b.users > 0 {
			continue
		}
		if len(b.keys) == 0 {
			first = append(first, i)
		} else {
			last = append(last, i)
		}
	}
	c.push(first, true)
	c.push(last, false)
}

// Release gives back all that a request has; it may be allocated anew.
func (c *Cache[H, C]) Release(r *Request[H]) {
	for i := range r.rows {
		slices.Reverse(r.rows[i].blocks)
		c.giveBack(r.rows[i].blocks)
	}
	r.rows, r.running, r.Computed = nil, false, 0
}

// Reset forgets all that can be found, and tells nothing of it; false while requests hold blocks.
func (c *Cache[H, C]) Reset() bool {
	if c.free != len(c.blocks)-1 {
		return false
	}
	for i := range c.blocks {
		c.blocks[i].keys = nil
	}
	clear(c.held)
	return true
}

// Usage is the share of blocks that requests hold, 0 to 1.
func (c *Cache[H, C]) Usage() float64 { return 1 - float64(c.free)/float64(len(c.blocks)-1) }
