package indexer

import (
	"math/bits"
	"slices"

	"github.com/sightline-router/sightline/indexer/kvevent"
)

// How much of a prompt an engine with several KV cache groups takes from its cache: the longest beginning, in whole blocks, that
// leaves at least one token to compute and that every group accepts. vLLM 0.32 and 0.33 search for it by shortening a candidate until
// no group shortens it further (v1/core/kv_cache_coordinator.py, HybridKVCacheCoordinator.find_longest_cache_hit); each group's
// search returns the longest beginning up to the candidate that the group accepts, so the result is the longest that all accept:
//
//	all    all blocks of it are held                          FullAttentionManager.find_longest_cache_hit
//	window the last ⌈(window−1)/block⌉ blocks are held,       SlidingWindowManager.find_longest_cache_hit
//	       or all of them
//	chunk  those since the last multiple of the chunk         ChunkedLocalAttentionManager.find_longest_cache_hit
//	last   the last one, the state, is held                   MambaManager.find_longest_cache_hit
//	       (v1/core/single_type_kv_cache_manager.py)
//
// A block counts for a kind of group only if all groups of that kind hold it. The length is a multiple of all groups' block sizes
// (the coordinator's alignment). An engine that drafts with EAGLE or MTP looks one block further in the full group and withholds it;
// with a single group there is no block further (eagle_proof_margin; UnitaryKVCacheCoordinator).

// hybridState is what a lookup knows about one slot with groups.
type hybridState struct {
	view *groupView
	slot SlotID
	row  int32 // in Matches.Slots
	pos  int32 // blocks of the prompt that the runs end with
	best int32 // the longest beginning that the groups accept
	last int32 // the longest one before best
	runs [maxKinds]int32
}

// beginHybrids begins the states of those rows whose slots have groups that are understood.
func (m *Matches) beginHybrids() {
	list, states, k := *m.index.slots.Load(), slices.Grow(m.hybrids, len(m.Slots))[:len(m.Slots)], 0
	for i, r := range m.Slots {
		if int(r.Slot) < len(list) && list[r.Slot] != nil {
			if v := list[r.Slot].view.Load(); v != nil && !v.unclear {
				states[k] = hybridState{view: v, slot: r.Slot, row: int32(i)}
				k++
			}
		}
	}
	m.hybrids = states[:k]
}

// addHybrids adds to the states what a node's runs of bits say; the rows have the node's blocks already.
func (m *Matches) addHybrids(mem *memory, nd *node, at int) {
	k := 0
	for list := uint32(0); k < len(m.hybrids); {
		residencies, pages, next := mem.residenciesOf(nd, list)
		for i, res := range residencies {
			if !res.isBits() {
				continue
			}
			for k < len(m.hybrids) && m.hybrids[k].slot < res.slot() {
				m.hybrids[k].add(m, nil, at)
				k++
			}
			if k < len(m.hybrids) && m.hybrids[k].slot == res.slot() {
				m.hybrids[k].add(m, mem.bitRun(pages[i]), at)
				k++
			}
		}
		if list = next; list == 0 {
			break
		}
	}
	for ; k < len(m.hybrids); k++ {
		m.hybrids[k].add(m, nil, at)
	}
}

// add goes on along a node's blocks that the slot holds, after the first at of the prompt; words is the run of bits, nil if there is
// none.
func (st *hybridState) add(m *Matches, words []uint64, at int) {
	v, blocks := st.view, int(m.Slots[st.row].Blocks)-at
	if blocks <= 0 || v.count == 0 {
		return
	}
	if words != nil && uint32(words[0]>>32) != v.version {
		words = nil
	}
	if int(st.pos) != at {
		st.runs = [maxKinds]int32{}
	}
	if words == nil && !v.anywhere {
		return // st.pos stays: the runs end here
	}
	perKind := 0 // words of a kind whose blocks are Store's
	if words != nil {
		perKind, words = int(words[0]>>16&0xFFFF)/64, words[1:]
	}
	kinds := v.kinds[:v.count]
	var held [maxKinds]uint64 // of 64 blocks, for kinds whose blocks are Store's
	for w := 0; w*64 < blocks; w++ {
		from := at + w*64 // blocks of the prompt
		n := min(64, at+blocks-from)
		ends := v.aligned(from) & (1<<uint(max(0, min(n, m.limit-from))) - 1) // after which of the blocks a prefix may end
		for i := range kinds {
			if k := &kinds[i]; k.ratio == 1 {
				held[i] = 0
				if w < perKind {
					held[i] = words[int(k.first)*perKind+w]
				}
				ends &= held[i] | k.chunkEnds(from)
			}
		}
		found := false
	longest:
		for ends != 0 {
			length := bits.Len64(ends)
			for i := range kinds {
				k, row := &kinds[i], int32(0)
				if k.ratio == 1 {
					row = row64(held[i], length, st.runs[i])
				} else {
					row = k.rowSmall(words, perKind, w, length, st.runs[i])
				}
				if !k.accepts(row, int32(from+length)*int32(k.ratio)) { // nor any that ends earlier in the same row
					ends &= 1<<uint(max(0, length-max(1, int(row)/int(k.ratio)))) - 1
					continue longest
				}
			}
			if found {
				st.last = int32(from + length)
				break
			}
			found, st.last, st.best = true, st.best, int32(from+length)
			if !v.withhold {
				break
			}
			ends &^= 1 << (length - 1)
		}
		for i := range kinds {
			if k := &kinds[i]; k.ratio == 1 {
				st.runs[i] = row64(held[i], n, st.runs[i])
			} else {
				st.runs[i] = k.rowSmall(words, perKind, w, n, st.runs[i])
			}
		}
	}
	st.pos = int32(at + blocks)
}

// aligned returns after which of the 64 blocks that follow at blocks of the prompt all groups have whole blocks.
func (v *groupView) aligned(at int) (ends uint64) {
	if v.align == 1 {
		return ^uint64(0)
	}
	return multiples(at, int(v.align))
}

// chunkEnds returns after which of them a chunk ends: there nothing needs to be held.
func (k *kindView) chunkEnds(at int) uint64 {
	if k.need != kvevent.NeedChunk {
		return 0
	}
	return multiples(at, int(k.blocks))
}

func multiples(at, of int) (ends uint64) {
	for b := of - 1 - at%of; b < 64; b += of {
		ends |= 1 << b
	}
	return ends
}

// accepts reports whether a prefix may end after end of a group's blocks, the last ones of which it holds in a row.
func (k *kindView) accepts(row, end int32) bool {
	switch k.need {
	case kvevent.NeedWindow:
		return row >= k.blocks || row == end
	case kvevent.NeedAll:
		return row == end
	case kvevent.NeedChunk:
		return row >= end%k.blocks
	}
	return row > 0
}

// row64 returns how many blocks in a row end with the n-th of those in held; before is how many end before the first.
func row64(held uint64, n int, before int32) int32 {
	row := bits.LeadingZeros64(^(held << (uint(64-n) & 63)))
	if row >= n {
		return before + int32(n)
	}
	return int32(row)
}

// rowSmall does so for a group with ratio blocks in one of Store's, from the node's block 64*w on.
func (k *kindView) rowSmall(words []uint64, perKind, w, n int, before int32) int32 {
	if w >= perKind {
		return 0
	}
	words = words[int(k.first)*perKind+w*int(k.ratio):]
	for left := n * int(k.ratio); left > 0; left -= 64 {
		before = row64(words[0], min(64, left), before)
		words = words[1:]
	}
	return before
}

// endHybrids replaces in the rows of slots with groups the blocks held by those that the engine would find.
func (m *Matches) endHybrids() {
	for i := range m.hybrids {
		st := &m.hybrids[i]
		row, v := &m.Slots[st.row], st.view
		held, found := int(row.Blocks), int(st.best)
		switch {
		case v.count > 0 && v.withhold && found >= held:
			found = int(st.last)
		case v.count == 0 && v.withhold:
			found = max(0, min(held, m.limit)-1)
		case v.count == 0:
			found = min(held, m.limit)
		}
		if found < held {
			m.Reduced = append(m.Reduced, Match{st.slot, row.Blocks})
		}
		row.Blocks = uint32(found)
	}
	rows, longest := m.Slots[:0], uint32(0)
	for _, r := range m.Slots {
		longest = max(longest, r.Blocks)
		if r.Blocks > 0 {
			rows = append(rows, r)
		}
	}
	m.Slots, m.Longest = rows, int(longest)
	for i := range m.GPU {
		if at, ok := slices.BinarySearchFunc(m.Slots, m.GPU[i].Slot, Match.bySlot); ok {
			m.GPU[i].Blocks = min(m.GPU[i].Blocks, m.Slots[at].Blocks)
		} else {
			m.GPU[i].Blocks = 0
		}
	}
}
