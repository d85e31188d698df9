package forecast

import (
	"math/bits"
	"slices"
)

// stack is an LRU stack of the sampled blocks of one slot, not bounded by the slot's cache: the depth of a block is how many others were
// used after it, so a cache of more blocks than that still holds it (R. Mattson and others, Evaluation techniques for storage
// hierarchies, 1970). Depths come from a Fenwick tree over the positions of uses (F. Olken, 1981). A use and a depth cost the
// logarithm of the blocks; each block costs stackBytes at most. Not safe for concurrent use.
type stack struct {
	at    map[uint64]int32 // block → position
	keys  []uint64         // by position, least recently used first; 0: none any more
	when  []tenths         // by position, of the last use
	tree  []int32          // Fenwick: how many blocks are at positions
	shift uint8            // of the sample that it has
}

// tenths is a time in tenths of a second since a forecast began; it lasts 13 years.
type tenths uint32

// stackBytes is the memory of a block: 26 to 42 bytes of the map, 16 for each of up to two positions.
const stackBytes = 72

func (s *stack) len() int { return len(s.at) }

// depth returns how many blocks were used after this one; false: it is not in the stack.
func (s *stack) depth(key uint64) (int, bool) {
	at, ok := s.at[key]
	if !ok {
		return 0, false
	}
	return len(s.at) - s.below(int(at)+1), true
}

// since returns about how many blocks were used after a time: fresh ones, which keep their place, are out of order.
func (s *stack) since(t tenths) int {
	at, _ := slices.BinarySearchFunc(s.when, t, func(used, t tenths) int {
		if used <= t {
			return -1
		}
		return 1
	})
	return len(s.at) - s.below(at)
}

// below returns how many blocks are at the first n positions.
func (s *stack) below(n int) (sum int) {
	for ; n > 0; n &= n - 1 {
		sum += int(s.tree[n-1])
	}
	return sum
}

func (s *stack) add(at, n int32) {
	for i := int(at) + 1; i <= len(s.tree); i += i & -i {
		s.tree[i-1] += n
	}
}

// use makes a block the most recently used one. It stays where it is if it is among the last fresh ones.
func (s *stack) use(key uint64, fresh int, now tenths) {
	if at, ok := s.at[key]; ok {
		if int(at) >= len(s.keys)-fresh {
			s.when[at] = now
			return
		}
		s.drop(key)
	}
	if len(s.keys) == len(s.tree) {
		s.compact(0, s.shift, nil)
	}
	at := int32(len(s.keys))
	s.keys, s.when = append(s.keys, key), append(s.when, now)
	s.at[key] = at
	s.add(at, 1)
}

// drop removes a block.
func (s *stack) drop(key uint64) {
	if at, ok := s.at[key]; ok {
		s.keys[at] = 0
		s.add(at, -1)
		delete(s.at, key)
	}
}

// compact moves the blocks together, without the oldest ones and those that a coarser sample leaves out, and calls gone with each of these.
func (s *stack) compact(without int, shift uint8, gone func(key uint64)) {
	old := s.at
	shrinks := without > 0 || shift > s.shift
	if shrinks || old == nil { // a map does not give memory back
		s.at, s.shift = make(map[uint64]int32, max(0, len(old)-without)>>(shift-s.shift)), shift
	}
	kept := s.keys[:0]
	for at, key := range s.keys {
		if key == 0 {
			continue
		}
		without--
		if shrinks && (without >= 0 || !sampled(key, shift)) {
			gone(key)
			continue
		}
		s.at[key] = int32(len(kept))
		s.when[len(kept)] = s.when[at]
		kept = append(kept, key)
	}
	room := max(64, 2*len(kept))
	s.when = append(make([]tenths, 0, room), s.when[:len(kept)]...)
	s.keys, s.tree = append(make([]uint64, 0, room), kept...), make([]int32, room)
	for i := range s.tree {
		if i < len(s.keys) {
			s.tree[i]++
		}
		if up := i | (i + 1); up < room {
			s.tree[up] += s.tree[i]
		}
	}
}

// sampled reports whether a block is one of those that a sample of 1 of 2^shift has. Block hashes are keyed by the deployment's secret
// (mmhash/block), so that no client chooses what is sampled.
func sampled(key uint64, shift uint8) bool {
	return bits.TrailingZeros64(key) >= int(shift) && key != 0
}
