package indexer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/zeebo/xxh3"
)

// Block is one block of a listing.
type Block struct {
	Local  uint64
	Handle uint64
	Tiers  uint8 // a bit for each tier that holds it; 0: not held, listed because held blocks stand behind it
	Parent int   // the block before it, by its number in the listing; -1 at the front of a prompt
}

// Dump lists a holder's blocks, parents first, until f says no. Content under two handles is listed twice. The holder
// takes no events meanwhile.
func (x *Index) Dump(id Holder, f func(Block) bool) error {
	h, err := x.lockHolder(id)
	if err != nil {
		return err
	}
	defer h.mu.Unlock()
	number := 0
	ends := map[*branch][]int{} // of each branch, the number of the block at each place
	for _, b := range h.branches() {
		before, at := -1, make([]int, b.need)
		if b.parent != nil {
			before = ends[b.parent][b.at-1]
		}
		names := b.names
		for place, local := range b.locals {
			parent := before
			before, at[place] = number, number
			for held := false; ; held = true {
				blk := Block{Local: local, Parent: parent}
				if len(names) > 0 && names[0].place == place {
					blk.Handle, blk.Tiers = names[0].handle, names[0].tiers
					names = names[1:]
				} else if held {
					break
				}
				number++
				if !f(blk) {
					return nil
				}
				if blk.Tiers == 0 {
					break
				}
			}
		}
		ends[b] = at
	}
	return nil
}

// branch is what a holder has of one stem, read out; and what its other branches need of it.
type branch struct {
	id     uint32 // full number
	parent *branch
	at     int // place in the parent
	need   int // blocks listed
	head   uint32
	locals []uint64
	names  []name
	order  int
}

// name is a held block: its place in the stem, its handle and its tiers.
type name struct {
	place  int
	handle uint64
	tiers  uint8
}

// branches reads out all that the holder has, parents before children. Only the holder's own calls could change it;
// the shards are read-locked for one stem at a time.
func (h *holder) branches() (list []*branch) {
	mem := h.x.mem
	known := map[uint32]*branch{}
	var get func(uint32) *branch
	get = func(id uint32) *branch {
		if b := known[id]; b != nil {
			return b
		}
		t := h.x.treeOf(id)
		b := &branch{id: id, head: noSheet}
		known[id] = b
		t.lock.RLock()
		st := t.stem(id & (1<<stemBits - 1))
		parent, at := st.parent, int(st.parentAt)
		if _, head := mem.seatOf(st, h.id); head != nil {
			b.head = *head
			b.need = mem.lastHeld(b.head)
		}
		t.lock.RUnlock()
		if parent != root {
			b.parent, b.at = get(t.id<<stemBits|parent), at
			b.parent.need = max(b.parent.need, at)
		}
		list = append(list, b)
		return b
	}
	h.table.each(func(seg *segment) {
		for i := range seg {
			for k, tag := range seg[i].tags {
				if tag != 0 {
					get(mem.sheet(seg[i].refs[k] / sheetBlocks).stem)
				}
			}
		}
	})
	for i, b := range list {
		b.order = i
		t := h.x.treeOf(b.id)
		t.lock.RLock()
		b.locals = append(b.locals, mem.hashes(*t.at(b.id & (1<<stemBits - 1)), b.need)...)
		t.lock.RUnlock()
		b.readNames(mem)
	}
	return list
}

// readNames lists the sheets' blocks in the order of their places.
func (b *branch) readNames(mem *memory) {
	for id := b.head; id != noSheet; {
		_, next := mem.stackAt(id)
		base := int(mem.sheet(id).base)
		for k := range sheetBlocks {
			for at := id; at != next; at = mem.sheet(at).next {
				s := mem.sheet(at)
				tiers := uint8(0)
				for t := range s.held {
					tiers |= uint8(s.held[t]>>k&1) << t
				}
				if tiers != 0 {
					b.names = append(b.names, name{base + k, s.handles[k], tiers})
				}
			}
		}
		id = next
	}
}

// A snapshot, little-endian, uvarints unless said otherwise:
//
//	"SLKV", version (1 byte), flags (1 byte: 1 partial)
//	branches; each: parent branch + 1 (0: none), place there, n, n × local hash (8 bytes),
//	    rows; each: blocks since the last row's first place, n, tiers (1 byte), n × handle (8 bytes)
//	further copies; each: handle (8 bytes), tier (1 byte), copies (1 byte)
//	XXH3-64 of all before (8 bytes)
//
// That is 16 bytes a block and little more.
const (
	snapshotMagic   = "SLKV"
	snapshotVersion = 1
	snapshotPartial = 1
)

// ErrSnapshot is returned for a snapshot that is damaged, cut short or of a version not known here.
var ErrSnapshot = errors.New("not a snapshot that can be read")

// AppendSnapshot appends a holder's blocks, with all that is needed to load them into another index: 16 to 17 bytes a
// block. The holder takes no events meanwhile.
func (x *Index) AppendSnapshot(dst []byte, id Holder) ([]byte, error) {
	h, err := x.lockHolder(id)
	if err != nil {
		return dst, err
	}
	defer h.mu.Unlock()
	start := len(dst)
	dst = append(dst, snapshotMagic...)
	dst = append(dst, snapshotVersion, 0)
	if h.partial.Load() {
		dst[len(dst)-1] = snapshotPartial
	}
	list := h.branches()
	dst = binary.AppendUvarint(dst, uint64(len(list)))
	for _, b := range list {
		parent := 0
		if b.parent != nil {
			parent = b.parent.order + 1
		}
		dst = binary.AppendUvarint(dst, uint64(parent))
		dst = binary.AppendUvarint(dst, uint64(b.at))
		dst = appendWords(dst, b.locals)
		dst = b.appendRows(dst)
	}
	dst = binary.AppendUvarint(dst, uint64(len(h.copies)))
	for c, n := range h.copies {
		dst = binary.LittleEndian.AppendUint64(dst, c.handle)
		dst = append(dst, byte(c.tier), n)
	}
	return binary.LittleEndian.AppendUint64(dst, xxh3.Hash(dst[start:])), nil
}

func appendWords(dst []byte, words []uint64) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(words)))
	for _, w := range words {
		dst = binary.LittleEndian.AppendUint64(dst, w)
	}
	return dst
}

// appendRows writes the names in rows of neighbours with equal tiers.
func (b *branch) appendRows(dst []byte) []byte {
	var rows [][]name
	for i, n := range b.names {
		if last := len(rows) - 1; i > 0 && n.place == b.names[i-1].place+1 && n.tiers == b.names[i-1].tiers {
			rows[last] = rows[last][:len(rows[last])+1]
		} else {
			rows = append(rows, b.names[i:i+1])
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(rows)))
	place := 0
	for _, r := range rows {
		dst = binary.AppendUvarint(dst, uint64(r[0].place-place))
		place = r[0].place
		dst = binary.AppendUvarint(dst, uint64(len(r)))
		dst = append(dst, r[0].tiers)
		for _, n := range r {
			dst = binary.LittleEndian.AppendUint64(dst, n.handle)
		}
	}
	return dst
}

// Load replaces what a holder has by a snapshot's blocks. On an error the holder is left empty.
func (x *Index) Load(id Holder, snapshot []byte) error {
	if err := x.Clear(id); err != nil {
		return err
	}
	l := loader{x: x, id: id}
	err := l.load(snapshot)
	if err != nil {
		x.Clear(id)
		err = fmt.Errorf("snapshot for holder %d: %w: %w", id, ErrSnapshot, err)
	}
	return err
}

// loader feeds a snapshot back through Store. Blocks that are only passed through are stored under handles made up for
// the time of loading, and removed at the end.
type loader struct {
	x     *Index
	id    Holder
	in    []byte
	bad   error
	ends  [][]uint64 // of each branch, a handle for each place
	made  []uint64
	salt  uint64
	count uint64
}

func (l *loader) load(snapshot []byte) error {
	const frame = len(snapshotMagic) + 2 + 8
	if len(snapshot) < frame || string(snapshot[:4]) != snapshotMagic {
		return fmt.Errorf("%d bytes that do not begin with %q", len(snapshot), snapshotMagic)
	}
	if v := snapshot[4]; v != snapshotVersion {
		return fmt.Errorf("version %d (want %d)", v, snapshotVersion)
	}
	body := snapshot[:len(snapshot)-8]
	if got, want := xxh3.Hash(body), binary.LittleEndian.Uint64(snapshot[len(body):]); got != want {
		return fmt.Errorf("checksum %#x, contents have %#x", want, got)
	}
	l.in, l.salt = body[frame-8:], rand.Uint64()
	for n := l.uvarint(); n > 0 && l.bad == nil; n-- {
		l.branch()
	}
	if l.bad == nil {
		l.copies()
	}
	if l.bad == nil && len(l.in) > 0 {
		l.fail("%d bytes too many", len(l.in))
	}
	if l.bad != nil {
		return l.bad
	}
	if _, err := l.x.Remove(l.id, GPU, l.made); err != nil {
		return err
	}
	if snapshot[5]&snapshotPartial != 0 {
		h, err := l.x.lockHolder(l.id)
		if err != nil {
			return err
		}
		h.partial.Store(true)
		h.mu.Unlock()
	}
	return nil
}

func (l *loader) fail(format string, args ...any) {
	if l.bad == nil {
		l.bad = fmt.Errorf(format, args...)
		l.in = nil
	}
}

func (l *loader) uvarint() int {
	v, n := binary.Uvarint(l.in)
	if n <= 0 || v > 1<<40 {
		l.fail("a number is cut short or too large")
		return 0
	}
	l.in = l.in[n:]
	return int(v)
}

func (l *loader) byte() byte {
	if len(l.in) == 0 {
		l.fail("cut short")
		return 0
	}
	b := l.in[0]
	l.in = l.in[1:]
	return b
}

func (l *loader) words(n int) []uint64 {
	if n > len(l.in)/8 {
		l.fail("%d words, %d bytes left", n, len(l.in))
		return nil
	}
	out := make([]uint64, n)
	for i := range out {
		out[i] = binary.LittleEndian.Uint64(l.in[i*8:])
	}
	l.in = l.in[n*8:]
	return out
}

// branch reads one branch: first its places with one handle each, then second names.
func (l *loader) branch() {
	parent, at := l.uvarint(), l.uvarint()
	locals := l.words(l.uvarint())
	var before uint64
	if parent > 0 {
		if parent > len(l.ends) || at < 1 || at > len(l.ends[parent-1]) {
			l.fail("branch %d hangs at place %d of branch %d, which is not there", len(l.ends), at, parent-1)
			return
		}
		before = l.ends[parent-1][at-1]
	}
	handles, tiers := make([]uint64, len(locals)), make([]uint8, len(locals))
	var second []name
	place := 0
	for rows := l.uvarint(); rows > 0 && l.bad == nil; rows-- {
		place += l.uvarint()
		n, in := l.uvarint(), l.byte()
		if in == 0 || in >= 1<<Tiers || place > len(locals) || n > len(locals)-place {
			l.fail("row of %d blocks at place %d of %d, tiers %#x", n, place, len(locals), in)
			return
		}
		for i, handle := range l.words(n) {
			if tiers[place+i] != 0 {
				second = append(second, name{place + i, handle, in})
			} else {
				handles[place+i], tiers[place+i] = handle, in
			}
		}
	}
	if l.bad != nil {
		return
	}
	for i := range handles {
		if tiers[i] == 0 {
			l.count++
			handles[i] = mix(l.count, l.salt)
			l.made = append(l.made, handles[i])
		}
	}
	l.ends = append(l.ends, handles)
	for from := 0; from < len(locals); {
		to := from + 1
		for to < len(locals) && tiers[to] == tiers[from] {
			to++
		}
		l.store(max(tiers[from], 1<<GPU), before, parent > 0 || from > 0, handles[from:to], locals[from:to])
		before, from = handles[to-1], to
	}
	for _, n := range second {
		has := parent > 0 || n.place > 0
		switch {
		case n.place > 0:
			before = handles[n.place-1]
		case parent > 0:
			before = l.ends[parent-1][at-1]
		}
		l.store(n.tiers, before, has, []uint64{n.handle}, locals[n.place:n.place+1])
	}
}

func (l *loader) store(tiers uint8, parent uint64, hasParent bool, handles, locals []uint64) {
	for t := range Tier(Tiers) {
		if tiers>>t&1 == 0 || l.bad != nil {
			continue
		}
		if err := l.x.Store(l.id, t, parent, hasParent, handles, locals); err != nil {
			l.bad = err
		}
	}
}

// copies reads the counts of further copies, for a holder that counts them.
func (l *loader) copies() {
	h, err := l.x.lockHolder(l.id)
	if err != nil {
		l.bad = err
		return
	}
	defer h.mu.Unlock()
	for n := l.uvarint(); n > 0 && l.bad == nil; n-- {
		w, tier, count := l.words(1), Tier(l.byte()), l.byte()
		if l.bad != nil || !h.counting || count == 0 {
			continue
		}
		ref := h.find(w[0], mix(w[0], h.x.seed))
		if tier >= Tiers || ref == noRef || h.x.mem.sheet(ref / sheetBlocks).held[tier]>>(ref%sheetBlocks)&1 == 0 {
			continue // found no memory here
		}
		if h.copies == nil {
			h.copies = map[copyOf]uint8{}
		}
		h.copies[copyOf{w[0], tier}] = count
	}
}
