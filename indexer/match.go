package indexer

import (
	"cmp"
	"slices"
	"unsafe"
)

// Matches is the answer to a lookup. The caller owns it and passes the same one to every lookup: after the first few nothing is
// allocated. Not safe for concurrent use.
type Matches struct {
	Slots   []Match // slots that hold at least the first block, sorted by slot
	Longest int     // the most leading blocks that one slot holds
	// GPU has the slots whose GPU holds fewer leading blocks than the slot, sorted by slot, with the number that the GPU holds.
	GPU []Match

	// Reduced has the slots whose engine would find fewer blocks than they hold, sorted by slot, with the number that they hold.
	Reduced []Match

	// Most is set by the caller: the most blocks that an engine may take from its cache, because it computes a prompt's last token
	// always: (tokens-1)/block size. 0: not known. It changes answers of slots with several KV cache groups only.
	Most int

	// Held is set by the caller to have the blocks that a slot holds, whatever its engine would find.
	Held bool

	index   *Index
	limit   int
	hybrids []hybridState // rows of slots with groups
}

// Match is how many leading blocks of the prompt one slot holds, in any tier.
type Match struct {
	Slot   SlotID
	Blocks uint32
}

// Match finds for every slot how many leading blocks of a prompt it holds; for a slot with several KV cache groups, how many its
// engine would find (hybrid.go). locals are the local hashes of the prompt's blocks
// from the first on. Cost: 0.1 to 0.2 µs for each node on the path (two dependent cache misses, far less when they hit) and 1 ns
// a slot; no allocation. The walk ends at the first node beyond which no slot holds more. Distinguishing tiers costs 10 ns for
// each node and slot that has some of the node's blocks in lower tiers only, and nothing for others.
//
// With concurrent changes, each node is seen as it is at one moment during the call.
func (x *Index) Match(locals []uint64, m *Matches) {
	m.Slots, m.GPU, m.Reduced, m.Longest = m.Slots[:0], m.GPU[:0], m.Reduced[:0], 0
	if len(locals) == 0 {
		return
	}
	prefetch(unsafe.Pointer(&locals[0]), lines(locals))
	m.index = x
	m.limit = len(locals)
	if m.Most > 0 {
		m.limit = min(m.limit, m.Most)
	}
	for !m.walk(x, locals) {
	}
	if len(m.hybrids)+len(m.Reduced) > 0 {
		m.endHybrids()
	}
	if len(m.GPU) > 1 { // the first node at which a slot's GPU has less is where its GPU's prefix ends
		slices.SortFunc(m.GPU, func(a, b Match) int { return cmp.Or(cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.Blocks, b.Blocks)) })
		m.GPU = slices.CompactFunc(m.GPU, func(a, b Match) bool { return a.Slot == b.Slot })
	}
}

// walk descends the tree; it returns false if it must start over, see shard.
func (m *Matches) walk(x *Index, locals []uint64) (whole bool) {
	m.Slots, m.GPU, m.Reduced, m.Longest, m.hybrids = m.Slots[:0], m.GPU[:0], m.Reduced[:0], 0, m.hybrids[:0]
	parent, offset, at := uint32(root), 0, 0
	key := childKey(root, 0, locals[0], x.seed)
	sh := x.shardOfKey(key)
	sh.lock.RLock()
	defer func() { sh.lock.RUnlock() }()
	for {
		run := sh.child(key, parent, offset, locals[at:])
		if run == 0 {
			return true
		}
		nd := x.mem.node(run)
		nd.touch(x.epoch.Load())
		if nd.list != 0 {
			prefetch(unsafe.Pointer(x.mem.residencyList(nd.list)), 1+int(nd.residents)/5)
		}
		n := common(x.mem.locals(run, nd.length()), locals[at:])
		rest := locals[at+n:]
		if len(rest) == 0 || nd.childCount == 0 {
			m.count(sh, nd, at, n)
			return true
		}
		// Prefetch the next node while this one's residencies are counted, if its shard's lock is free.
		key = childKey(nd.id, n, rest[0], x.seed)
		next := x.shardOfKey(key)
		locked := next == sh || next.lock.TryRLock()
		if locked {
			next.prefetchChild(key, rest)
		}
		if !m.count(sh, nd, at, n) {
			if locked && next != sh {
				next.lock.RUnlock()
			}
			return true
		}
		parent, offset, at = nd.id, n, at+n
		last := sh
		sh = next
		if !locked {
			if !last.follow(sh) {
				return false
			}
		} else if last != sh {
			last.lock.RUnlock()
		}
	}
}

// count adds what the residencies of a node hold of its first n blocks, for slots that hold all at blocks of the prompt before
// it. It returns false if no slot holds all n, so that no later node can add anything.
func (m *Matches) count(sh *shard, nd *node, at, n int) (alive bool) {
	switch {
	case at > 0:
		m.add(sh.mem, nd, at, n)
		if len(m.hybrids) > 0 {
			m.addHybrids(sh.mem, nd, at)
		}
	case m.Held || m.index.hybrids.Load() == 0:
		m.begin(sh.mem, nd, n)
	default:
		m.beginHybrids(sh.mem, nd, n)
	}
	return m.Longest == at+n
}

// begin makes a row for each residency of the first node that has its first block.
func (m *Matches) begin(mem *memory, nd *node, n int) {
	rows := slices.Grow(m.Slots, int(nd.residents))[:nd.residents]
	count, longest, all := 0, uint32(0), residency(0)
	for list := uint32(0); ; {
		residencies, _, next := mem.residenciesOf(nd, list)
		part := rows[count:][:len(residencies)]
		k := 0
		for _, res := range residencies {
			held := min(uint32(res.leading()), uint32(n))
			part[k] = Match{res.slot(), held}
			all |= res
			longest = max(longest, held)
			if held > 0 { // else it has only later blocks, or is of bits
				k++
			}
		}
		count += k
		list = next
		if list == 0 {
			break
		}
	}
	rows = rows[:count]
	m.Slots, m.Longest = rows, int(longest)
	if all&offGPU != 0 {
		m.below(mem, nd, 0, n)
	}
}

// add adds to the rows what the residencies of a further node hold. Both are sorted by slot.
func (m *Matches) add(mem *memory, nd *node, at, n int) {
	rows, longest, k, all := m.Slots, uint32(m.Longest), 0, residency(0)
	for list := uint32(0); ; {
		residencies, _, next := mem.residenciesOf(nd, list)
		for _, res := range residencies {
			id := res.slot()
			if k < len(rows) && rows[k].Slot < id {
				k += before(rows[k:], id)
			}
			if k >= len(rows) {
				break
			}
			if r := &rows[k]; r.Slot == id {
				if int(r.Blocks) == at {
					r.Blocks += uint32(min(res.leading(), n))
					all |= res
					longest = max(longest, r.Blocks)
				}
				k++
			}
		}
		list = next
		if list == 0 || k == len(rows) {
			m.Longest = int(longest)
			if all&offGPU != 0 {
				m.below(mem, nd, at, n)
			}
			return
		}
	}
}

// below notes the slots whose GPU has fewer of a node's first n blocks than was added to their rows.
func (m *Matches) below(mem *memory, nd *node, at, n int) {
	for list := uint32(0); ; {
		residencies, _, next := mem.residenciesOf(nd, list)
		for _, res := range residencies {
			gpu, held := min(res.gpu().leading(), n), min(res.leading(), n)
			if gpu == held {
				continue
			}
			if i, ok := slices.BinarySearchFunc(m.Slots, res.slot(), Match.bySlot); ok && int(m.Slots[i].Blocks) == at+held {
				m.GPU = append(m.GPU, Match{res.slot(), uint32(at + gpu)})
			}
		}
		list = next
		if list == 0 {
			return
		}
	}
}

// OnGPU returns how many of a slot's leading blocks are on its GPU.
func (m *Matches) OnGPU(of Match) uint32 {
	if len(m.GPU) == 0 {
		return of.Blocks
	}
	if i, ok := slices.BinarySearchFunc(m.GPU, of.Slot, Match.bySlot); ok {
		return m.GPU[i].Blocks
	}
	return of.Blocks
}

func (r Match) bySlot(id SlotID) int { return cmp.Compare(r.Slot, id) }

// before returns the number of leading rows with a lower slot: one, few or, among many, found by doubling and binary search.
func before(rows []Match, id SlotID) int {
	end := 1
	for end <= len(rows) && rows[end-1].Slot < id {
		end *= 2
	}
	from, to := end/2, min(end-1, len(rows))
	for from < to {
		if mid := int(uint(from+to) / 2); rows[mid].Slot < id {
			from = mid + 1
		} else {
			to = mid
		}
	}
	return from
}

// lines returns how many cache lines of a prompt, and of a node compared with it, are worth prefetching; for further ones the
// processor's own prefetching works.
func lines(locals []uint64) int { return min(len(locals)/8+2, 64) }
