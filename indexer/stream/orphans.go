package stream

// Orphans: stored blocks whose parent is not held, because it was reported before the feed began, further back than a replay
// reaches. They wait below their parent's engine hash, or below another orphan, until the parent is stored, or until a request
// reveals which block of which prompt the parent is (inferredprefixes.go). Removals and clears apply to them as to what the sink holds.
//
// At most maxOrphans blocks of a rank wait, at about 80 bytes each: beyond that, the one reported longest ago is dropped, with
// all that waits below it. Of several copies of a block one is counted, so that one removal removes it: too little is better than
// too much.

import (
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/mmhash/block"
)

const maxOrphans = 1 << 18

// orphans are trees. Only the engine hash of a root is known; all other blocks were reported. The zero value is empty.
type orphans struct {
	byHash   map[uint64]uint32 // by engine hash: index in blocks
	blocks   []orphan          // the first is unused: index 0 stands for none
	free     uint32            // first free entry, linked by next
	reported int               // number of blocks that are not roots

	oldest, newest uint32 // ends of the list of reported blocks, by time
}

type orphan struct {
	engineHash, local         uint64
	parent, child, prev, next uint32 // prev and next: children of one parent
	older, newer              uint32
	tiers                     uint8 // a bit for each tier that holds it; 0: a root
	rootRemoved               bool  // a root that was removed since something began to wait for it
}

// add adds the blocks of a stored event whose parent is not held, and returns how many were dropped for lack of room.
func (o *orphans) add(e *kvevent.Event) (dropped uint64) {
	parent := o.get(e.Parent)
	o.blocks[parent].rootRemoved = false
	for i, h := range e.EngineHashes {
		b := o.get(h)
		n := &o.blocks[b]
		if n.child != 0 && o.isBelow(parent, b) {
			break // no engine reports a block that waits for itself
		}
		if n.tiers != 0 {
			o.unqueue(b)
		}
		if n.local != e.Locals[i] {
			n.local, n.tiers = e.Locals[i], 0
		}
		n.tiers |= 1 << e.Tier
		o.queue(b)
		if above := n.parent; above != parent {
			o.unlink(b)
			o.link(b, parent)
			o.release(above)
		}
		parent = b
	}
	for o.reported > maxOrphans {
		dropped += uint64(len(o.cut(o.oldest)))
	}
	return dropped
}

// isBelow reports whether a block waits below another, or is it.
func (o *orphans) isBelow(b, other uint32) bool {
	for b != 0 && b != other {
		b = o.blocks[b].parent
	}
	return b == other
}

// removed removes blocks from a tier and returns how many of them waited there.
func (o *orphans) removed(tier kvevent.Tier, engineHashes []uint64) (known int) {
	if o.reported == 0 {
		return 0
	}
	for _, h := range engineHashes {
		b, ok := o.byHash[h]
		if !ok {
			continue
		}
		n := &o.blocks[b]
		switch {
		case n.tiers == 0:
			n.rootRemoved = n.rootRemoved || tier == kvevent.GPU
		case n.tiers&(1<<tier) != 0:
			known++
			if n.tiers == 1<<tier {
				o.makeRoot(b)
				n.rootRemoved = true
				o.release(b)
			} else {
				n.tiers &^= 1 << tier
			}
		}
	}
	return known
}

// root finds the root above a waiting block whose prompt is known: locals are the prompt's blocks up to it. It returns the root
// and how many of the prompt's blocks end with it; 0 if the block does not wait, or is not of that prompt.
func (o *orphans) root(engineHash uint64, locals []uint64) (root uint64, blocks int) {
	b, ok := o.byHash[engineHash]
	blocks = len(locals)
	for ; ok && blocks > 0; blocks-- {
		n := &o.blocks[b]
		if n.tiers == 0 {
			if n.rootRemoved {
				break
			}
			return n.engineHash, blocks
		}
		if n.local != locals[blocks-1] {
			break
		}
		b = n.parent
	}
	return 0, 0
}

// PendingEvents returns what the feed knows beyond its sink, as events: the blocks that wait for their parent. It is for a sink that locks
// the feed out meanwhile, from a batch's first call to its Done.
func (c *content) PendingEvents() []kvevent.Event { return c.orphans.events(c.form) }

// cut removes a block and all that waits below it, and returns them, parents first and each chain contiguous.
func (o *orphans) cut(b uint32) (out []cutBlock) {
	for list := []uint32{b}; len(list) > 0; {
		b, list = list[len(list)-1], list[:len(list)-1]
		n := &o.blocks[b]
		out = append(out, cutBlock{o.blocks[n.parent].engineHash, n.engineHash, n.local, n.tiers})
		for c := n.child; c != 0; c = o.blocks[c].next {
			list = append(list, c)
		}
	}
	for i := len(out) - 1; i >= 0; i-- { // children first, so that each becomes free
		if b, ok := o.byHash[out[i].engineHash]; ok {
			o.makeRoot(b)
			o.release(b)
		}
	}
	return out
}

// events returns the events that recreate these orphans from none.
func (o *orphans) events(form block.Form) (out []kvevent.Event) {
	last := uint64(0) // the last block of a chain of one tier that may be extended
	for b := o.oldest; b != 0; b = o.blocks[b].newer {
		n := &o.blocks[b]
		parent := o.blocks[n.parent].engineHash
		alone := n.tiers&(n.tiers-1) == 0
		if e := len(out) - 1; alone && e >= 0 && last == parent && 1<<out[e].Tier == n.tiers {
			out[e].EngineHashes, out[e].Locals = append(out[e].EngineHashes, n.engineHash), append(out[e].Locals, n.local)
			last = n.engineHash
			continue
		}
		for tier := range kvevent.Tier(kvevent.Tiers) {
			if n.tiers>>tier&1 != 0 {
				out = append(out, kvevent.Event{Kind: kvevent.Stored, Tier: tier, HasParent: true, Parent: parent,
					BlockSize: form.Size, Lookahead: form.Lookahead,
					EngineHashes: []uint64{n.engineHash}, Locals: []uint64{n.local}})
			}
		}
		last = 0
		if alone {
			last = n.engineHash
		}
	}
	gone := kvevent.Event{Kind: kvevent.Removed}
	for h, b := range o.byHash {
		if n := &o.blocks[b]; n.tiers == 0 && n.rootRemoved {
			gone.EngineHashes = append(gone.EngineHashes, h)
		}
	}
	if len(gone.EngineHashes) > 0 {
		out = append(out, gone)
	}
	return out
}

// cutBlock is a block that was removed by cut.
type cutBlock struct {
	parent, engineHash, local uint64
	tiers                     uint8
}

func (o *orphans) clear() { *o = orphans{} }

// get returns the index of an engine hash's block, and adds it as a root if there was none.
func (o *orphans) get(engineHash uint64) uint32 {
	if b, ok := o.byHash[engineHash]; ok {
		return b
	}
	if o.byHash == nil {
		o.byHash, o.blocks = map[uint64]uint32{}, make([]orphan, 1)
	}
	b := o.free
	if b != 0 {
		o.free = o.blocks[b].next
	} else {
		b = uint32(len(o.blocks))
		o.blocks = append(o.blocks, orphan{})
	}
	o.blocks[b] = orphan{engineHash: engineHash}
	o.byHash[engineHash] = b
	return b
}

// release frees the entry of a root that nothing waits for.
func (o *orphans) release(b uint32) {
	if b == 0 {
		return
	}
	n := &o.blocks[b]
	if n.tiers != 0 || n.child != 0 {
		return
	}
	delete(o.byHash, n.engineHash)
	*n = orphan{next: o.free}
	o.free = b
	if len(o.byHash) == 0 {
		o.clear() // returns the memory
	}
}

// makeRoot makes a block a root: it is not held.
func (o *orphans) makeRoot(b uint32) {
	n := &o.blocks[b]
	if n.tiers == 0 {
		return
	}
	n.tiers = 0
	o.unqueue(b)
	above := n.parent
	o.unlink(b)
	o.release(above)
}

// link puts a block below another.
func (o *orphans) link(b, parent uint32) {
	n, p := &o.blocks[b], &o.blocks[parent]
	n.parent, n.next = parent, p.child
	if n.next != 0 {
		o.blocks[n.next].prev = b
	}
	p.child = b
}

// unlink removes a block from its parent, if it has one.
func (o *orphans) unlink(b uint32) {
	n := &o.blocks[b]
	if n.prev != 0 {
		o.blocks[n.prev].next = n.next
	} else if n.parent != 0 {
		o.blocks[n.parent].child = n.next
	}
	if n.next != 0 {
		o.blocks[n.next].prev = n.prev
	}
	n.parent, n.prev, n.next = 0, 0, 0
}

// queue makes a block the last one reported.
func (o *orphans) queue(b uint32) {
	n := &o.blocks[b]
	n.older, n.newer = o.newest, 0
	if o.newest != 0 {
		o.blocks[o.newest].newer = b
	} else {
		o.oldest = b
	}
	o.newest = b
	o.reported++
}

func (o *orphans) unqueue(b uint32) {
	n := &o.blocks[b]
	if n.older != 0 {
		o.blocks[n.older].newer = n.newer
	} else {
		o.oldest = n.newer
	}
	if n.newer != 0 {
		o.blocks[n.newer].older = n.older
	} else {
		o.newest = n.older
	}
	o.reported--
}

// attachOrphans stores what waits for blocks that are held now, as chains.
func (c *content) attachOrphans(engineHashes []uint64, n *Stats) {
	for _, h := range engineHashes {
		b, ok := c.orphans.byHash[h]
		if !ok {
			continue
		}
		list := c.orphans.cut(b)[1:]
		e := kvevent.Event{Kind: kvevent.Stored, HasParent: true, BlockSize: c.form.Size, Lookahead: c.form.Lookahead}
		for from, to := 0, 0; from < len(list); from = to {
			first := list[from]
			e.Parent, e.EngineHashes, e.Locals = first.parent, e.EngineHashes[:0], e.Locals[:0]
			for to = from; to < len(list) && list[to].tiers == first.tiers && (to == from || list[to].parent == list[to-1].engineHash); to++ {
				e.EngineHashes, e.Locals = append(e.EngineHashes, list[to].engineHash), append(e.Locals, list[to].local)
			}
			for tier := range kvevent.Tier(kvevent.Tiers) {
				e.Tier = tier
				if first.tiers>>tier&1 == 0 {
					continue
				}
				if c.o.Sink.Store(&e) == nil {
					n.OrphansAttached += uint64(to - from)
				} else {
					n.OrphansDropped += uint64(to - from)
				}
			}
		}
	}
}
