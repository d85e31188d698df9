package indexer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/zeebo/xxh3"
)

// Block is one block of a slot's listing.
type Block struct {
	Local      uint64
	EngineHash uint64
	Tiers      uint8 // one bit for each tier that holds it; 0: not held, and listed because held blocks follow it
	Parent     int   // number of the block before it in this listing; -1 if it begins a prompt
}

// Dump lists a slot's blocks, parents before children, until f returns false. Content under two engine hashes is listed
// twice. The slot takes no events meanwhile.
func (x *Index) Dump(id SlotID, f func(Block) bool) error {
	s, err := x.lockSlot(id)
	if err != nil {
		return err
	}
	defer s.mu.Unlock()
	number := 0
	numbers := map[*branch][]int{} // of each branch: the number of the block at each offset
	for _, b := range s.branches() {
		before, at := -1, make([]int, b.blocks)
		if b.parent != nil {
			before = numbers[b.parent][b.parentOffset-1]
		}
		held := b.held
		for offset, local := range b.locals {
			parent := before
			before, at[offset] = number, number
			for listed := false; ; listed = true {
				blk := Block{Local: local, Parent: parent}
				if len(held) > 0 && held[0].offset == offset {
					blk.EngineHash, blk.Tiers = held[0].engineHash, held[0].tiers
					held = held[1:]
				} else if listed {
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
		numbers[b] = at
	}
	return nil
}

// branch is what a slot holds of one node, as read out for a listing or a snapshot.
type branch struct {
	id           uint32 // full node number
	parent       *branch
	parentOffset int // node.parentOffset
	blocks       int // number of its blocks that are listed: up to the last held one, or the last with a listed child
	page         uint32
	locals       []uint64
	held         []heldBlock
	index        int
}

// heldBlock is a block at an offset of a node: its engine hash and its tiers, one bit each.
type heldBlock struct {
	offset     int
	engineHash uint64
	tiers      uint8
}

// branches reads out all that the slot holds, parents before children. Only the slot's own calls could change it; the shards
// are read-locked for one node at a time.
func (s *slot) branches() (list []*branch) {
	mem := s.x.mem
	known := map[uint32]*branch{}
	var get func(uint32) *branch
	get = func(id uint32) *branch {
		if b := known[id]; b != nil {
			return b
		}
		sh := s.x.shardOfNode(id)
		b := &branch{id: id, page: noPage}
		known[id] = b
		sh.lock.RLock()
		nd := sh.node(id & (1<<nodeBits - 1))
		parent, at := nd.parent, int(nd.parentOffset)
		if _, head := mem.residencyOf(nd, s.id); head != nil {
			b.page = *head
			b.blocks = mem.lastHeld(b.page)
		}
		sh.lock.RUnlock()
		if parent != root {
			b.parent, b.parentOffset = get(sh.id<<nodeBits|parent), at
			b.parent.blocks = max(b.parent.blocks, at)
		}
		list = append(list, b)
		return b
	}
	s.table.each(func(seg *segment) {
		for i := range seg {
			for k, tag := range seg[i].tags {
				if tag != 0 {
					get(mem.page(seg[i].refs[k] / pageBlocks).node)
				}
			}
		}
	})
	for i, b := range list {
		b.index = i
		sh := s.x.shardOfNode(b.id)
		sh.lock.RLock()
		b.locals = append(b.locals, mem.locals(*sh.runOf(b.id & (1<<nodeBits - 1)), b.blocks)...)
		sh.lock.RUnlock()
		b.readPages(mem)
	}
	return list
}

// readPages lists the pages' blocks in the order of their offsets.
func (b *branch) readPages(mem *memory) {
	for id := b.page; id != noPage; {
		_, next := mem.stackAt(id)
		base := int(mem.page(id).base)
		for k := range pageBlocks {
			for at := id; at != next; at = mem.page(at).next {
				pg := mem.page(at)
				tiers := uint8(0)
				for t := range pg.held {
					tiers |= uint8(pg.held[t]>>k&1) << t
				}
				if tiers != 0 {
					b.held = append(b.held, heldBlock{base + k, pg.engineHashes[k], tiers})
				}
			}
		}
		id = next
	}
}

// A snapshot, little-endian, uvarints unless said otherwise:
//
//	"SLKV", version (1 byte), flags (1 byte: 1 partial)
//	number of branches; each: parent branch + 1 (0: none), offset in it, n, n × local hash (8 bytes),
//	    number of rows; each: first offset (as the difference to the last row's), n, tiers (1 byte), n × engine hash (8 bytes)
//	number of copies; each: engine hash (8 bytes), tier (1 byte), copies beyond the first (1 byte)
//	XXH3-64 of all of the above (8 bytes)
const (
	snapshotMagic   = "SLKV"
	snapshotVersion = 1
	snapshotPartial = 1
)

// ErrSnapshot is returned for a snapshot that is damaged, cut short or of an unknown version.
var ErrSnapshot = errors.New("not a snapshot that can be read")

// AppendSnapshot appends a slot's blocks with all that Load needs to store them in another index: 16 to 17 bytes a block. The
// slot takes no events meanwhile.
func (x *Index) AppendSnapshot(dst []byte, id SlotID) ([]byte, error) {
	s, err := x.lockSlot(id)
	if err != nil {
		return dst, err
	}
	defer s.mu.Unlock()
	start := len(dst)
	dst = append(dst, snapshotMagic...)
	dst = append(dst, snapshotVersion, 0)
	if s.partial.Load() {
		dst[len(dst)-1] = snapshotPartial
	}
	list := s.branches()
	dst = binary.AppendUvarint(dst, uint64(len(list)))
	for _, b := range list {
		parent := 0
		if b.parent != nil {
			parent = b.parent.index + 1
		}
		dst = binary.AppendUvarint(dst, uint64(parent))
		dst = binary.AppendUvarint(dst, uint64(b.parentOffset))
		dst = appendWords(dst, b.locals)
		dst = b.appendRows(dst)
	}
	dst = binary.AppendUvarint(dst, uint64(len(s.copies)))
	for c, n := range s.copies {
		dst = binary.LittleEndian.AppendUint64(dst, c.engineHash)
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

// appendRows writes the held blocks in rows of neighbours with equal tiers.
func (b *branch) appendRows(dst []byte) []byte {
	var rows [][]heldBlock
	for i, n := range b.held {
		if last := len(rows) - 1; i > 0 && n.offset == b.held[i-1].offset+1 && n.tiers == b.held[i-1].tiers {
			rows[last] = rows[last][:len(rows[last])+1]
		} else {
			rows = append(rows, b.held[i:i+1])
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(rows)))
	offset := 0
	for _, r := range rows {
		dst = binary.AppendUvarint(dst, uint64(r[0].offset-offset))
		offset = r[0].offset
		dst = binary.AppendUvarint(dst, uint64(len(r)))
		dst = append(dst, r[0].tiers)
		for _, n := range r {
			dst = binary.LittleEndian.AppendUint64(dst, n.engineHash)
		}
	}
	return dst
}

// Load replaces what a slot holds by a snapshot's blocks. On an error (ErrSnapshot, ErrUnknownSlot) the slot is left empty.
func (x *Index) Load(id SlotID, snapshot []byte) error {
	if err := x.Clear(id); err != nil {
		return err
	}
	l := loader{x: x, id: id}
	err := l.load(snapshot)
	if err != nil {
		x.Clear(id)
		err = fmt.Errorf("snapshot for slot %d: %w: %w", id, ErrSnapshot, err)
	}
	return err
}

// loader stores a snapshot's blocks by Store. A block that is not held itself, but stands before held ones, is stored under
// an engine hash made up for the time of loading, and removed at the end.
type loader struct {
	x        *Index
	id       SlotID
	in       []byte
	err      error
	hashesAt [][]uint64 // of each branch: an engine hash for each offset
	madeUp   []uint64
	salt     uint64
	count    uint64
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
	for n := l.uvarint(); n > 0 && l.err == nil; n-- {
		l.branch()
	}
	if l.err == nil {
		l.copies()
	}
	if l.err == nil && len(l.in) > 0 {
		l.fail("%d bytes too many", len(l.in))
	}
	if l.err != nil {
		return l.err
	}
	if _, err := l.x.Remove(l.id, GPU, l.madeUp); err != nil {
		return err
	}
	if snapshot[5]&snapshotPartial != 0 {
		s, err := l.x.lockSlot(l.id)
		if err != nil {
			return err
		}
		s.partial.Store(true)
		s.mu.Unlock()
	}
	return nil
}

func (l *loader) fail(format string, args ...any) {
	if l.err == nil {
		l.err = fmt.Errorf(format, args...)
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

// branch reads one branch: first each offset under one engine hash, then the further engine hashes of the same content.
func (l *loader) branch() {
	parent, at := l.uvarint(), l.uvarint()
	locals := l.words(l.uvarint())
	var before uint64
	if parent > 0 {
		if parent > len(l.hashesAt) || at < 1 || at > len(l.hashesAt[parent-1]) {
			l.fail("branch %d hangs at place %d of branch %d, which is not there", len(l.hashesAt), at, parent-1)
			return
		}
		before = l.hashesAt[parent-1][at-1]
	}
	engineHashes, tiers := make([]uint64, len(locals)), make([]uint8, len(locals))
	var others []heldBlock
	offset := 0
	for rows := l.uvarint(); rows > 0 && l.err == nil; rows-- {
		offset += l.uvarint()
		n, in := l.uvarint(), l.byte()
		if in == 0 || in >= 1<<Tiers || offset > len(locals) || n > len(locals)-offset {
			l.fail("row of %d blocks at place %d of %d, tiers %#x", n, offset, len(locals), in)
			return
		}
		for i, engineHash := range l.words(n) {
			if tiers[offset+i] != 0 {
				others = append(others, heldBlock{offset + i, engineHash, in})
			} else {
				engineHashes[offset+i], tiers[offset+i] = engineHash, in
			}
		}
	}
	if l.err != nil {
		return
	}
	for i := range engineHashes {
		if tiers[i] == 0 {
			l.count++
			engineHashes[i] = mix(l.count, l.salt)
			l.madeUp = append(l.madeUp, engineHashes[i])
		}
	}
	l.hashesAt = append(l.hashesAt, engineHashes)
	for from := 0; from < len(locals); {
		to := from + 1
		for to < len(locals) && tiers[to] == tiers[from] {
			to++
		}
		l.store(max(tiers[from], 1<<GPU), before, parent > 0 || from > 0, engineHashes[from:to], locals[from:to])
		before, from = engineHashes[to-1], to
	}
	for _, n := range others {
		has := parent > 0 || n.offset > 0
		switch {
		case n.offset > 0:
			before = engineHashes[n.offset-1]
		case parent > 0:
			before = l.hashesAt[parent-1][at-1]
		}
		l.store(n.tiers, before, has, []uint64{n.engineHash}, locals[n.offset:n.offset+1])
	}
}

func (l *loader) store(tiers uint8, parent uint64, hasParent bool, engineHashes, locals []uint64) {
	for t := range Tier(Tiers) {
		if tiers>>t&1 == 0 || l.err != nil {
			continue
		}
		if err := l.x.Store(l.id, t, parent, hasParent, engineHashes, locals); err != nil {
			l.err = err
		}
	}
}

// copies reads the counts of further copies, if the slot counts them.
func (l *loader) copies() {
	s, err := l.x.lockSlot(l.id)
	if err != nil {
		l.err = err
		return
	}
	defer s.mu.Unlock()
	for n := l.uvarint(); n > 0 && l.err == nil; n-- {
		w, tier, count := l.words(1), Tier(l.byte()), l.byte()
		if l.err != nil || !s.countCopies || count == 0 {
			continue
		}
		ref := s.find(w[0], mix(w[0], s.x.seed))
		if tier >= Tiers || ref == noRef || s.x.mem.page(ref / pageBlocks).held[tier]>>(ref%pageBlocks)&1 == 0 {
			continue // it found no memory in this index
		}
		if s.copies == nil {
			s.copies = map[copyKey]uint8{}
		}
		s.copies[copyKey{w[0], tier}] = count
	}
}
