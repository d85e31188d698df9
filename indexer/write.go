package indexer

// writer puts one slice of a stored event into a tree. All of it runs under the shard's write lock; the holder's table is
// filled afterwards.
type writer struct {
	*holder
	tree  *tree
	tier  Tier
	fresh int // how many of holder.fresh are blocks whose handle is new on its sheet
}

// place walks from a block (or the front) along the stems, opening new ones where the content is new, and notes every
// block on the holder's sheets. holder.refs gets the references. It gives the number of blocks that found room.
func (w *writer) place(at uint32, handles, locals []uint64) int {
	t := w.tree
	stem, off, near := uint32(root), 0, noSheet
	if at != noRef {
		near = at / sheetBlocks
		s := t.mem.sheet(near)
		stem, off = s.stem&(1<<stemBits-1), int(s.base)+int(at%sheetBlocks)+1
	}
	done := 0
	for done < len(locals) {
		rest := locals[done:]
		n := 0
		if stem != root {
			run := *t.at(stem)
			st := t.mem.record(run)
			end := st.length()
			if off < end {
				n = common(t.mem.hashes(run, end)[off:], rest)
			} else if st.children == 0 || int(st.lastChild) < end {
				n = t.append(stem, rest) // nothing hangs at the end
			}
		}
		if n == 0 {
			next := uint32(root)
			if run := t.child(stem, off, rest); run != 0 {
				next = t.mem.record(run).id
			} else {
				next = t.newStem(stem, off, rest[:min(len(rest), maxStem)])
			}
			if next == root {
				break
			}
			stem, off, near = next, 0, noSheet
			continue
		}
		got := w.sit(stem, off, near, handles[done:done+n], done)
		done += got
		if got < n {
			t.trim(stem)
			break
		}
		near = w.refs[done-1] / sheetBlocks
		off += n
	}
	return done
}

// sit notes a row of blocks of one stem as held by the holder: on its sheets, and in its seat.
func (w *writer) sit(id uint32, off int, near uint32, handles []uint64, first int) int {
	t := w.tree
	st := t.stem(id)
	seat, head := t.mem.seatOf(st, w.id)
	if seat == nil {
		if seat, head = t.runs.addSeat(st, w.id); seat == nil {
			return 0
		}
	}
	n := 0
	for n < len(handles) {
		base := (off + n) &^ (sheetBlocks - 1)
		bit := off + n - base
		k := min(sheetBlocks-bit, len(handles)-n)
		sheet, before := t.mem.seek(*head, near, base)
		if sheet == noSheet {
			if sheet = w.newSheet(id, base, before, head); sheet == noSheet {
				break
			}
			s := t.mem.sheet(sheet)
			copy(s.handles[bit:], handles[n:n+k])
			s.held[w.tier] = (1<<k - 1) << bit
			for i := range k {
				w.note(first+n+i, sheet, bit+i)
			}
		} else if got := w.fill(sheet, bit, head, handles[n:n+k], first+n); got < k {
			n += got
			break
		}
		near = sheet
		n += k
	}
	if n > 0 {
		if next, ok := seat.stored(off, off+n, w.tier); ok {
			*seat = next
		} else {
			*seat = t.mem.seatFrom(w.id, *head)
		}
	} else if *head == noSheet {
		t.runs.dropSeat(st, w.id)
	}
	return n
}

func (w *writer) note(i int, sheet uint32, bit int) {
	w.refs[i] = sheet*sheetBlocks + uint32(bit)
	w.holder.fresh[w.fresh] = uint16(i)
	w.fresh++
}

// fill notes blocks where the holder has a sheet for them already.
func (w *writer) fill(sheet uint32, bit int, head *uint32, handles []uint64, first int) int {
	mem := w.tree.mem
	s := mem.sheet(sheet)
	if alone := s.next == noSheet || mem.sheet(s.next).base != s.base; alone && s.any()>>bit&(1<<len(handles)-1) == 0 {
		copy(s.handles[bit:], handles)
		s.held[w.tier] |= (1<<len(handles) - 1) << bit
		for i := range handles {
			w.note(first+i, sheet, bit+i)
		}
		return len(handles)
	}
	for i, handle := range handles {
		if !w.fillOne(sheet, bit+i, head, handle, first+i) {
			return i
		}
	}
	return len(handles)
}

// fillOne looks through all sheets of one base: for the handle, then for a free slot; else it adds a sheet.
func (w *writer) fillOne(sheet uint32, bit int, head *uint32, handle uint64, i int) bool {
	mem := w.tree.mem
	free, last := noSheet, noSheet
	base := mem.sheet(sheet).base
	for id := sheet; id != noSheet; {
		s := mem.sheet(id)
		if s.base != base {
			break
		}
		switch {
		case s.any()>>bit&1 == 0:
			if free == noSheet {
				free = id
			}
		case s.handles[bit] == handle:
			w.refs[i] = id*sheetBlocks + uint32(bit)
			if s.held[w.tier]>>bit&1 != 0 {
				w.addCopy(handle, w.tier)
			}
			s.held[w.tier] |= 1 << bit
			return true
		}
		last, id = id, s.next
	}
	if free == noSheet {
		if free = w.newSheet(mem.sheet(sheet).stem&(1<<stemBits-1), int(base), last, head); free == noSheet {
			return false
		}
	}
	s := mem.sheet(free)
	s.handles[bit] = handle
	s.held[w.tier] |= 1 << bit
	w.note(i, free, bit)
	return true
}

// newSheet puts an empty sheet into the holder's list for a stem, behind another or at the front.
func (w *writer) newSheet(id uint32, base int, before uint32, head *uint32) uint32 {
	mem := w.tree.mem
	sheet := w.takeSheet()
	if sheet == noSheet {
		return noSheet
	}
	s := mem.sheet(sheet)
	s.stem, s.base, s.held = w.tree.id<<stemBits|id, uint16(base), [Tiers]uint16{}
	s.prev = before
	if before == noSheet {
		s.next, *head = *head, sheet
	} else {
		b := mem.sheet(before)
		s.next, b.next = b.next, sheet
	}
	if s.next != noSheet {
		mem.sheet(s.next).prev = sheet
	}
	return sheet
}

// seek finds the first sheet of a base in a list, from a sheet that is near (noSheet: from the head). Where there is
// none, it gives the sheet to put it behind (noSheet: at the front).
func (m *memory) seek(head, near uint32, base int) (sheet, before uint32) {
	at := near
	if at == noSheet || int(m.sheet(at).base) > base {
		if at = head; at == noSheet || int(m.sheet(at).base) > base {
			return noSheet, noSheet
		}
	}
	for { // at.base <= base
		s := m.sheet(at)
		if int(s.base) == base {
			for s.prev != noSheet && int(m.sheet(s.prev).base) == base {
				at = s.prev
				s = m.sheet(at)
			}
			return at, noSheet
		}
		if s.next == noSheet || int(m.sheet(s.next).base) > base {
			return noSheet, at
		}
		at = s.next
	}
}

// release clears blocks of one stem from some tiers (a bit each). References that stay held elsewhere, or were not held
// there, are struck out of refs; the latter are counted.
func (t *tree) release(h *holder, refs []uint32, tiers uint8) (unknown int) {
	mem := t.mem
	id := mem.sheet(refs[0]/sheetBlocks).stem & (1<<stemBits - 1)
	st := t.stem(id)
	seat, head := mem.seatOf(st, h.id)
	all := seat.all()
	low, top, front := maxStem, -1, 0 // places that nothing of the holder's holds any more: lowest, highest, how many leading
	retold := false                   // only the sheets can tell what the seat is now
	for i, ref := range refs {
		sheetID, bit := ref/sheetBlocks, ref%sheetBlocks
		s := mem.sheet(sheetID)
		var was uint16
		for k := range s.held {
			if tiers>>k&1 != 0 {
				was |= s.held[k]
				s.held[k] &^= 1 << bit
			}
		}
		if was>>bit&1 == 0 {
			unknown++
			refs[i] = noRef
			continue
		}
		left := s.any()
		if left>>bit&1 != 0 {
			refs[i], retold = noRef, true
			continue
		}
		near := mem.heldNear(s, bit)
		if left == 0 {
			unlink(mem, s, head)
			h.giveSheet(sheetID)
		}
		if near {
			retold = true
			continue
		}
		place := int(s.base) + int(bit)
		low, top = min(low, place), max(top, place)
		if place < all {
			front++
		}
	}
	switch {
	case *head == noSheet:
		t.runs.dropSeat(st, h.id)
	case retold:
		*seat = mem.seatFrom(h.id, *head)
	case low < all:
		*seat = seat.cut(low, front)
	}
	if top+1 == st.length() {
		t.trim(id)
	}
	return unknown
}

// heldNear says whether another sheet of the same base holds the block.
func (m *memory) heldNear(s *sheet, bit uint32) bool {
	for id := s.prev; id != noSheet; {
		p := m.sheet(id)
		if p.base != s.base {
			break
		}
		if p.any()>>bit&1 != 0 {
			return true
		}
		id = p.prev
	}
	for id := s.next; id != noSheet; {
		n := m.sheet(id)
		if n.base != s.base {
			break
		}
		if n.any()>>bit&1 != 0 {
			return true
		}
		id = n.next
	}
	return false
}

// unlink takes a sheet out of its list; its own links stay as they were.
func unlink(m *memory, s *sheet, head *uint32) {
	if s.prev == noSheet {
		*head = s.next
	} else {
		m.sheet(s.prev).next = s.next
	}
	if s.next != noSheet {
		m.sheet(s.next).prev = s.prev
	}
}

// evict takes all of a holder's blocks of one stem away, but not out of the holder's table.
func (t *tree) evict(h *holder, id uint32) {
	st := t.stem(id)
	_, head := t.mem.seatOf(st, h.id)
	for sheet := *head; sheet != noSheet; {
		next := t.mem.sheet(sheet).next
		h.giveSheet(sheet)
		sheet = next
	}
	t.runs.dropSeat(st, h.id)
	t.trim(id)
}
