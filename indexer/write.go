package indexer

// writer puts one slice of a stored event into the tree, node by node, each under its shard's write lock; the slot's table is
// updated afterwards.
type writer struct {
	*slot
	shard    *shard // of the current node
	tier     Tier
	newCount int // length of slot.newHashes
}

// insert walks along the nodes from the block at, or from the root if at is noRef, adds nodes for new content and records every
// block on the slot's pages. It sets slot.refs to the blocks' references, and returns the number of blocks that fit.
func (w *writer) insert(at uint32, engineHashes, locals []uint64) int {
	node, off, near := uint32(root), 0, noPage
	if at != noRef {
		near = at / pageBlocks
		pg := w.x.mem.page(near)
		node, off = pg.node, int(pg.base)+int(at%pageBlocks)+1
	}
	for done := 0; ; {
		want, got := 0, 0
		if node != root {
			want, got = w.extendChain(node, off, near, engineHashes, locals, done)
		}
		if want == 0 {
			node, want, got = w.branch(node, off, engineHashes, locals, done)
			if node == root {
				return done
			}
			off = 0
		}
		done += got
		if got < want || done == len(locals) {
			return done
		}
		near = w.refs[done-1] / pageBlocks
		off += want
	}
}

// extendChain records the blocks from index done on as held from an offset of a node on: those that the node has there, and more at its
// end if it can grow. It returns how many these are and how many fit. If there are none, it has counted a child there.
func (w *writer) extendChain(id uint32, off int, near uint32, engineHashes, locals []uint64, done int) (want, got int) {
	sh := w.x.shardOfNode(id)
	w.shard = sh
	sh.lockFor(w.table.payer)
	nd, rest, parent := sh.node(id), locals[done:], uint32(root)
	end := nd.length()
	if off < end {
		want = common(sh.mem.locals(*sh.runOf(id), end)[off:], rest)
	}
	if off+want == end && want < len(rest) && (nd.childCount == 0 || int(nd.maxChildOffset) < end) {
		want += sh.append(id, rest[want:]) // no child is at the end, so the node can grow
	}
	if want == 0 {
		nd.addChild(off)
	} else {
		got = w.hold(id, off, near, engineHashes[done:done+want], done)
		if got < want {
			parent = sh.trim(id)
		}
	}
	sh.lock.Unlock()
	w.x.childGone(parent)
	return want, got
}

// branch records the blocks from index done on as held in a child of a node: the one at the offset that begins with the first of
// them, or a new one. It returns the child, how many blocks it has and how many fit; root if the child itself did not fit.
func (w *writer) branch(node uint32, off int, engineHashes, locals []uint64, done int) (child uint32, want, got int) {
	rest := locals[done:]
	key := childKey(node, off, rest[0], w.x.seed)
	sh := w.x.shardOfKey(key)
	w.shard = sh
	sh.lockFor(w.table.payer)
	run := sh.child(key, node, off, rest)
	parent, freed := node, uint32(root) // parent counts a child too many
	if run != 0 {
		want = common(sh.mem.locals(run, sh.mem.node(run).length()), rest)
	} else {
		want = min(len(rest), maxNodeBlocks)
		run = sh.newNode(key, node, off, rest[:want])
		if run != 0 {
			parent = root
		}
	}
	if run != 0 {
		child = sh.mem.node(run).id
		got = w.hold(child, 0, noPage, engineHashes[done:done+want], done)
		if got < want {
			freed = sh.trim(child)
		}
	}
	sh.lock.Unlock()
	w.x.childGone(parent)
	w.x.childGone(freed)
	return child, want, got
}

// hold records blocks of one node as held by the slot: on its pages and in its residency. It returns how many fit.
func (w *writer) hold(id uint32, off int, near uint32, engineHashes []uint64, first int) int {
	sh := w.shard
	nd := sh.node(id)
	res, head := sh.mem.residencyOf(nd, blocksOf(w.id))
	if res == nil {
		res, head = sh.runs.addResidency(nd, blocksOf(w.id))
		if res == nil {
			return 0
		}
	}
	n := 0
	for n < len(engineHashes) {
		base := (off + n) &^ (pageBlocks - 1)
		bit := off + n - base
		k := min(pageBlocks-bit, len(engineHashes)-n)
		page, before := sh.mem.seek(*head, near, base)
		if page == noPage {
			page = w.newPage(id, base, before, head)
			if page == noPage {
				break
			}
			w.fillFree(page, bit, engineHashes[n:n+k], first+n)
		} else if got := w.fill(page, bit, head, engineHashes[n:n+k], first+n); got < k {
			n += got
			break
		}
		near = page
		n += k
	}
	if n > 0 {
		if next, ok := res.stored(w.tier, off, off+n); ok {
			*res = next
		} else {
			*res = sh.mem.residencyFrom(blocksOf(w.id), *head)
		}
	} else if *head == noPage {
		w.dropResidency(sh, nd)
	}
	return n
}

// added sets the reference of block i of the slice, and marks the block as new to the slot's table.
func (w *writer) added(i int, page uint32, bit int) {
	w.refs[i] = page*pageBlocks + uint32(bit)
	w.slot.newHashes[w.newCount] = uint16(i)
	w.newCount++
}

// fill records blocks on an existing page of the slot, and returns how many fit.
func (w *writer) fill(page uint32, bit int, head *uint32, engineHashes []uint64, first int) int {
	mem := w.shard.mem
	pg := mem.page(page)
	if alone := pg.next == noPage || mem.page(pg.next).base != pg.base; alone && pg.any()>>bit&(1<<len(engineHashes)-1) == 0 {
		w.fillFree(page, bit, engineHashes, first)
		return len(engineHashes)
	}
	for i, engineHash := range engineHashes {
		if !w.fillOne(page, bit+i, head, engineHash, first+i) {
			return i
		}
	}
	return len(engineHashes)
}

// fillFree records blocks in free entries of a page.
func (w *writer) fillFree(page uint32, bit int, engineHashes []uint64, first int) {
	pg := w.shard.mem.page(page)
	pg.storedAt = uint16(w.stores.Load())
	copy(pg.engineHashes[bit:], engineHashes)
	blocks := uint16(1<<len(engineHashes)-1) << bit
	pg.held[w.tier] |= blocks
	if w.doubtful > 0 {
		w.sure[page] |= blocks
	}
	for i := range engineHashes {
		w.added(first+i, page, bit+i)
	}
}

// fillOne records one block if several pages may have its base: on the page that has its engine hash, else in a free entry, else
// on a new page. It returns false if there is no memory left.
func (w *writer) fillOne(page uint32, bit int, head *uint32, engineHash uint64, i int) bool {
	mem := w.shard.mem
	free, last := noPage, noPage
	base := mem.page(page).base
	for id := page; id != noPage; {
		pg := mem.page(id)
		if pg.base != base {
			break
		}
		switch {
		case pg.any()>>bit&1 == 0:
			if free == noPage {
				free = id
			}
		case pg.engineHashes[bit] == engineHash:
			w.refs[i] = id*pageBlocks + uint32(bit)
			if pg.held[w.tier]>>bit&1 != 0 {
				w.addCopy(engineHash, w.tier)
			}
			pg.held[w.tier] |= 1 << bit
			pg.storedAt = uint16(w.stores.Load())
			return true
		}
		last, id = id, pg.next
	}
	if free == noPage {
		free = w.newPage(mem.page(page).node, int(base), last, head)
		if free == noPage {
			return false
		}
	}
	w.fillFree(free, bit, []uint64{engineHash}, i)
	return true
}

// newPage inserts an empty page into the slot's list of a node, after another page or, for noPage, at the front.
func (w *writer) newPage(id uint32, base int, before uint32, head *uint32) uint32 {
	mem := w.shard.mem
	page := w.takePage()
	if page == noPage {
		return noPage
	}
	pg := mem.page(page)
	pg.node, pg.base, pg.held = id, uint16(base), [Tiers]uint16{}
	pg.prev = before
	if before == noPage {
		pg.next, *head = *head, page
	} else {
		b := mem.page(before)
		pg.next, b.next = b.next, page
	}
	if pg.next != noPage {
		mem.page(pg.next).prev = page
	}
	return page
}

// seek finds the first page of a base in a list, starting at the page near, or at the head if near is noPage. If there is none,
// it returns the page after which it belongs (noPage: at the front).
func (m *space) seek(head, near uint32, base int) (page, before uint32) {
	at := near
	if at == noPage || int(m.page(at).base) > base {
		at = head
		if at == noPage || int(m.page(at).base) > base {
			return noPage, noPage
		}
	}
	for { // invariant: at.base <= base
		pg := m.page(at)
		if int(pg.base) == base {
			return m.firstAt(at), noPage
		}
		if pg.next == noPage || int(m.page(pg.next).base) > base {
			return noPage, at
		}
		at = pg.next
	}
}

// release removes blocks of one node from some tiers (one bit each). It sets to noRef the references of blocks that the slot
// still holds elsewhere, and of blocks that it did not hold in these tiers; unknown counts the latter.
func (s *slot) release(refs []uint32, tiers uint8) (unknown int) {
	mem := s.x.mem
	id := mem.page(refs[0] / pageBlocks).node
	sh := s.x.shardOfNode(id)
	sh.lock.Lock()
	nd := sh.node(id)
	res, head := mem.residencyOf(nd, blocksOf(s.id))
	all, onGPU := removed{low: maxNodeBlocks}, removed{low: maxNodeBlocks} // what the slot no longer holds, in any tier and on the GPU
	top := -1                                                              // last offset in all
	for i, ref := range refs {
		pageID, bit := ref/pageBlocks, ref%pageBlocks
		pg := mem.page(pageID)
		wasOnGPU := tiers&(1<<GPU) != 0 && pg.held[GPU]>>bit&1 != 0
		var was uint16
		for k := range pg.held {
			if tiers>>k&1 != 0 {
				was |= pg.held[k]
				pg.held[k] &^= 1 << bit
			}
		}
		if was>>bit&1 == 0 {
			unknown++
			refs[i] = noRef
			continue
		}
		left, offset := pg.any(), int(pg.base)+int(bit)
		held, gpu, _, _ := mem.heldAt(mem.firstAt(pageID))
		if wasOnGPU && gpu>>bit&1 == 0 {
			onGPU.add(res.gpu(), offset)
		}
		if wasOnGPU && s.groups != nil {
			s.syncEntry(sh, nd, pageID, int(bit), false)
		}
		if left>>bit&1 != 0 {
			refs[i] = noRef
			continue
		}
		s.unhold(pageID, 1<<bit)
		if left == 0 {
			unlink(mem, pg, head)
			s.freePage(pageID)
		}
		if held>>bit&1 != 0 { // the same content under another engine hash
			continue
		}
		all.add(res.held(), offset)
		top = max(top, offset)
	}
	if *head == noPage {
		s.dropResidency(sh, nd)
	} else {
		*res = newResidency(blocksOf(s.id), res.held().cut(all), res.gpu().cut(onGPU))
	}
	parent := uint32(root)
	if top+1 == nd.length() {
		parent = sh.trim(id)
	}
	sh.lock.Unlock()
	s.x.childGone(parent)
	return unknown
}

// unlink removes a page from its list. The page's own links stay, so that an iteration can continue from it.
func unlink(m *memory, pg *page, head *uint32) {
	if pg.prev == noPage {
		*head = pg.next
	} else {
		m.page(pg.prev).next = pg.next
	}
	if pg.next != noPage {
		m.page(pg.next).prev = pg.prev
	}
}

// evictNode removes all of the slot's blocks of one node; the caller updates the table.
func (s *slot) evictNode(id uint32) {
	sh := s.x.shardOfNode(id)
	sh.lock.Lock()
	nd := sh.node(id)
	_, head := sh.mem.residencyOf(nd, blocksOf(s.id))
	for page := *head; page != noPage; {
		next := sh.mem.page(page).next
		s.freePage(page)
		page = next
	}
	s.dropResidency(sh, nd)
	parent := sh.trim(id)
	sh.lock.Unlock()
	s.x.childGone(parent)
}
