package indexer

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// holder is the private side of one holder: its table from handle to sheet slot, its stock of free sheets, and scratch
// space for one slice of an event. Only calls for this holder touch it, so holders are fed in parallel and a lookup
// never waits for a table.
type holder struct {
	x        *Index
	id       Holder
	counting bool
	hint     int
	held     atomic.Int64
	partial  atomic.Bool // blocks were dropped for lack of memory
	untold   atomic.Bool // MarkPartial
	upper    atomic.Bool // MarkRecurrent

	mu     sync.Mutex // the budget may drop another holder's blocks
	gone   bool
	table  table
	keysOf func([]uint32, []uint64)
	sheets []uint32 // free sheets; not shared while a call runs, so that what it frees stays recognisable

	lastHandle uint64 // the block stored last: most often the next event's parent
	lastRef    uint32
	lastKnown  bool

	copies map[copyOf]uint8 // further physical copies, where counted

	refs  [slice]uint32
	keys  [slice]uint64
	fresh [slice]uint16
}

// copyOf names a block of which there is more than one copy in a tier.
type copyOf struct {
	handle uint64
	tier   Tier
}

// slice is the most blocks that are stored or removed under one lock.
const slice = 256

const maxCopies = 255

// mix is one step of a keyed multiplicative hash: enough for table places, and not to be guessed from outside.
func mix(v, seed uint64) uint64 {
	hi, lo := bits.Mul64(v^seed, 0x9FB21C651E98DF25)
	return hi ^ lo
}

func (h *holder) keysOfRefs(refs []uint32, keys []uint64) {
	mem, seed := h.x.mem, h.x.seed
	keys = keys[:len(refs)]
	for i, ref := range refs {
		keys[i] = mem.sheet(ref / sheetBlocks).handles[ref%sheetBlocks]
	}
	for i, handle := range keys {
		keys[i] = mix(handle, seed)
	}
}

func (h *holder) layOut() {
	if h.hint > 0 {
		h.table.presize(h.hint)
	}
}

// find gives the reference of a handle, noRef where it is not held.
func (h *holder) find(handle, key uint64) uint32 {
	ref, _ := h.locate(handle, key)
	return ref
}

// locate gives also the place of the reference in the table.
func (h *holder) locate(handle, key uint64) (uint32, *uint32) {
	if h.table.dir == nil {
		return noRef, nil
	}
	mem := h.x.mem
	seg, home, tag := h.table.segmentOf(key), homeOf(key), tagOf(key)
	for d := uint32(0); d < segmentLines; d++ {
		l := seg.line(home + d)
		lo, hi := l.match(tag)
		for ; lo|hi != 0; lo, hi = dropLow(lo, hi) {
			k := lowSlot(lo, hi)
			if ref := l.refs[k]; mem.sheet(ref / sheetBlocks).handles[ref%sheetBlocks] == handle {
				return ref, &l.refs[k]
			}
		}
		if l.over == 0 {
			break
		}
	}
	return noRef, nil
}

// takeSheet gives a sheet from the holder's stock, noSheet when there is no memory left.
func (h *holder) takeSheet() uint32 {
	if len(h.sheets) == 0 {
		h.stock(1)
		if len(h.sheets) == 0 {
			return noSheet
		}
	}
	id := h.sheets[len(h.sheets)-1]
	h.sheets = h.sheets[:len(h.sheets)-1]
	return id
}

// stock sees to it that n sheets are at hand, so that none must be fetched under a shard's lock.
func (h *holder) stock(n int) {
	if len(h.sheets) < n {
		h.sheets = h.x.mem.takeSheets(h.sheets, n+sheetStock)
	}
}

const sheetStock = 16

// giveSheet takes a sheet back.
func (h *holder) giveSheet(id uint32) {
	h.x.mem.sheet(id).stem = noStem
	h.sheets = append(h.sheets, id)
}

// returnSheets gives what goes beyond a small stock to the other holders.
func (h *holder) returnSheets(keep int) {
	if len(h.sheets) > 2*keep {
		h.x.mem.giveSheets(h.sheets[keep:])
		h.sheets = h.sheets[:keep]
	}
}
