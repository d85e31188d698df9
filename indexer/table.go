package indexer

import (
	"encoding/binary"
	"math/bits"
	"unsafe"

	"github.com/sightline-router/sightline/internal/fair"
)

// table is a hash table of 32-bit references that does not store keys. A slot's table maps engine hash → page entry, a shard's
// maps (parent, offset, local hash) → run; the key is stored at the reference's target anyway. An entry costs 4 bytes and an
// 8-bit tag, which rejects 255 of 256 wrong candidates without reading their keys. Twelve entries share a cache line: a probe
// costs one cache miss, and one more to confirm.
//
// It grows by extendible hashing: lines are in segments of 4 KiB, a directory of pointers selects the segment, and a full segment
// splits in two. So there is no rehash of the whole, no pause above some 10 µs and no second copy. Plain extendible hashing fills
// all segments at the same time and then splits them all; here the directory's ranges are skewed (see spread), so that segments
// fill at different times and the table is about 65 % full at any size: 8 to 9 bytes an entry.
//
// Bad at: shrinking (segments are returned only when the table is emptied) and splitting, which must read the keys of some 600
// references.
type table struct {
	mem   *memory
	payer fair.Client // whose store takes memory
	dir   []*segment  // 1 << depth pointers; a segment of depth d occurs 1 << (depth-d) times
	depth uint8
}

type line struct {
	tags     [12]uint8 // 0 = free
	overflow uint16    // entries that probed this line while it was full and are in a later one
	depth    uint16    // in a segment's first line: the segment's depth
	refs     [12]uint32
}

const (
	segmentLines = 64
	segmentBytes = int(unsafe.Sizeof(segment{}))
	maxDistance  = 4  // an entry is fewer lines than this from home, unless its segment is less than half full
	maxDepth     = 28 // of the 30 bits that spread returns
)

type segment [segmentLines]line

func (s *segment) depth() uint8 { return uint8(s[0].depth) }

// line returns &s[i % segmentLines]. For that expression the compiler checks for a nil s by reading the segment's first byte: an
// unnecessary cache miss for every key.
func (s *segment) line(i uint32) *line {
	return (*line)(unsafe.Add(unsafe.Pointer(s), i%segmentLines*uint32(unsafe.Sizeof(line{}))))
}

// spread maps the top bits of a hash to a 30-bit number whose density falls from 4/3 at one end to 2/3 at the other: a factor of
// two, so that the segments' splits are spread evenly over each doubling of the table.
func spread(h uint64) uint32 {
	u := h >> 34
	return uint32((u * (1<<32 - u) / 3) >> 30)
}

func tagOf(h uint64) uint8 {
	return max(uint8(h), 1)
}

func homeOf(h uint64) uint32 { return uint32(h>>8) % segmentLines }

func (t *table) segmentOf(h uint64) *segment { return t.dir[spread(h)>>(30-t.depth)] }

const bytesOfOne, bytesOfLow = 0x0101010101010101, 0x7F7F7F7F7F7F7F7F

// same sets the top bit of exactly those bytes of x that equal the byte repeated in pattern. (The shorter form with one
// subtraction can also mark the free entry above a match, whose reference is stale.)
func same(x, pattern uint64) uint64 {
	x ^= pattern
	return ^(x&bytesOfLow + bytesOfLow | x | bytesOfLow)
}

// match marks the entries that have a tag: entry k by bit 8k+7 of lo (k < 8) or bit 8(k-8)+7 of hi.
func (l *line) match(tag uint8) (lo, hi uint64) {
	p := uint64(tag) * bytesOfOne
	return same(binary.LittleEndian.Uint64(l.tags[:8]), p),
		same(uint64(binary.LittleEndian.Uint32(l.tags[8:])), p) & 0x80808080
}

// freeEntry returns a free entry of the line, -1 if there is none.
func (l *line) freeEntry() int {
	lo, hi := l.match(0)
	if lo != 0 {
		return bits.TrailingZeros64(lo) >> 3
	}
	if hi != 0 {
		return 8 + bits.TrailingZeros64(hi)>>3
	}
	return -1
}

// lineOf returns the line where the search for a hash begins, for prefetching.
func (t *table) lineOf(h uint64) unsafe.Pointer {
	return unsafe.Pointer(t.segmentOf(h).line(homeOf(h)))
}

// insert adds a reference that the caller knows is absent; it returns false if there is no memory left. For splits, keysOf
// computes the hashes of many references at once, so that its cache misses overlap.
func (t *table) insert(h uint64, ref uint32, keysOf func(refs []uint32, keys []uint64)) bool {
	if t.dir == nil {
		seg := t.mem.segment(t.payer)
		if seg == nil {
			return false
		}
		t.dir, t.depth = []*segment{seg}, 0
	}
	for {
		seg := t.segmentOf(h)
		reach := uint32(maxDistance)
		if seg.put(h, ref, reach) {
			return true
		}
		if seg.count() > segmentLines*12/2 && seg.depth() < maxDepth && t.split(h, keysOf) {
			continue
		}
		return seg.put(h, ref, segmentLines)
	}
}

// put adds a reference to one of reach lines from its home on; it returns false if they are full.
func (s *segment) put(h uint64, ref uint32, reach uint32) bool {
	home := homeOf(h)
	for d := uint32(0); d < reach; d++ {
		l := s.line(home + d)
		k := l.freeEntry()
		if k < 0 {
			continue
		}
		l.tags[k], l.refs[k] = tagOf(h), ref
		for ; d > 0; d-- {
			s.line(home+d-1).overflow++
		}
		return true
	}
	return false
}

// count returns the number of the segment's entries.
func (s *segment) count() (n int) {
	for i := range s {
		for _, t := range s[i].tags {
			if t != 0 {
				n++
			}
		}
	}
	return n
}

// remove removes a reference by its value, without reading its target.
func (t *table) remove(h uint64, ref uint32) bool {
	if t.dir == nil {
		return false
	}
	seg, home, tag := t.segmentOf(h), homeOf(h), tagOf(h)
	for d := uint32(0); d < segmentLines; d++ {
		l := seg.line(home + d)
		if k := l.entry(tag, ref); k >= 0 {
			l.tags[k] = 0
			for ; d > 0; d-- {
				seg.line(home+d-1).overflow--
			}
			return true
		}
		if l.overflow == 0 {
			return false
		}
	}
	return false
}

// replace changes a reference to another with the same hash.
func (t *table) replace(h uint64, old, ref uint32) {
	seg, home, tag := t.segmentOf(h), homeOf(h), tagOf(h)
	for d := uint32(0); d < segmentLines; d++ {
		l := seg.line(home + d)
		if k := l.entry(tag, old); k >= 0 {
			l.refs[k] = ref
			return
		}
	}
}

// entry returns the entry that has a tag and a reference, -1 if there is none.
func (l *line) entry(tag uint8, ref uint32) int {
	lo, hi := l.match(tag)
	for ; lo != 0; lo &= lo - 1 {
		if k := bits.TrailingZeros64(lo) >> 3; l.refs[k] == ref {
			return k
		}
	}
	for ; hi != 0; hi &= hi - 1 {
		if k := 8 + bits.TrailingZeros64(hi)>>3; l.refs[k] == ref {
			return k
		}
	}
	return -1
}

// scratch is the working space of a split, reused.
type scratch struct {
	refs    [segmentLines * 12]uint32
	keys    [segmentLines * 12]uint64
	entries [segmentLines * 12]uint16 // line × 16 + entry
	moves   [segmentLines * 12]uint16
}

// split divides the segment of h in two, and doubles the directory if necessary; it returns false if there is no memory left.
func (t *table) split(h uint64, keysOf func(refs []uint32, keys []uint64)) bool {
	seg, fresh := t.segmentOf(h), t.mem.segment(t.payer)
	if fresh == nil {
		return false
	}
	d := seg.depth()
	if d == t.depth {
		dir := make([]*segment, 2*len(t.dir))
		for i, s := range t.dir {
			dir[2*i], dir[2*i+1] = s, s
		}
		t.dir, t.depth = dir, t.depth+1
	}
	at := spread(h) >> (30 - t.depth) &^ (1<<(t.depth-d) - 1)
	half := uint32(1) << (t.depth - d - 1)
	for i := at + half; i < at+2*half; i++ {
		t.dir[i] = fresh
	}

	work, ok := t.mem.scratch.Get().(*scratch)
	if !ok {
		work = new(scratch)
	}
	defer t.mem.scratch.Put(work)
	n := 0
	for i := range seg {
		for k, tag := range seg[i].tags {
			work.refs[n], work.entries[n] = seg[i].refs[k], uint16(i*16+k)
			n += boolToInt(tag != 0)
		}
	}
	keysOf(work.refs[:n], work.keys[:n])
	m := 0 // half of the entries move: a branch would be mispredicted every other time
	for i, key := range work.keys[:n] {
		work.moves[m] = uint16(i)
		m += int(spread(key) >> (29 - d) & 1)
	}
	seg[0].depth, fresh[0].depth = uint16(d+1), uint16(d+1)
	var filled [segmentLines]uint8
	for _, i := range work.moves[:m] {
		at, slot := uint32(work.entries[i]>>4), work.entries[i]&15
		home := homeOf(work.keys[i])
		to := home
		for ; filled[to] == 12; to = (to + 1) % segmentLines {
			fresh[to].overflow++
		}
		fresh[to].tags[filled[to]], fresh[to].refs[filled[to]] = seg[at].tags[slot], work.refs[i]
		filled[to]++
		for seg[at].tags[slot] = 0; home != at; home = (home + 1) % segmentLines {
			seg[home].overflow--
		}
	}
	return true
}

func boolToInt(yes bool) (n int) {
	if yes {
		n = 1
	}
	return n
}

// each calls f once for every segment.
func (t *table) each(f func(*segment)) {
	for i := 0; i < len(t.dir); {
		seg := t.dir[i]
		i += 1 << (t.depth - seg.depth())
		f(seg)
	}
}

// eachRef calls f once for every reference. f must not add any.
func (t *table) eachRef(f func(ref uint32)) {
	t.each(func(seg *segment) {
		for i := range seg {
			for k, tag := range seg[i].tags {
				if tag != 0 {
					f(seg[i].refs[k])
				}
			}
		}
	})
}

// reset empties the table and frees its memory.
func (t *table) reset() {
	t.each(t.mem.freeSegment)
	t.dir, t.depth = nil, 0
}
