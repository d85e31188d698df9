package router

import (
	"cmp"
	"slices"
)

// promisedBlocks says of each block which slots will hold it, and until when that counts (Unix ns). Most blocks are promised
// to one slot, which stands in the map itself; those of a prompt's common beginning to many, and the others stand in a list,
// by their numbers.
type promisedBlocks struct {
	first map[uint64]firstPromised // by chained hash
	lists [][]promisedTo
	free  []uint32 // numbers of lists that are not in use
}

type promisedTo struct {
	slot  uint32
	until int64
}

// firstPromised is a promisedTo, and where the others are, in 16 bytes.
type firstPromised struct {
	until  int64
	slot   uint32
	others uint32 // 1 + the number of the list; 0: there are none
}

func bySlot(p promisedTo, slot uint32) int { return cmp.Compare(p.slot, slot) }

// until is when the promise of a block to a slot ends; known is false where there is none.
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

// put notes a promise, and gives the end of the one before.
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

// end takes out a promise that is there, unless it was renewed after a time; it gives the promise's end.
func (p *promisedBlocks) end(block uint64, slot uint32, after int64) (until int64) {
	f := p.first[block]
	if until, _ = p.among(&f, true, slot); until > after {
		return until
	}
	if f.others == 0 {
		delete(p.first, block)
		return until
	}
	list := &p.lists[f.others-1]
	if f.slot == slot { // another takes its place
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

// reach is how many leading blocks a slot holds, and with promises will hold.
type reach struct {
	slot   uint32
	blocks int32
}

// reaches extends many slots' reach at once: work is done for each block that somebody might add to his, not for each slot.
type reaches struct {
	all   []reach
	place []int32 // by slot: where in all; good if it is the slot's there
	at    []level // by block: those who hold all before it
	next  []int32 // by place: the next one at the level; -1: none
}

type level struct{ first, count int32 }

func (r *reaches) reset() { r.all = r.all[:0] }

func (r *reaches) add(slot uint32, blocks int) {
	for int(slot) >= len(r.place) {
		r.place = append(r.place, 0)
	}
	r.place[slot] = int32(len(r.all))
	r.all = append(r.all, reach{slot, int32(blocks)})
}

// enter puts one at its level.
func (r *reaches) enter(i int32) {
	if b := int(r.all[i].blocks); b < len(r.at) {
		l := &r.at[b]
		r.next[i], l.first = l.first, i
		l.count++
	}
}

// extend follows the promises of a prompt's blocks that have not ended at a time.
func (r *reaches) extend(p *promisedBlocks, chain []uint64, now int64) {
	r.at = slices.Grow(r.at[:0], len(chain))[:len(chain)]
	for b := range r.at {
		r.at[b] = level{first: -1}
	}
	r.next = slices.Grow(r.next[:0], len(r.all))[:len(r.all)]
	for i := range r.all {
		r.enter(int32(i))
	}
	for b := range chain {
		l := r.at[b]
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
		if int(l.count)*8 < len(list) { // few ask, many are there
			for i, next := l.first, int32(0); i >= 0; i = next {
				next = r.next[i]
				if end, _ := p.among(&f, ok, r.all[i].slot); end > now {
					r.step(i)
				}
			}
			continue
		}
		r.take(promisedTo{f.slot, f.until}, b, now)
		for _, one := range list {
			r.take(one, b, now)
		}
	}
}

// take takes the slot of a promise on by one block, if it is among those at that block.
func (r *reaches) take(one promisedTo, b int, now int64) {
	if one.until <= now || int(one.slot) >= len(r.place) {
		return
	}
	if i := r.place[one.slot]; int(i) < len(r.all) && r.all[i].slot == one.slot && int(r.all[i].blocks) == b {
		r.step(i)
	}
}

func (r *reaches) step(i int32) {
	r.all[i].blocks++
	r.enter(i)
}
