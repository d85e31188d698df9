package indexer

import (
	"cmp"
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
//
// Cost: about 15 ns for each slot with groups and node, and 2 ns for each further kind.

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

// beginHybrids does what begin does, and begins the states of slots with groups. It ends the rows of those that do not hold all of the
// node's n blocks.
func (m *Matches) beginHybrids(mem *memory, nd *node, n int) {
	views, rows := *m.index.views.Load(), slices.Grow(m.Slots, int(nd.residents))[:nd.residents]
	count, longest := 0, 0
	for list := uint32(0); ; {
		residencies, pages, next := mem.residenciesOf(nd, list)
		for i, res := range residencies {
			id, held := res.slot(), min(res.leading(), n)
			if held == 0 { // it has only later blocks, or is of bits
				continue
			}
			row := &rows[count]
			*row = Match{id, uint32(held)}
			longest = max(longest, held)
			if res&offGPU != 0 && min(res.gpu().leading(), n) != held {
				m.GPU = append(m.GPU, Match{id, uint32(res.gpu().leading())})
			}
			if int(id) < len(views) {
				if v := views[id].Load(); v != nil {
					var words []uint64
					if i+1 == len(residencies) {
						words = mem.firstBits(nd, next, id)
					} else if residencies[i+1].isBits() {
						words = mem.runFrom(pages[i+1])
					}
					if held < n {
						best, last := v.longest(words, 0, min(held, m.limit), &noRuns)
						m.reduce(row, v, best, last)
					} else {
						m.hybrids = append(m.hybrids, hybridState{view: v, slot: id, row: int32(count)})
						m.hybrids[len(m.hybrids)-1].add(words, 0, n, m.limit)
					}
				}
			}
			count++
		}
		list = next
		if list == 0 {
			break
		}
	}
	m.Slots, m.Longest = rows[:count], longest
}

// firstBits returns the memory from a slot's run of bits on, if a list of residencies begins with it.
func (m *space) firstBits(nd *node, list uint32, id SlotID) []uint64 {
	if list == 0 {
		return nil
	}
	residencies, pages, _ := m.residenciesOf(nd, list)
	if len(residencies) == 0 || residencies[0].owner() != bitsOf(id) {
		return nil
	}
	return m.runFrom(pages[0])
}

// addHybrids adds to the states what a further node's runs of bits say; the rows have the node's blocks already.
func (m *Matches) addHybrids(mem *memory, nd *node, at int) {
	k := 0
	for list := uint32(0); k < len(m.hybrids); {
		residencies, pages, next := mem.residenciesOf(nd, list)
		for i, res := range residencies {
			if !res.isBits() {
				continue
			}
			for ; k < len(m.hybrids) && m.hybrids[k].slot < res.slot(); k++ {
				m.addNode(&m.hybrids[k], nil, at)
			}
			if k < len(m.hybrids) && m.hybrids[k].slot == res.slot() {
				m.addNode(&m.hybrids[k], mem.runFrom(pages[i]), at)
				k++
			}
		}
		list = next
		if list == 0 {
			break
		}
	}
	for ; k < len(m.hybrids); k++ {
		m.addNode(&m.hybrids[k], nil, at)
	}
}

func (m *Matches) addNode(st *hybridState, words []uint64, at int) {
	if held := int(m.Slots[st.row].Blocks) - at; held > 0 && (words != nil || st.view.anywhere) {
		st.add(words, at, held, m.limit)
	}
}

// add goes on along a node's blocks that the slot holds, after the first at of the prompt. words begin with its run of bits there.
func (st *hybridState) add(words []uint64, at, blocks, limit int) {
	v := st.view
	if int(st.pos) != at {
		st.runs = noRuns
	}
	best, last := v.longest(words, at, min(blocks, limit-at), &st.runs)
	switch {
	case last > 0:
		st.last, st.best = int32(last), int32(best)
	case best > 0:
		st.last, st.best = st.best, int32(best)
	}
	words = v.bitsIn(words)
	for i := range v.kinds[:v.count] {
		k := &v.kinds[i]
		st.runs[i] = k.row(words, v.words, blocks, st.runs[i], k.needed(at+blocks))
	}
	st.pos = int32(at + blocks)
}

var noRuns [maxKinds]int32

// noWords are those of blocks that are in no run of bits.
var noWords [maxKinds * maxRatio]uint64

// bitsIn returns the words of a run of bits.
func (v *groupView) bitsIn(words []uint64) []uint64 {
	if len(words) == 0 || uint32(words[0]>>32) != v.version {
		return nil
	}
	return words[1:][:uint32(words[0])>>22*uint32(v.words)]
}

// longest returns the longest prefix that ends within a node's first most blocks and that the groups accept, and if the engine withholds
// a block the longest one before; 0: there is none. The node begins after at blocks of the prompt; runs are what the groups hold in a
// row before it.
func (v *groupView) longest(words []uint64, at, most int, runs *[maxKinds]int32) (best, last int) {
	words = v.bitsIn(words)
	if words == nil && !v.anywhere {
		return 0, 0
	}
	kinds := v.kinds[:v.count]
	for w := (most - 1) >> 6; w >= 0; w-- {
		here := noWords[:]
		if at := w * int(v.words); at < len(words) {
			here = words[at:]
		}
		ends := first(most - 64*w) // after which of these blocks a prefix may end
		if v.align > 1 {
			ends &= multiples(at+64*w, int(v.align))
		}
		for i := range kinds {
			switch k := &kinds[i]; {
			case k.plain:
				ends &= here[k.first]
			case k.ratio == 1: // where a chunk ends nothing needs to be held
				ends &= here[k.first] | multiples(at+64*w, int(k.blocks))
			}
		}
	ends:
		for ends != 0 {
			length := bits.Len64(ends)
			end := 64*w + length
			for i := range kinds {
				k := &kinds[i]
				var need, row int32
				if k.plain {
					need, row = min(k.blocks, int32(at+end)), int32(bits.LeadingZeros64(^(here[k.first] << (uint(64-length) & 63))))
				} else {
					need = k.needed(at + end)
				}
				if row < need && (int(row) >= length || !k.plain) {
					row = k.row(words, v.words, end, runs[i], need)
				}
				if row < need { // nor can one end earlier in the same row
					ends &= first(length - max(1, int(row)/int(k.ratio)))
					continue ends
				}
			}
			if best > 0 {
				return best, at + end
			}
			best = at + end
			if !v.withhold {
				return best, 0
			}
			ends &^= 1 << (length - 1)
		}
	}
	return best, 0
}

// first returns n bits, 64 at most; none if n is below 0.
func first(n int) uint64 {
	if n >= 64 {
		return ^uint64(0)
	}
	return 1<<uint(max(0, n)) - 1
}

// multiples returns after which of the 64 blocks behind the first at blocks of the prompt a multiple of the given number ends.
func multiples(at, of int) (ends uint64) {
	for b := of - 1 - at%of; b < 64; b += of {
		ends |= 1 << b
	}
	return ends
}

// needed returns how many blocks in a row a group must hold at the end of a prefix of the given number of Store's blocks.
func (k *kindView) needed(blocks int) int32 {
	end := int32(blocks) * int32(k.ratio)
	if k.need == kvevent.NeedChunk {
		return end % k.blocks
	}
	return min(k.blocks, end)
}

// row returns how many blocks in a row the group holds at the end of a node's first blocks, if they are fewer than enough; before is
// how many end before the node.
func (k *kindView) row(words []uint64, stride int32, blocks int, before, enough int32) int32 {
	if (blocks-1)>>6*int(stride) >= len(words) {
		return 0
	}
	ratio := int(k.ratio)
	end := blocks * ratio
	for last := end - 1; last >= 0; last -= last&63 + 1 {
		at := last >> 6 // of the kind's words
		if ratio == 1 {
			at *= int(stride)
		} else {
			at = at/ratio*int(stride) + at%ratio
		}
		n := bits.LeadingZeros64(^(words[at+int(k.first)] << (63 - last&63)))
		if row := end - 1 - last + n; n <= last&63 || int32(row) >= enough {
			return int32(row)
		}
	}
	return int32(end) + before
}

// reduce replaces in the row of a slot with groups the blocks held by those that the engine would find.
func (m *Matches) reduce(row *Match, v *groupView, best, last int) {
	held := int(row.Blocks)
	switch {
	case v.count > 0 && v.withhold && best >= held:
		best = last
	case v.count == 0 && v.withhold:
		best = max(0, min(held, m.limit)-1)
	case v.count == 0:
		best = min(held, m.limit)
	}
	if best < held {
		m.Reduced = append(m.Reduced, Match{row.Slot, row.Blocks})
		row.Blocks = uint32(best)
	}
}

// endHybrids ends a lookup with slots that have groups.
func (m *Matches) endHybrids() {
	for i := range m.hybrids {
		st := &m.hybrids[i]
		m.reduce(&m.Slots[st.row], st.view, int(st.best), int(st.last))
	}
	rows, k, longest := m.Slots, 0, uint32(0)
	for _, r := range rows {
		rows[k], longest = r, max(longest, r.Blocks)
		if r.Blocks > 0 {
			k++
		}
	}
	m.Slots, m.Longest = rows[:k], int(longest)
	if len(m.hybrids) > 0 { // their rows ended after others'
		slices.SortFunc(m.Reduced, func(a, b Match) int { return cmp.Compare(a.Slot, b.Slot) })
	}
	for i := range m.GPU {
		if at, ok := slices.BinarySearchFunc(m.Slots, m.GPU[i].Slot, Match.bySlot); ok {
			m.GPU[i].Blocks = min(m.GPU[i].Blocks, m.Slots[at].Blocks)
		} else {
			m.GPU[i].Blocks = 0
		}
	}
}
