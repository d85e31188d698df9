package indexer

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// tree is one of the index's shards: the stems of all prompts whose first block's local hash falls to it, so that a
// prompt lies in one shard with all that it shares its front with. Everything here is guarded by lock: lookups read,
// stores and removals write for a fraction of a microsecond.
//
// A shard is a matter of chance over first blocks: a fleet in which every prompt begins with the same system prompt
// works in one shard, and its writers take turns.
type tree struct {
	lock  spinLock
	mem   *memory
	seed  uint64
	id    uint32
	runs  runs
	kids  table // (parent, place, first local hash) → run
	stems []*[stemsPerSlab]stem
	spare []uint32 // stems free for reuse
	count uint32   // stems ever used, the root counted
	epoch *atomic.Uint32
}

func (t *tree) stem(id uint32) *stem { return &t.stems[id/stemsPerSlab][id%stemsPerSlab] }
func (t *tree) kidKey(parent uint32, place int, local uint64) uint64 {
	hi, lo := bits.Mul64(local^t.seed, (uint64(parent)<<12|uint64(place))*0x9E3779B97F4A7C15|1)
	return mix(hi^lo, t.seed)
}

// keyOf is the key under which a run stands in kids.
func (t *tree) keyOf(run uint32) uint64 {
	w := t.mem.run(run, 2)
	st := t.stem(t.mem.head(run).stem)
	return t.kidKey(st.parent, int(st.parentAt), w[1])
}

func (t *tree) keysOf(runs []uint32, keys []uint64) {
	for i, run := range runs {
		keys[i] = t.keyOf(run)
	}
}

// child finds the stem that hangs at a place of a parent and begins with a local hash, and its run; 0 where there is
// none.
func (t *tree) child(parent uint32, place int, local uint64) (id, run uint32) {
	if t.kids.dir == nil {
		return 0, 0
	}
	key := t.kidKey(parent, place, local)
	seg, home, tag := t.kids.segmentOf(key), homeOf(key), tagOf(key)
	for d := uint32(0); d < segmentLines; d++ {
		l := &seg[(home+d)%segmentLines]
		lo, hi := l.match(tag)
		for ; lo|hi != 0; lo, hi = dropLow(lo, hi) {
			run = l.refs[lowSlot(lo, hi)]
			if t.mem.run(run, 2)[1] != local {
				continue
			}
			id = t.mem.head(run).stem
			if st := t.stem(id); st.parent == parent && int(st.parentAt) == place {
				return id, run
			}
		}
		if l.over == 0 {
			break
		}
	}
	return 0, 0
}

// lowSlot and dropLow walk the slots that match gave.
func lowSlot(lo, hi uint64) int {
	if lo != 0 {
		return bits.TrailingZeros64(lo) >> 3
	}
	return (8 + bits.TrailingZeros64(hi)>>3) % 12
}

func dropLow(lo, hi uint64) (uint64, uint64) {
	if lo != 0 {
		return lo & (lo - 1), hi
	}
	return 0, hi & (hi - 1)
}

// common is the length of the common front of two runs.
func common(a, b []uint64) int {
	n := min(len(a), len(b))
	a, b = a[:n], b[:n]
	if equal(a, b) {
		return n
	}
	i := 0
	for i+16 <= n && *(*[16]uint64)(a[i:]) == *(*[16]uint64)(b[i:]) {
		i += 16
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

func equal(a, b []uint64) bool {
	return len(a) == len(b) && string(bytesOf(a)) == string(bytesOf(b))
}

func bytesOf(a []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(a))), len(a)*8)
}

// newStem hangs a stem of one or more blocks at a place of a parent; 0 when there is no memory left.
func (t *tree) newStem(parent uint32, place int, locals []uint64) uint32 {
	id := t.takeStem()
	if id == 0 {
		return 0
	}
	n := units(1 + len(locals))
	run := t.runs.alloc(n)
	if run == 0 {
		t.spare = append(t.spare, id)
		return 0
	}
	copy(t.mem.run(run, 1+len(locals))[1:], locals)
	st := t.stem(id)
	*st = stem{parent: parent, parentAt: uint16(place), run: run, capacity: uint16(n)}
	t.mem.head(run).stem = id
	t.setLength(run, len(locals))
	if !t.kids.insert(t.kidKey(parent, place, locals[0]), run, t.keysOf) {
		t.runs.free(run, n)
		t.spare = append(t.spare, id)
		return 0
	}
	p := t.stem(parent)
	p.children++
	p.lastChild = max(p.lastChild, uint16(place))
	return id
}

// setLength notes a stem's length, and that it was used now.
func (t *tree) setLength(run uint32, blocks int) {
	atomic.StoreUint32(&t.mem.head(run).mark, t.epoch.Load()<<lengthBits|uint32(blocks))
}

func (t *tree) takeStem() uint32 {
	if n := len(t.spare); n > 0 {
		id := t.spare[n-1]
		t.spare = t.spare[:n-1]
		return id
	}
	if t.count == 1<<stemBits || !t.roomForStem() {
		return 0
	}
	if t.count == root {
		*t.stem(root) = stem{}
		t.count++
	}
	t.count++
	return t.count - 1
}

func (t *tree) roomForStem() bool {
	if int(t.count) < len(t.stems)*stemsPerSlab {
		return true
	}
	slab, ok := t.mem.slab()
	if ok {
		t.stems = append(t.stems, (*[stemsPerSlab]stem)(t.mem.slabWords(slab)))
	}
	return ok
}

// append adds blocks at the end of a stem and gives how many found room.
func (t *tree) append(st *stem, locals []uint64) int {
	have := t.mem.length(st.run)
	n := min(len(locals), maxStem-have)
	if n == 0 {
		return 0
	}
	if !t.widen(st, 1+have+n) {
		if n = min(n, int(st.capacity)*unitWords-1-have); n == 0 {
			return 0
		}
	}
	copy(t.mem.run(st.run, 1+have+n)[1+have:], locals[:n])
	t.setLength(st.run, have+n)
	return n
}

// widen makes room for so many words in a stem's run.
func (t *tree) widen(st *stem, words int) bool {
	want, have := units(words), int(st.capacity)
	if want <= have {
		return true
	}
	if t.runs.extend(st.run, have, want) {
		st.capacity = uint16(want)
		return true
	}
	if want > 16 { // longer runs take an eighth more than asked, so that growing stays linear
		want = min(want+want/8, units(1+maxStem))
	}
	run := t.runs.alloc(want)
	if run == 0 {
		return false
	}
	used := 1 + t.mem.length(st.run)
	copy(t.mem.run(run, used), t.mem.run(st.run, used))
	t.kids.replace(t.keyOf(st.run), st.run, run)
	t.runs.free(st.run, have)
	st.run, st.capacity = run, uint16(want)
	return true
}

// trim cuts what nobody holds and no child needs off the end of a stem, and frees the stem when nothing is left; then
// its parent's turn comes.
func (t *tree) trim(id uint32) {
	for id != root {
		st := t.stem(id)
		top, length := int(st.lastChild), t.mem.length(st.run)
		for at := uint32(0); top < length; {
			seats, heads, next := t.mem.seatsOf(st, at)
			for i, s := range seats {
				end := s.all()
				if s&seatBeyond != 0 {
					end = t.mem.lastHeld(heads[i])
				}
				top = max(top, end)
			}
			if at = next; at == 0 {
				break
			}
		}
		if top >= length {
			return
		}
		if top > 0 {
			t.setLength(st.run, top)
			if keep := units(1 + top); keep*2 <= int(st.capacity) {
				t.runs.free(st.run+uint32(keep), int(st.capacity)-keep)
				st.capacity = uint16(keep)
			}
			return
		}
		parent := st.parent
		t.kids.remove(t.keyOf(st.run), st.run)
		t.runs.free(st.run, int(st.capacity))
		t.runs.freeSeats(st)
		t.spare = append(t.spare, id)
		p := t.stem(parent)
		if p.children--; p.children == 0 {
			p.lastChild = 0
		}
		id = parent
	}
}
