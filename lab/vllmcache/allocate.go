package vllmcache

import "slices"

// skipped returns how many of a group's leading blocks a request no longer needs once that many of its tokens are computed
// (get_num_skipped_tokens).
func (g *Group) skipped(computed int) int {
	switch g.Kind {
	case Window:
		computed -= g.Window - 1
	case Chunk:
		computed = computed / g.Window * g.Window
	case State:
		computed--
	default:
		return 0
	}
	return max(0, computed) / g.BlockSize
}

// Allocate gives a request blocks for its next n tokens, and stores what is whole then (allocate_slots). hit is what Find found for a
// request that has no blocks yet, else nil. It returns false, and does nothing, if there are too few free blocks.
func (c *Cache[H, C]) Allocate(r *Request[H], hit *Hit, n int) bool {
	if r.rows == nil {
		r.rows = make([]row, len(c.o.Groups))
		for i := range r.rows {
			r.rows[i].last = -1
		}
	}
	computed := r.Computed
	if hit != nil {
		computed += hit.Tokens
		r.Junction = hit.Junction
		if c.need(r, hit, computed, r.Tokens, true) > c.free {
			return false
		}
	}
	for i := range r.rows {
		c.retire(&c.o.Groups[i], &r.rows[i], computed)
	}
	if c.need(r, hit, computed, computed+n, false) > c.free {
		return false
	}
	if hit != nil {
		for i := range r.rows {
			at := &r.rows[i]
			skipped := c.o.Groups[i].skipped(computed)
			found := hit.rows[i][min(skipped, len(hit.rows[i])):]
			c.touch(found)
			at.blocks = append(make([]int32, skipped), found...)
			at.stored = len(at.blocks)
		}
		r.running = true
	}
	for i := range r.rows {
		c.extend(&c.o.Groups[i], &r.rows[i], computed+n)
	}
	r.Computed = computed + n
	for i := range r.rows {
		c.store(r, i)
	}
	return true
}

// need counts the free blocks that Allocate would take; with whole, for all of a request before it begins.
func (c *Cache[H, C]) need(r *Request[H], hit *Hit, computed, tokens int, whole bool) (n int) {
	for i, g := range c.o.Groups {
		var found []int32
		if hit != nil {
			found = hit.rows[i]
		}
		at, required := &r.rows[i], ceil(tokens, g.BlockSize)
		switch {
		case g.Kind == State:
			if n := len(found); n > 0 && len(c.blocks[found[n-1]].keys) > 0 && c.fresh[c.blocks[found[n-1]].keys[0]] {
				return len(c.blocks) + 1 // the state is not there before the next step
			}
			n += min(1, max(0, required-len(found)-len(at.blocks)))
		case r.running:
			n += max(0, required-len(at.blocks))
		default:
			if most := c.mostBlocks(&g); whole && most > 0 {
				required = min(required, most)
			}
			skipped := g.skipped(computed)
			n += max(0, required-max(skipped, len(found)))
			found = found[min(skipped, len(found)):]
		}
		for _, id := range found {
			if id != 0 && c.blocks[id].users == 0 {
				n++
			}
		}
	}
	return n
}

// mostBlocks is what a request ever holds of a group that gives blocks back as it goes (max_admission_blocks_per_request); 0: all.
func (c *Cache[H, C]) mostBlocks(g *Group) int {
	switch {
	case c.o.Step == 0:
		return 0
	case g.Kind == Window:
		return ceil(g.Window-1+c.o.Step, g.BlockSize) + 1
	case g.Kind == Chunk:
		return ceil(g.Window+c.o.Step, g.BlockSize)
	}
	return 0
}

// retire gives back a group's blocks that are needed no more (remove_skipped_blocks).
func (c *Cache[H, C]) retire(g *Group, at *row, computed int) {
	last := min(g.skipped(computed), len(at.blocks))
	var free []int32
	for i := last - 1; i >= at.retired; i-- {
		if at.blocks[i] != 0 {
			free = append(free, at.blocks[i])
			at.blocks[i] = 0
		} else if g.Kind != State {
			break
		}
	}
	c.giveBack(free)
	if g.Kind != State {
		return
	}
	at.retired = max(at.retired, last)
	if at.last >= 0 && at.last < ceil(computed, g.BlockSize)-1 && at.blocks[at.last] != 0 {
		c.giveBack([]int32{at.blocks[at.last]})
		at.blocks[at.last] = 0
	}
}

// extend gives a row the blocks of its first tokens (allocate_new_blocks). A step computes one state, at its end.
func (c *Cache[H, C]) extend(g *Group, at *row, tokens int) {
	required, have := ceil(tokens, g.BlockSize), len(at.blocks)
	if g.Kind != State {
		at.blocks = c.take(at.blocks, max(0, required-have))
		return
	}
	if required > have {
		if at.steps || have > 0 {
			at.last = have - 1
		}
		at.blocks = append(at.blocks, make([]int32, required-1-have)...)
		at.blocks = c.take(at.blocks, 1)
	}
	at.steps = true
}

// store makes a group's blocks that are whole findable (cache_blocks), those that it keeps, and tells of all of them in one event.
func (c *Cache[H, C]) store(r *Request[H], group int) {
	g, at := &c.o.Groups[group], &r.rows[group]
	tokens := r.Computed / c.align * c.align
	from, to := at.stored, tokens/g.BlockSize
	kept := []int{}
	tell := func(to int) {
		if to > from {
			c.Tell(Event[H]{Stored: true, Group: group, Request: r, From: from * g.BlockSize, To: to * g.BlockSize, Size: g.BlockSize, Kept: kept})
		}
	}
	for i := at.stored; i < to; i++ {
		if at.blocks[i] == 0 || !c.keeps(g, r, i) {
			continue
		}
		hash, _ := c.end(r, g.BlockSize, i+1)
		key := Key[H]{group, hash}
		if c.o.Once && c.held[key] != nil {
			tell(i)
			from, kept = i+1, []int{}
		} else {
			kept = append(kept, i)
		}
		c.insert(key, at.blocks[i], r, i*g.BlockSize, (i+1)*g.BlockSize)
		if g.Kind == State {
			c.fresh[key] = true
		}
	}
	tell(to)
	at.stored = max(at.stored, to)
	// A prompt's end within a block of several hashes can be found too (_cache_partial_tail_block), though no hit ends there.
	end := (r.Prompt - 1) / c.unit * c.unit
	if g.Kind != Full || end <= 0 || end > tokens || end%g.BlockSize == 0 {
		return
	}
	key, id := Key[H]{group, r.Hashes[end/c.unit-1]}, at.blocks[end/g.BlockSize]
	if h := c.held[key]; id != 0 && (h == nil || !slices.Contains(h.Blocks, id)) {
		c.insert(key, id, r, end-c.unit, end)
		c.Tell(Event[H]{Stored: true, Group: group, Request: r, From: end - c.unit, To: end, Size: c.unit, Kept: []int{end/c.unit - 1}})
	}
}

func (c *Cache[H, C]) insert(key Key[H], id int32, r *Request[H], from, to int) {
	h := c.held[key]
	if h == nil {
		h = &Held[C]{Content: c.Content(r, from, to)}
		c.held[key] = h
	}
	h.Blocks = append(h.Blocks, id)
	c.blocks[id].keys = append(c.blocks[id].keys, key)
}

// keeps reports whether a group keeps the i-th block of a request (reachable_block_mask): windows and states keep what a request can
// resume at that repeats this prompt, or that parts from it where one was seen to part, and what Retention adds.
func (c *Cache[H, C]) keeps(g *Group, r *Request[H], i int) bool {
	need := 1
	switch g.Kind {
	case Full, Chunk:
		return true
	case Window:
		need = ceil(g.Window-1, g.BlockSize)
	}
	segment := c.o.Retention
	if segment == Dense {
		segment = c.align
		if g.Kind == State {
			return true
		}
	}
	if segment > 0 {
		if per := segment / g.BlockSize; need >= per || i%per >= per-need {
			return true
		}
	}
	for _, at := range []int{r.Prompt - 1, r.Junction} {
		if end := at / c.align * c.align / g.BlockSize; c.o.Retention != Dense && i >= end-need && i < end {
			return true
		}
	}
	return false
}

// Chunk returns how many of its next n tokens, after start, a request computes in one step: a step ends where a state is to be kept
// (Scheduler._mamba_block_aligned_split).
func (c *Cache[H, C]) Chunk(r *Request[H], start, junction, n int) int {
	end, prefill := start+n, max(r.Prompt, r.Tokens-1)
	if c.state == 0 || start >= prefill {
		return n
	}
	if end < prefill {
		if aligned := end / c.state * c.state; aligned > start || c.o.Step == 0 || c.state <= c.o.Step {
			end = aligned
		}
	}
	stops := []int{(r.Tokens - 1) / c.state * c.state, start + (junction-start)/c.state*c.state}
	if junction <= start || junction >= end {
		stops[1] = 0
	}
	if start%c.state != 0 {
		stops = append(stops, (start/c.state+1)*c.state)
	}
	for _, stop := range stops {
		if start < stop && stop < end {
			end = stop
		}
	}
	return max(0, end-start)
}
