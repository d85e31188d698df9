package speculative

import (
	"cmp"
	"slices"
)

// promisedBlocks stores for each block which slots are predicted to hold it and until when (Unix ns). Most blocks are promised to
// a single slot, which is stored in the map itself; further slots, as for the common beginning of prompts, are in a list sorted
// by slot.
type promisedBlocks struct {
	first map[uint64]firstPromised // by chain hash
	lists [][]promisedTo
	free  []uint32 // numbers of unused lists
}

type promisedTo struct {
	slot  uint32
	until int64
}

// firstPromised is a promisedTo with a reference to the further ones, in 16 bytes.
type firstPromised struct {
	until  int64
	slot   uint32
	others uint32 // 1 + the number of the list; 0: none
}

func bySlot(p promisedTo, slot uint32) int { return cmp.Compare(p.slot, slot) }

// until returns when the promise of a block to a slot ends; known is false if there is none.
func (p *promisedBlocks) until(block uint64, slot uint32) (end int64, known bool) {
	f, ok := p.first[block]
	return p.among(&f, ok, slot)
}

func (p *promisedBlocks) among(f *firstPromised, ok bool, slot uint32) (end int64, known bool) {
	switch {
	case !ok:
		return 0, false
	case f.slot == slot:
		return f.until, true
	case f.others == 0:
		return 0, false
	}
	list := p.lists[f.others-1]
	if at, known := slices.BinarySearchFunc(list, slot, bySlot); known {
		return list[at].until, true
	}
	return 0, false
}

// kept is the bit of until that is set once the promise's request has ended: a nanosecond more or less does not matter.
const kept = 1

// computed reports whether a block is promised by a request that has not ended.
func (p *promisedBlocks) computed(block uint64, now int64) bool {
	f, ok := p.first[block]
	if !ok {
		return false
	}
	if f.until > now && f.until&kept == 0 {
		return true
	}
	return f.others > 0 && slices.ContainsFunc(p.lists[f.others-1], func(one promisedTo) bool {
		return one.until > now && one.until&kept == 0
	})
}

// put sets a promise, and returns the end of the previous one.
func (p *promisedBlocks) put(block uint64, slot uint32, until int64) (before int64, known bool) {
	f, ok := p.first[block]
	if !ok || f.slot == slot {
		p.first[block] = firstPromised{until, slot, f.others}
		return f.until, ok
	}
	if f.others == 0 {
		if n := len(p.free); n > 0 {
			f.others, p.free = p.free[n-1], p.free[:n-1]
		} else {
			p.lists = append(p.lists, nil)
			f.others = uint32(len(p.lists))
		}
		p.first[block] = f
	}
	list := &p.lists[f.others-1]
	at, known := slices.BinarySearchFunc(*list, slot, bySlot)
	if known {
		before, (*list)[at].until = (*list)[at].until, until
		return before, true
	}
	*list = slices.Insert(*list, at, promisedTo{slot, until})
	return 0, false
}

// end removes an existing promise, unless it ends later than after. It returns the promise's end.
func (p *promisedBlocks) end(block uint64, slot uint32, after int64) (until int64) {
	f := p.first[block]
	until, _ = p.among(&f, true, slot)
	if until > after {
		return until
	}
	if f.others == 0 {
		delete(p.first, block)
		return until
	}
	list := &p.lists[f.others-1]
	if f.slot == slot { // another slot takes its place
		last := (*list)[len(*list)-1]
		f.slot, f.until = last.slot, last.until
		*list = (*list)[:len(*list)-1]
	} else if at, known := slices.BinarySearchFunc(*list, slot, bySlot); known {
		*list = slices.Delete(*list, at, at+1)
	}
	if len(*list) == 0 {
		*list = nil
		p.free = append(p.free, f.others)
		f.others = 0
	}
	p.first[block] = f
	return until
}

// reach is how many leading blocks a slot holds, then how many with promises.
type reach struct {
	slot   uint32
	blocks int32
}

// Reaches extends the reach of many slots at once. The work is proportional to the blocks that may extend some slot's reach, not
// to the number of slots.
type Reaches struct {
	all     []reach
	indexOf []int32 // by slot: its index in all; valid only if all has the slot there
	levels  []level // by block: the slots that hold all blocks before it
	next    []int32 // by index in all: the next slot of the same level; -1: none
}

type level struct{ first, count int32 }

// Reset forgets all slots.
func (r *Reaches) Reset() { r.all = r.all[:0] }

// Blocks returns the reach of the slot that was added as the ith.
func (r *Reaches) Blocks(i int) int { return int(r.all[i].blocks) }

// Add adds a slot by the number of leading blocks that it holds.
func (r *Reaches) Add(slot uint32, blocks int) {
	for int(slot) >= len(r.indexOf) {
		r.indexOf = append(r.indexOf, 0)
	}
	r.indexOf[slot] = int32(len(r.all))
	r.all = append(r.all, reach{slot, int32(blocks)})
}

// enter adds one to its level.
func (r *Reaches) enter(i int32) {
	if b := int(r.all[i].blocks); b < len(r.levels) {
		l := &r.levels[b]
		r.next[i], l.first = l.first, i
		l.count++
	}
}

// extend extends the reaches by the promises of a prompt's blocks that have not expired.
func (r *Reaches) extend(p *promisedBlocks, chain []uint64, now int64) {
	r.levels = slices.Grow(r.levels[:0], len(chain))[:len(chain)]
	for b := range r.levels {
		r.levels[b] = level{first: -1}
	}
	r.next = slices.Grow(r.next[:0], len(r.all))[:len(r.all)]
	for i := range r.all {
		r.enter(int32(i))
	}
	for b := range chain {
		l := r.levels[b]
		if l.count == 0 {
			continue
		}
		f, ok := p.first[chain[b]]
		if !ok {
			continue
		}
		var list []promisedTo
		if f.others > 0 {
			list = p.lists[f.others-1]
		}
		if int(l.count)*8 < len(list) { // few slots at this level, many promises
			for i, next := l.first, int32(0); i >= 0; i = next {
				next = r.next[i]
				if end, _ := p.among(&f, ok, r.all[i].slot); end > now {
					r.step(i)
				}
			}
			continue
		}
		r.advance(promisedTo{f.slot, f.until}, b, now)
		for _, one := range list {
			r.advance(one, b, now)
		}
	}
}

// advance extends the reach of a promise's slot by one block, if the slot is at that block.
func (r *Reaches) advance(one promisedTo, b int, now int64) {
	if one.until <= now || int(one.slot) >= len(r.indexOf) {
		return
	}
	if i := r.indexOf[one.slot]; int(i) < len(r.all) && r.all[i].slot == one.slot && int(r.all[i].blocks) == b {
		r.step(i)
	}
}

func (r *Reaches) step(i int32) {
	r.all[i].blocks++
	r.enter(i)
}
