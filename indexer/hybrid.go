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

// beginHybrids begins the states of those rows whose slots have groups.
func (m *Matches) beginHybrids() {
	list := *m.index.slots.Load()
	for i := range m.Slots {
		if id := m.Slots[i].Slot; int(id) < len(list) && list[id] != nil {
			if v := list[id].view.Load(); v != nil {
				m.hybrids = append(m.hybrids, hybridState{view: v, slot: id, row: int32(i)})
			}
		}
	}
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
	if blocks <= 0 || v.count == 0 || v.unclear {
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
	perKind := 0
	if words != nil {
		perKind = int(words[0]>>16&0xFFFF) / 64
	}
	for from := 0; from < blocks; from += 64 {
		n := min(64, blocks-from)
		valid := ^uint64(0) >> (64 - n)
		for i := range v.count {
			k := &v.kinds[i]
			if k.ratio > 1 {
				var held []uint64
				if from/64 < perKind {
					held = words[1+int(k.first)*perKind+from/64*int(k.ratio):][:k.ratio]
				}
				valid &= k.acceptsSmall(held, n, at+from, &st.runs[i])
				continue
			}
			held := uint64(0) // the next 64 blocks
			if from/64 < perKind {
				held = words[1+int(k.first)*perKind+from/64]
			}
			if k.need == kvevent.NeedLast {
				valid &= held
			} else {
				valid &= k.accepts(held, n, at+from, &st.runs[i])
			}
		}
		if v.align > 1 {
			for left := valid; left != 0; left &= left - 1 {
				if b := bits.TrailingZeros64(left); (at+from+b+1)%int(v.align) != 0 {
					valid &^= 1 << b
				}
			}
		}
		if over := at + from + n - m.limit; over > 0 {
			valid &= ^uint64(0) >> min(64-n+over, 64)
		}
		if valid != 0 {
			top := bits.Len64(valid)
			st.last = st.best
			if rest := valid &^ (1 << (top - 1)); rest != 0 {
				st.last = int32(at + from + bits.Len64(rest))
			}
			st.best = int32(at + from + top)
		}
	}
	st.pos = int32(at + blocks)
}

// accepts returns after which of n blocks, the first of which follows at blocks of the prompt, a prefix may end for a group that
// holds those in held. run is how many the group holds in a row up to there.
func (k *kindView) accepts(held uint64, n, at int, run *int32) (valid uint64) {
	all := ^uint64(0) >> (64 - n)
	held &= all
	switch k.need {
	case kvevent.NeedAll:
		if int(*run) != at {
			*run = 0
			return 0
		}
		lead := min(bits.TrailingZeros64(^held), n)
		*run += int32(lead)
		return all & (1<<lead - 1)
	case kvevent.NeedChunk:
		for b := range n {
			if held>>b&1 != 0 {
				*run++
			} else {
				*run = 0
			}
			if int(*run) >= (at+b+1)%int(k.blocks) {
				valid |= 1 << b
			}
		}
		return valid
	}
	for b := 0; b < n; { // each run of held blocks
		skip := bits.TrailingZeros64(held >> b)
		if skip > 0 {
			*run = 0
			if b += skip; b >= n {
				break
			}
		}
		length := min(bits.TrailingZeros64(^(held >> b)), n-b)
		need := 0 // blocks of the run that must pass first
		if int(*run) != at+b {
			need = max(0, int(k.blocks-1-*run))
		}
		if need < length {
			valid |= (1<<length - 1) &^ (1<<need - 1) << b
		}
		*run += int32(length)
		b += length
	}
	return valid
}

// acceptsSmall does what accepts does for a group with ratio blocks in one of Store's.
func (k *kindView) acceptsSmall(held []uint64, n, at int, run *int32) (valid uint64) {
	for b := range n {
		last := false
		for j := range int(k.ratio) {
			pos := b*int(k.ratio) + j
			if last = pos/64 < len(held) && held[pos/64]>>(pos%64)&1 != 0; last {
				*run++
			} else {
				*run = 0
			}
		}
		end := (at + b + 1) * int(k.ratio)
		ok := last
		switch k.need {
		case kvevent.NeedAll:
			ok = int(*run) == end
		case kvevent.NeedWindow:
			ok = *run >= k.blocks || int(*run) == end
		case kvevent.NeedChunk:
			ok = int(*run) >= (at+b+1)%int(k.blocks)*int(k.ratio)
		}
		if ok {
			valid |= 1 << b
		}
	}
	return valid
}

// endHybrids replaces in the rows of slots with groups the blocks held by those that the engine would find.
func (m *Matches) endHybrids() {
	for i := range m.hybrids {
		st := &m.hybrids[i]
		row, v := &m.Slots[st.row], st.view
		if v.unclear {
			continue
		}
		held, found := int(row.Blocks), int(st.best)
		switch {
		case v.count > 0 && v.withhold && found >= held:
			found = int(st.last)
		case v.count == 0:
			if found = min(held, m.limit); v.withhold {
				found = max(0, found-1)
			}
		}
		if found < held {
			m.Reduced = append(m.Reduced, Match{st.slot, row.Blocks})
		}
		row.Blocks = uint32(found)
	}
	m.Slots = slices.DeleteFunc(m.Slots, func(r Match) bool { return r.Blocks == 0 })
	m.Longest = 0
	for _, r := range m.Slots {
		m.Longest = max(m.Longest, int(r.Blocks))
	}
	for i := range m.GPU {
		if at, ok := slices.BinarySearchFunc(m.Slots, m.GPU[i].Slot, Match.bySlot); ok {
			m.GPU[i].Blocks = min(m.GPU[i].Blocks, m.Slots[at].Blocks)
		} else {
			m.GPU[i].Blocks = 0
		}
	}
}
