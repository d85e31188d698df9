package indexer

import (
	"slices"
	"unsafe"
)

// Matches is the answer to a lookup. It belongs to the caller, who hands it in again: after the first few lookups
// nothing is allocated. Not for use by two goroutines at once.
type Matches struct {
	Slots   []Match // those that hold the first block at least, in no order
	Longest int     // the most leading blocks that any one holds

	rows []uint32 // by slot, its row; valid where the row says so (see find)
}

// Match is one slot's part: how many leading blocks it holds in any tier, and how many of these have their best copy
// in each.
type Match struct {
	Slot   SlotID
	Blocks uint32
	InTier [Tiers]uint32
}

// Match finds for every slot how many leading blocks of a prompt it holds: locals are the prompt's local block hashes
// from the front. It stops where nobody holds more. Cost: 0.1 to 0.2 µs for each node on the way (two dependent cache
// misses, far less when they hit), plus 5 ns a slot; no allocation.
func (x *Index) Match(locals []uint64, m *Matches) {
	m.Slots, m.Longest = m.Slots[:0], 0
	if len(locals) == 0 {
		return
	}
	prefetch(unsafe.Pointer(&locals[0]), lines(locals))
	sh := x.shardForPrompt(locals[0])
	sh.lock.RLock()
	defer sh.lock.RUnlock()
	parent, place, at := uint32(root), 0, 0
	for {
		run := sh.child(parent, place, locals[at:])
		if run == 0 {
			return
		}
		nd := x.mem.node(run)
		nd.touch(x.epoch.Load())
		if nd.list != 0 {
			prefetch(unsafe.Pointer(x.mem.residencyList(nd.list)), 1+int(nd.residents)/5)
		}
		n := common(x.mem.locals(run, nd.length()), locals[at:])
		// The node behind is on its way while the residencies of this one are counted.
		rest := locals[at+n:]
		if len(rest) > 0 && nd.childCount > 0 {
			sh.prefetchChild(nd.id, n, rest)
		}
		if at == 0 {
			if !m.begin(sh, nd, n) {
				return
			}
		} else if !m.take(sh, nd, at, n) {
			return
		}
		if len(rest) == 0 || nd.childCount == 0 {
			return
		}
		parent, place, at = nd.id, n, at+n
	}
}

// begin makes a row for each residency of the first node, of which the prompt has the first n blocks. It is false when nobody
// holds all n.
func (m *Matches) begin(sh *shard, nd *node, n int) (alive bool) {
	rows := slices.Grow(m.Slots, int(nd.residents))[:nd.residents]
	k := 0
	for list := uint32(0); ; {
		residencies, pages, next := sh.mem.residenciesOf(nd, list)
		for i, res := range residencies {
			all := min(res.leading(), n)
			if all == 0 {
				continue
			}
			r := &rows[k]
			k++
			*r = Match{Slot: res.slot(), Blocks: uint32(all)}
			sh.mem.tiers(res, pages[i], all, &r.InTier)
			m.Longest = max(m.Longest, all)
		}
		if list = next; list == 0 {
			break
		}
	}
	if m.Slots = rows[:k]; k > fewSlots {
		m.indexRows()
	}
	return m.Longest == n
}

// take adds what the residencies of a further node hold of its first n blocks, for slots that hold all of the prompt's blocks
// before. It is false when nobody holds all n.
func (m *Matches) take(sh *shard, nd *node, at, n int) (alive bool) {
	for list := uint32(0); ; {
		residencies, pages, next := sh.mem.residenciesOf(nd, list)
		for i, res := range residencies {
			all := min(res.leading(), n)
			r := m.find(res.slot())
			if all == 0 || r == nil || int(r.Blocks) != at {
				continue
			}
			r.Blocks += uint32(all)
			sh.mem.tiers(res, pages[i], all, &r.InTier)
			m.Longest = max(m.Longest, int(r.Blocks))
		}
		if list = next; list == 0 {
			return m.Longest == at+n
		}
	}
}

// tiers adds the first blocks of a residency to the counts by tier.
func (m *memory) tiers(res residency, head uint32, blocks int, in *[Tiers]uint32) {
	switch first := res.boundary(); {
	case blocks <= first:
		in[res.tierOne()] += uint32(blocks)
	case res&residencyMixed == 0:
		in[res.tierOne()] += uint32(first)
		in[res.tierTwo()] += uint32(blocks - first)
	default:
		m.tally(head, blocks, in)
	}
}

// lines is how many cache lines of a prompt, and of a node compared with it, are worth fetching ahead: behind them the
// processor has seen where it goes.
func lines(locals []uint64) int { return min(len(locals)/8+2, 64) }

const fewSlots = 12

// find gives the row of a slot, nil where it has none. Among many, a sparse set finds it: row points to the place, and
// the place must point back, so nothing has to be cleared between lookups.
func (m *Matches) find(id SlotID) *Match {
	if len(m.Slots) <= fewSlots {
		for i := range m.Slots {
			if m.Slots[i].Slot == id {
				return &m.Slots[i]
			}
		}
		return nil
	}
	if int(id) < len(m.rows) {
		if i := m.rows[id]; int(i) < len(m.Slots) && m.Slots[i].Slot == id {
			return &m.Slots[i]
		}
	}
	return nil
}

// number prepares find for many slots.
func (m *Matches) indexRows() {
	top := SlotID(0)
	for i := range m.Slots {
		top = max(top, m.Slots[i].Slot)
	}
	if int(top) >= len(m.rows) {
		m.rows = make([]uint32, int(top)+1+int(top)/4)
	}
	for i := range m.Slots {
		m.rows[m.Slots[i].Slot] = uint32(i)
	}
}

// tally counts the leading blocks by best tier from the pages.
func (m *memory) tally(page uint32, all int, in *[Tiers]uint32) {
	for page != noPage {
		st, next := m.stackAt(page)
		st.best()
		for k := st.base; k < min(st.base+pageBlocks, all); k++ {
			for t := range st.held {
				in[t] += uint32(st.held[t] >> (k - st.base) & 1)
			}
		}
		if st.base+pageBlocks >= all {
			return
		}
		page = next
	}
}
