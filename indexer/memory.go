package indexer

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/sightline-router/sightline/internal/fair"
)

// Everything that grows with the number of blocks is in slabs of 32 KiB, cut from chunks of 2 MiB without pointers. The garbage
// collector sees one object for each chunk, so 20 M held blocks cost it as much as 250 objects, and since nothing in a slab
// becomes garbage, the heap needs no slack. A slab serves one purpose at a time: runs (a node's record and hashes), node numbers,
// pages, or table segments. Freed memory goes to its purpose's free list, and a slab of runs that is all free can serve any
// purpose again; nothing is returned to the operating system.
const (
	unitWords  = 8                     // 64 bytes: the unit of runs
	slabWords  = 4096                  // 32 KiB
	slabUnits  = slabWords / unitWords // 512
	chunkSlabs = 64                    // 2 MiB
	chunkWords = chunkSlabs * slabWords
	chunkBytes = chunkWords * 8
	maxChunks  = 1 << 14 // 32 GiB: the limit of a 28-bit page number
	unitsShift = 15      // a unit's address >> unitsShift is its chunk
	unitsMask  = chunkSlabs*slabUnits - 1
)

type chunk [chunkWords]uint64

// memory allocates slabs, pages and table segments for all shards and slots. Addresses are numbers. chunks[i] is written once,
// before the first number inside it is handed out, so readers need no lock.
type memory struct {
	space

	mu       sync.Mutex
	count    atomic.Int32  // chunks in use; written under mu
	limit    int           // chunks allowed
	greedy   atomic.Uint64 // the fair.Client that holds more than half of all blocks, and leaves the last slabs to others; 0: nobody
	slabs    []uint32      // slabs free for any purpose
	pages    []uint32      // pages free for any slot
	segments []*segment

	scratch sync.Pool // *scratch, for table splits

	arena     []chunk  // chunks whose memory was never touched
	ready     []*chunk // chunks touched ahead of use
	preparing bool     // a goroutine is touching more

	idleUnits atomic.Int64 // units of free runs

	beside atomic.Int64 // bytes outside of the chunks that count too
	room   *fair.Room   // of them, shared by the slots' owners; nil: without a limit
}

// space is the memory that is read: pages, runs and nodes by their numbers.
type space struct{ chunks [maxChunks]*chunk }

func newMemory(maxBytes int64) *memory {
	m := &memory{limit: maxChunks}
	if maxBytes > 0 {
		m.limit = int(min(max(maxBytes/chunkBytes, minChunks), maxChunks))
		m.room = fair.Shared(int64(m.limit)*chunkBytes/4, 0)
	}
	m.preparing = true
	go m.prepare(firstChunks)
	return m
}

// minChunks is the smallest limit with which 64 shards can work: each needs a slab of node numbers, one of runs and a table
// segment.
const minChunks = 8

// slab returns a free slab's number, never 0, for what an owner of slots stores; false if the limit is reached. Its content is not cleared.
func (m *memory) slab(payer fair.Client) (uint32, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.slabLocked(payer)
}

// keptSlabs is the part of all slabs that the greedy owner leaves to others: 1/16. It evicts only its own blocks, whose memory mostly
// serves what it stores next.
const keptSlabs = 16

// leaves reports whether the greedy owner leaves enough if it takes some bytes beside the chunks, or a slab. The caller holds mu.
func (m *memory) leaves(payer fair.Client, beside int64) bool {
	if payer == 0 || uint64(payer) != m.greedy.Load() {
		return true
	}
	free := len(m.slabs) + (m.limit-int(m.count.Load()))*chunkSlabs - int((m.beside.Load()+beside)/(slabWords*8))
	return free > m.limit*chunkSlabs/keptSlabs
}

func (m *memory) leavesBeside(payer fair.Client, n int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leaves(payer, n)
}

func (m *memory) slabLocked(payer fair.Client) (uint32, bool) {
	if !m.leaves(payer, 0) || len(m.slabs) == 0 && !m.grow() {
		return 0, false
	}
	return pop(&m.slabs)
}

func (m *memory) grow() bool {
	c := int(m.count.Load())
	if c >= m.allowed() {
		return false
	}
	m.chunks[c] = m.takeChunk()
	for i := chunkSlabs - 1; i >= 0; i-- {
		if s := uint32(c*chunkSlabs + i); s != 0 { // address 0 means "none"
			m.slabs = append(m.slabs, s)
		}
	}
	return true
}

// allowed returns how many chunks there may be, beside what is outside of them.
func (m *memory) allowed() int {
	return max(m.limit-int(m.beside.Load()/chunkBytes), min(m.limit, minChunks))
}

// pop removes the last element of a list; false if there is none.
func pop[T any](list *[]T) (last T, ok bool) {
	n := len(*list)
	if n == 0 {
		return last, false
	}
	last, *list = (*list)[n-1], (*list)[:n-1]
	return last, true
}

func (m *memory) freeSlab(s uint32) {
	m.mu.Lock()
	m.slabs = append(m.slabs, s)
	m.mu.Unlock()
}

func (m *space) slabWords(s uint32) unsafe.Pointer {
	return unsafe.Pointer(&m.chunks[s/chunkSlabs][s%chunkSlabs*slabWords])
}

// run returns n words of memory at a unit address.
func (m *space) run(unit uint32, n int) []uint64 {
	at := int(unit&unitsMask) * unitWords
	return m.chunks[unit>>unitsShift][at : at+n : at+n]
}

// runFrom returns the memory from a unit address on, to the end of its chunk.
func (m *space) runFrom(unit uint32) []uint64 {
	return m.chunks[unit>>unitsShift][int(unit&unitsMask)*unitWords:]
}

// segment returns a cleared table segment, nil if the limit is reached.
func (m *memory) segment(payer fair.Client) *segment {
	m.mu.Lock()
	if len(m.segments) == 0 {
		s, ok := m.slabLocked(payer)
		if !ok {
			m.mu.Unlock()
			return nil
		}
		all := (*[slabWords * 8 / segmentBytes]segment)(m.slabWords(s))
		for i := len(all) - 1; i >= 0; i-- {
			m.segments = append(m.segments, &all[i])
		}
	}
	seg, _ := pop(&m.segments)
	m.mu.Unlock()
	*seg = segment{}
	return seg
}

func (m *memory) freeSegment(s *segment) {
	m.mu.Lock()
	m.segments = append(m.segments, s)
	m.mu.Unlock()
}

// takePages moves up to n free pages to a slot's own stock.
func (m *memory) takePages(own []uint32, n int, payer fair.Client) []uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.pages) < n {
		if s, ok := m.slabLocked(payer); ok {
			for i := pagesPerSlab - 1; i >= 0; i-- {
				m.pages = append(m.pages, s<<pageBits|uint32(i))
			}
		}
	}
	keep := max(0, len(m.pages)-n)
	own = append(own, m.pages[keep:]...)
	m.pages = m.pages[:keep]
	return own
}

func (m *memory) givePages(part []uint32) {
	m.mu.Lock()
	m.pages = append(m.pages, part...)
	m.mu.Unlock()
}

// page returns the page with a number.
func (m *space) page(id uint32) *page {
	at := id>>pageBits%chunkSlabs*slabWords + id&(1<<pageBits-1)*pageWords
	return (*page)(unsafe.Pointer(&m.chunks[id>>(pageBits+6)][at]))
}

// usage returns the bytes allocated in chunks, and how many of them are on no free list. A slab of runs counts as used even if it is not
// cut up yet.
func (m *memory) usage() (resident, used int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	resident = (int64(m.count.Load()) + int64(len(m.ready))) * chunkBytes
	idle := 8*(len(m.slabs)*slabWords+len(m.pages)*pageWords+int(m.idleUnits.Load())*unitWords) + len(m.segments)*segmentBytes
	return resident, int64(m.count.Load())*chunkBytes - int64(idle)
}
