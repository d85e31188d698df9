package tokenizer

// mergeHeap merges many symbols in place and returns how many are left, in n log n time for any text. The heap holds every pair
// that could merge, lowest rank first and leftmost among equals. Entries made stale by a neighbouring merge are recognized by their
// symbols when they are popped.
func (m *bpe) mergeHeap(s *scratch, syms []uint32) int {
	n := len(syms)
	if cap(s.links) < n {
		s.links = make([]link, n+n/4)
	}
	links := s.links[:n]
	h := s.heap[:0]
	for i := range links {
		links[i] = link{prev: int32(i - 1), next: int32(i + 1)}
		if i+1 < n {
			if rank, id := m.pairs.get(syms[i], syms[i+1]); rank != noRank {
				h = append(h, candidate{rank, int32(i), id, syms[i], syms[i+1]})
			}
		}
	}
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.down(i)
	}
	for len(h) > 0 {
		s.work(1)
		c := h[0]
		last := len(h) - 1
		h[0] = h[last]
		h = h[:last]
		h.down(0)
		at := int(c.at)
		next := int(links[at].next)
		if next >= n || syms[at] != c.left || syms[next] != c.right {
			continue
		}
		s.last = [2]uint32{c.left, c.right}
		syms[at], syms[next] = c.id, noID
		after := links[next].next
		links[at].next = after
		if int(after) < n {
			links[after].prev = c.at
			if rank, id := m.pairs.get(c.id, syms[after]); rank != noRank {
				h = h.push(candidate{rank, c.at, id, c.id, syms[after]})
			}
		}
		if prev := links[at].prev; prev >= 0 {
			if rank, id := m.pairs.get(syms[prev], c.id); rank != noRank {
				h = h.push(candidate{rank, prev, id, syms[prev], c.id})
			}
		}
	}
	s.heap = h
	left := 0
	for i := 0; i < n; i = int(links[i].next) {
		syms[left] = syms[i]
		left++
	}
	return left
}

type link struct{ prev, next int32 }

// candidate is a possible merge of the symbol at position at with the next one.
type candidate struct {
	rank        uint32
	at          int32
	id          uint32
	left, right uint32
}

func (c *candidate) before(d *candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.at < d.at
}

type candidates []candidate

func (h candidates) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && h[child+1].before(&h[child]) {
			child++
		}
		if !h[child].before(&h[i]) {
			return
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}

func (h candidates) push(c candidate) candidates {
	h = append(h, c)
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h[i].before(&h[parent]) {
			break
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
	return h
}
