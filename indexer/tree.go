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
	kids  table // (parent, place, first local hash) → stem
	stems []*[stemsPerSlab]stem
	stubs []*[stubsPerSlab]stub
	spare []uint32 // stems free for reuse
	count uint32   // stems ever used, the root counted
	epoch *atomic.Uint32
}

func (t *tree) stem(id uint32) *stem { return &t.stems[id/stemsPerSlab][id%stemsPerSlab] }
func (t *tree) stub(id uint32) *stub { return &t.stubs[id/stubsPerSlab][id%stubsPerSlab] }

// hashes is the local hashes of a stem.
func (t *tree) hashes(id uint32) []uint64 {
	return t.mem.run(t.stub(id).run, int(t.stem(id).length))
}

func (t *tree) kidKey(parent uint32, place int, local uint64) uint64 {
	hi, lo := bits.Mul64(local^t.seed, (uint64(parent)<<12|uint64(place))*0x9E3779B97F4A7C15|1)
	return mix(hi^lo, t.seed)
}

// keyOfStem is the key under which a stem stands in kids.
func (t *tree) keyOfStem(id uint32) uint64 {
	st := t.stem(id)
	return t.kidKey(st.parent, int(st.parentAt), t.mem.run(t.stub(id).run, 1)[0])
}

// child finds the stem that hangs at a place of a parent and begins with a local hash; 0 where there is none.
func (t *tree) child(parent uint32, place int, local uint64) uint32 {
	if t.kids.dir == nil {
		return 0
	}
	key := t.kidKey(parent, place, local)
	seg, home, tag := t.kids.segmentOf(key), homeOf(key), tagOf(key)
	for d := uint32(0); d < segmentLines; d++ {
		l := &seg[(home+d)%segmentLines]
		lo, hi := l.match(tag)
		for ; lo|hi != 0; lo, hi = dropLow(lo, hi) {
			id := l.refs[lowSlot(lo, hi)]
			if t.mem.run(t.stub(id).run, 1)[0] != local {
				continue
			}
			if st := t.stem(id); st.parent == parent && int(st.parentAt) == place {
				return id
			}
		}
		if l.over == 0 {
			return 0
		}
	}
	return 0
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
	n := units(len(locals))
	run := t.runs.alloc(n)
	if run == 0 {
		t.spare = append(t.spare, id)
		return 0
	}
	copy(t.mem.run(run, len(locals)), locals)
	st := t.stem(id)
	*st = stem{parent: parent, parentAt: uint16(place), length: uint16(len(locals)), capacity: uint16(n)}
	sb := t.stub(id)
	sb.run = run
	atomic.StoreUint32(&sb.used, t.epoch.Load())
	if !t.kids.insert(t.kidKey(parent, place, locals[0]), id, t.keyOfStem) {
		t.runs.free(run, n)
		t.spare = append(t.spare, id)
		return 0
	}
	p := t.stem(parent)
	p.children++
	p.lastChild = max(p.lastChild, uint16(place))
	return id
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
		if !t.roomForStem() {
			return 0
		}
	}
	t.count++
	return t.count - 1
}

func (t *tree) roomForStem() bool {
	if int(t.count) == len(t.stems)*stemsPerSlab {
		slab, ok := t.mem.slab()
		if !ok {
			return false
		}
		t.stems = append(t.stems, (*[stemsPerSlab]stem)(t.mem.slabWords(slab)))
	}
	if int(t.count) == len(t.stubs)*stubsPerSlab {
		slab, ok := t.mem.slab()
		if !ok {
			return false
		}
		t.stubs = append(t.stubs, (*[stubsPerSlab]stub)(t.mem.slabWords(slab)))
	}
	return true
}

// append adds blocks at the end of a stem and gives how many found room.
func (t *tree) append(id uint32, locals []uint64) int {
	st := t.stem(id)
	have := int(st.length)
	n := min(len(locals), maxStem-have)
	if n == 0 {
		return 0
	}
	if !t.widen(id, st, have+n) {
		if n = min(n, int(st.capacity)*unitWords-have); n == 0 {
			return 0
		}
	}
	copy(t.mem.run(t.stub(id).run, have+n)[have:], locals[:n])
	st.length += uint16(n)
	return n
}

func (t *tree) widen(id uint32, st *stem, blocks int) bool {
	want, have := units(blocks), int(st.capacity)
	if want <= have {
		return true
	}
	sb := t.stub(id)
	if t.runs.extend(sb.run, have, want) {
		st.capacity = uint16(want)
		return true
	}
	if want > 8 { // longer runs take an eighth more than asked, so that growing stays linear
		want = min(want+want/8, maxStem/unitWords)
	}
	run := t.runs.alloc(want)
	if run == 0 {
		return false
	}
	copy(t.mem.run(run, int(st.length)), t.mem.run(sb.run, int(st.length)))
	t.runs.free(sb.run, have)
	sb.run, st.capacity = run, uint16(want)
	return true
}

// trim cuts what nobody holds and no child needs off the end of a stem, and frees the stem when nothing is left; then
// its parent's turn comes.
func (t *tree) trim(id uint32) {
	for id != root {
		st := t.stem(id)
		top := int(st.lastChild)
		for at := uint32(0); top < int(st.length); {
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
		if top >= int(st.length) {
			return
		}
		if top > 0 {
			st.length = uint16(top)
			if keep := units(top); keep*2 <= int(st.capacity) {
				t.runs.free(t.stub(id).run+uint32(keep), int(st.capacity)-keep)
				st.capacity = uint16(keep)
			}
			return
		}
		parent := st.parent
		t.kids.remove(t.keyOfStem(id), id)
		t.runs.free(t.stub(id).run, int(st.capacity))
		t.runs.freeSeats(st)
		t.spare = append(t.spare, id)
		p := t.stem(parent)
		if p.children--; p.children == 0 {
			p.lastChild = 0
		}
		id = parent
	}
}
