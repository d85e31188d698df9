package indexer

import (
	"iter"
	"math/rand/v2"

	"github.com/sightline-router/sightline/indexer/kvevent"
)

// Block is one block of a slot's listing.
type Block struct {
	Local      uint64
	EngineHash uint64
	Parent     int          // index of the previous block in the listing; -1 if it begins a prompt
	Copies     [Tiers]uint8 // number of copies in each tier; all 0: not held, and listed because held blocks follow it
}

// Blocks lists what a slot holds, parents before children. Content under two engine hashes is listed twice. Cost: about 0.1 µs
// and 32 bytes a block; events of the slot wait meanwhile. Error: ErrUnknownSlot.
func (x *Index) Blocks(id SlotID) ([]Block, error) {
	s, err := x.lockSlot(id)
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	return listing(s), nil
}

// listing returns what a locked slot holds.
func listing(s *slot) []Block {
	out := make([]Block, 0, s.heldBlocks.Load())
	for _, b := range s.branches() {
		out = s.appendBranch(out, b)
	}
	return out
}

// Events returns the events that make an empty slot hold what a listing says: stored chains, and last the removal of the blocks
// that are listed without a copy, which are stored under random engine hashes. Their BlockSize is 0.
func Events(list []Block) iter.Seq[kvevent.Event] {
	return func(yield func(kvevent.Event) bool) {
		engineHashes, locals := make([]uint64, len(list)), make([]uint64, len(list))
		var notHeld []uint64
		for i, b := range list {
			engineHashes[i], locals[i] = b.EngineHash, b.Local
			if b.Copies == [Tiers]uint8{} {
				engineHashes[i] = rand.Uint64()
				notHeld = append(notHeld, engineHashes[i])
			}
		}
		for from, to := 0, 0; from < len(list); from = to {
			first := list[from]
			for to = from + 1; to < len(list) && list[to].Parent == to-1 && list[to].Copies == first.Copies; {
				to++
			}
			e := kvevent.Event{Kind: kvevent.Stored, EngineHashes: engineHashes[from:to], Locals: locals[from:to]}
			if first.Parent >= 0 {
				e.Parent, e.HasParent = engineHashes[first.Parent], true
			}
			if first.Copies == [Tiers]uint8{} {
				first.Copies[GPU] = 1
			}
			for tier, copies := range first.Copies {
				e.Tier = Tier(tier)
				for range copies {
					if !yield(e) {
						return
					}
				}
			}
		}
		if len(notHeld) > 0 {
			yield(kvevent.Event{Kind: kvevent.Removed, Tier: GPU, EngineHashes: notHeld})
		}
	}
}

// branch is what a slot holds of one node, for a listing.
type branch struct {
	id           uint32
	parent       *branch
	parentOffset int    // node.parentOffset
	blocks       int    // number of its listed blocks: up to the last held one, or the last with a listed child
	page         uint32 // first of the slot's pages
	numbers      []int  // by listed block: its index in the listing
}

// branches finds the nodes of which the slot holds a block, and the nodes before them, parents before children. Only the slot's
// own calls could change what it holds; the shards are read-locked for one node at a time.
func (s *slot) branches() (list []*branch) {
	mem := s.x.mem
	known := map[uint32]*branch{}
	var get func(uint32) *branch
	get = func(id uint32) *branch {
		if b := known[id]; b != nil {
			return b
		}
		sh := s.x.shardOfNode(id)
		b := &branch{id: id, page: noPage}
		known[id] = b
		sh.lock.RLock()
		nd := sh.node(id)
		parent, at := nd.parent, int(nd.parentOffset)
		if _, head := mem.residencyOf(nd, blocksOf(s.id)); head != nil {
			b.page = *head
			b.blocks = mem.lastHeld(b.page)
		}
		sh.lock.RUnlock()
		if parent != root {
			b.parent, b.parentOffset = get(parent), at
			b.parent.blocks = max(b.parent.blocks, at)
		}
		list = append(list, b)
		return b
	}
	s.table.eachRef(func(ref uint32) { get(mem.page(ref / pageBlocks).node) })
	return list
}

// appendBranch lists a branch's blocks.
func (s *slot) appendBranch(out []Block, b *branch) []Block {
	mem := s.x.mem
	sh := s.x.shardOfNode(b.id)
	sh.lock.RLock()
	locals := append([]uint64(nil), mem.locals(*sh.runOf(b.id), b.blocks)...)
	sh.lock.RUnlock()
	before := -1
	if b.parent != nil {
		before = b.parent.numbers[b.parentOffset-1]
	}
	b.numbers = make([]int, len(locals))
	at := b.page // the first page that may have the block
	for offset, local := range locals {
		first := len(out)
		for at != noPage && int(mem.page(at).base)+pageBlocks <= offset {
			at = mem.page(at).next
		}
		for id := at; id != noPage && int(mem.page(id).base) <= offset; id = mem.page(id).next {
			pg := mem.page(id)
			if k := offset - int(pg.base); pg.any()>>k&1 != 0 {
				out = append(out, Block{Local: local, EngineHash: pg.engineHashes[k], Parent: before, Copies: s.copiesAt(pg, k)})
			}
		}
		if len(out) == first {
			out = append(out, Block{Local: local, Parent: before})
		}
		before, b.numbers[offset] = first, first
	}
	return out
}

// copiesAt returns the number of copies of a page's entry in each tier.
func (s *slot) copiesAt(pg *page, k int) (n [Tiers]uint8) {
	for t := range n {
		if pg.held[t]>>k&1 != 0 {
			n[t] = 1 + s.copies[copyKey{pg.engineHashes[k], Tier(t)}]
		}
	}
	return n
}
