package indexer

import "slices"

// Chain appends to dst the local hashes of a prompt's blocks up to and including the one that a slot holds under an engine hash, in the
// prompt's order. It appends nothing if the slot does not hold it, or if they are more than most. A slot that holds the last block of a
// prompt keeps the blocks before it in the index, even if it has evicted them. Cost: about that of a lookup of the same blocks.
func (x *Index) Chain(dst []uint64, id SlotID, engineHash uint64, most int) []uint64 {
	s, err := x.lockSlot(id)
	if err != nil {
		return dst
	}
	defer s.mu.Unlock() // while the slot holds the block, neither its node nor one before it is freed
	ref := s.find(engineHash, mix(engineHash, x.seed))
	if ref == noRef {
		return dst
	}
	pg, from := x.mem.page(ref/pageBlocks), len(dst)
	for node, end := pg.node, int(pg.base)+int(ref%pageBlocks)+1; node != root; {
		if len(dst)-from+end > most {
			return dst[:from]
		}
		sh := x.shardOfNode(node)
		sh.lock.RLock()
		run, at := *sh.runOf(node), len(dst)
		dst = append(dst, sh.mem.locals(run, end)[:end]...)
		nd := sh.mem.node(run)
		node, end = nd.parent, int(nd.parentOffset)
		sh.lock.RUnlock()
		slices.Reverse(dst[at:])
	}
	slices.Reverse(dst[from:])
	return dst
}
