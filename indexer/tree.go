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
	kids  table                     // (parent, place, first local hash) → run
	root  stem                      // holds no blocks
	runOf []*[numbersPerSlab]uint32 // where each stem lies, by its number
	spare []uint32                  // numbers free for reuse
	count uint32                    // numbers ever used, the root's counted
	epoch *atomic.Uint32
}

// at is the run of a stem; it changes when the stem grows.
func (t *tree) at(id uint32) *uint32 { return &t.runOf[id/numbersPerSlab][id%numbersPerSlab] }

func (t *tree) stem(id uint32) *stem {
	if id == root {
		return &t.root
	}
	return t.mem.record(*t.at(id))
}

func (t *tree) kidKey(parent uint32, place int, local uint64) uint64 {
	return mix(local^(uint64(parent)<<lengthBits|uint64(place))*0x9E3779B97F4A7C15, t.seed)
}

// keyOf is the key under which a run stands in kids.
func (t *tree) keyOf(run uint32) uint64 {
	st := t.mem.record(run)
	return t.kidKey(st.parent, int(st.parentAt), t.mem.hashes(run, 1)[0])
}

func (t *tree) keysOf(runs []uint32, keys []uint64) {
	for i, run := range runs {
		keys[i] = t.keyOf(run)
	}
}

// child finds the run of the stem that hangs at a place of a parent and begins with the first of the local hashes; 0 where
// there is none.
func (t *tree) child(parent uint32, place int, locals []uint64) uint32 {
	if t.kids.dir == nil {
		return 0
	}
	local := locals[0]
	key := t.kidKey(parent, place, local)
	seg, home, tag := t.kids.segmentOf(key), homeOf(key), tagOf(key)
	for d := uint32(0); d < segmentLines; d++ {
		l := seg.line(home + d)
		lo, hi := l.match(tag)
		for ; lo|hi != 0; lo, hi = dropLow(lo, hi) {
			run := l.refs[lowSlot(lo, hi)]
			prefetch(unsafe.Pointer(t.mem.record(run)), lines(locals))
			if st := t.mem.record(run); t.mem.hashes(run, 1)[0] == local && st.parent == parent && int(st.parentAt) == place {
				return run
			}
		}
		if l.over == 0 {
			break
		}
	}
	return 0
}

// fetch brings the stem that child will most likely find on its way into the cache.
func (t *tree) fetch(parent uint32, place int, locals []uint64) {
	key := t.kidKey(parent, place, locals[0])
	l := t.kids.segmentOf(key).line(homeOf(key))
	if lo, hi := l.match(tagOf(key)); lo|hi != 0 {
		prefetch(unsafe.Pointer(t.mem.record(l.refs[lowSlot(lo, hi)])), lines(locals))
	}
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

// newStem hangs a stem of one or more blocks at a place of a parent; it gives the stem's number, root when there is no
// memory left.
func (t *tree) newStem(parent uint32, place int, locals []uint64) uint32 {
	id := t.takeNumber()
	if id == root {
		return root
	}
	n := units(recordWords + len(locals))
	run := t.runs.alloc(n)
	if run == 0 {
		t.spare = append(t.spare, id)
		return root
	}
	st := t.mem.record(run)
	*st = stem{id: id, parent: parent, parentAt: uint16(place)}
	st.set(len(locals), n, t.epoch.Load())
	copy(t.mem.hashes(run, len(locals)), locals)
	if !t.kids.insert(t.kidKey(parent, place, locals[0]), run, t.keysOf) {
		t.runs.free(run, n)
		t.spare = append(t.spare, id)
		return root
	}
	*t.at(id) = run
	p := t.stem(parent)
	p.children++
	p.lastChild = max(p.lastChild, uint16(place))
	return id
}

func (t *tree) takeNumber() uint32 {
	if n := len(t.spare); n > 0 {
		id := t.spare[n-1]
		t.spare = t.spare[:n-1]
		return id
	}
	t.count = max(t.count, root+1)
	if t.count == 1<<stemBits {
		return root
	}
	if int(t.count) >= len(t.runOf)*numbersPerSlab {
		slab, ok := t.mem.slab()
		if !ok {
			return root
		}
		t.runOf = append(t.runOf, (*[numbersPerSlab]uint32)(t.mem.slabWords(slab)))
	}
	t.count++
	return t.count - 1
}

// append adds blocks at the end of a stem and gives how many found room. The stem may move.
func (t *tree) append(id uint32, locals []uint64) int {
	have := t.stem(id).length()
	n := min(len(locals), maxStem-have)
	if n == 0 {
		return 0
	}
	if !t.widen(id, recordWords+have+n) {
		if n = min(n, t.stem(id).capacity()*unitWords-recordWords-have); n == 0 {
			return 0
		}
	}
	run := *t.at(id)
	copy(t.mem.hashes(run, have+n)[have:], locals[:n])
	st := t.mem.record(run)
	st.set(have+n, st.capacity(), t.epoch.Load())
	return n
}

// widen makes room for so many words in a stem's run, and moves it where it must.
func (t *tree) widen(id uint32, words int) bool {
	run := *t.at(id)
	st := t.mem.record(run)
	want, have := units(words), st.capacity()
	if want <= have {
		return true
	}
	if t.runs.extend(run, have, want) {
		st.set(st.length(), want, st.epoch())
		return true
	}
	if want > 16 { // longer runs take an eighth more than asked, so that growing stays linear
		want = min(want+want/8, units(recordWords+maxStem))
	}
	to := t.runs.alloc(want)
	if to == 0 {
		return false
	}
	used := recordWords + st.length()
	copy(t.mem.run(to, used), t.mem.run(run, used))
	t.kids.replace(t.keyOf(run), run, to)
	t.runs.free(run, have)
	*t.at(id) = to
	st = t.mem.record(to)
	st.set(st.length(), want, st.epoch())
	return true
}

// trim cuts what nobody holds and no child needs off the end of a stem, and frees the stem when nothing is left; then
// its parent's turn comes.
func (t *tree) trim(id uint32) {
	for id != root {
		run := *t.at(id)
		st := t.mem.record(run)
		top, length := int(st.lastChild), st.length()
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
		capacity := st.capacity()
		if top > 0 {
			if keep := units(recordWords + top); keep*2 <= capacity {
				t.runs.free(run+uint32(keep), capacity-keep)
				capacity = keep
			}
			st.set(top, capacity, st.epoch())
			return
		}
		parent := st.parent
		t.kids.remove(t.keyOf(run), run)
		t.runs.freeSeats(st)
		t.runs.free(run, capacity)
		t.spare = append(t.spare, id)
		p := t.stem(parent)
		if p.children--; p.children == 0 {
			p.lastChild = 0
		}
		id = parent
	}
}
