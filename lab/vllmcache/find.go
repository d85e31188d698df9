package vllmcache

// What is found of a prompt (kv_cache_coordinator.py, find_longest_cache_hit): a candidate length is shortened by each kind of group
// in turn until none shortens it.

// Find returns how much of a request's prompt, at most `most` tokens, can be taken from the cache.
func (c *Cache[H, C]) Find(r *Request[H], most int) *Hit {
	return c.find(r, most, make([][]int32, len(c.o.Groups)))
}

// Found returns how many tokens Find would find.
func (c *Cache[H, C]) Found(r *Request[H], most int) int { return c.find(r, most, nil).Tokens }

func (c *Cache[H, C]) find(r *Request[H], most int, rows [][]int32) *Hit {
	hit := &Hit{Tokens: most, rows: rows}
	once, lengths, longest := make([]bool, len(c.specs)), make([]int, len(c.specs)), 0
	for {
		length := hit.Tokens
		for i, spec := range c.specs {
			full := c.o.Groups[spec[0]].Kind == Full
			if full && once[i] {
				length = min(length, lengths[i])
				continue
			}
			length = c.findIn(r, spec, length, hit.rows)
			once[i], lengths[i], longest = true, length, max(longest, length)
		}
		if length >= hit.Tokens {
			break
		}
		hit.Tokens = length
		if len(c.specs) == 2 && c.o.Groups[c.specs[0][0]].Kind == Full {
			break // the engine takes the second group's word
		}
	}
	for g, row := range hit.rows {
		if kind := c.o.Groups[g]; kind.Kind == Full {
			hit.rows[g] = row[:min(len(row), ceil(hit.Tokens, kind.BlockSize))]
		}
	}
	if longest > hit.Tokens {
		hit.Junction = longest
	}
	return hit
}

func ceil(a, b int) int { return (a + b - 1) / b }

// end returns the hash after n blocks of a group.
func (c *Cache[H, C]) end(r *Request[H], size, n int) (h H, ok bool) {
	if at := n*size/c.unit - 1; at >= 0 && at < len(r.Hashes) {
		return r.Hashes[at], true
	}
	return h, false
}

// cached reports whether all groups of a spec hold the n-th block.
func (c *Cache[H, C]) cached(r *Request[H], spec []int, n int) bool {
	h, ok := c.end(r, c.o.Groups[spec[0]].BlockSize, n)
	for i := 0; ok && i < len(spec); i++ {
		ok = c.held[Key[H]{spec[i], h}] != nil
	}
	return ok
}

// findIn returns the longest prefix, up to most tokens, that the groups of a spec accept, and puts the blocks that they need, the
// oldest copies, into their rows, if there are rows.
func (c *Cache[H, C]) findIn(r *Request[H], spec []int, most int, rows [][]int32) (tokens int) {
	g := c.o.Groups[spec[0]]
	size, n, from := g.BlockSize, 0, 0 // blocks [from, n) are needed
	most /= size
	switch g.Kind {
	case Full:
		for n < most && c.cached(r, spec, n+1) {
			n++
		}
		n -= n * size % c.align / size
	case Chunk:
		from = most * size / g.Window * g.Window / size
		for n = from; n < most && c.cached(r, spec, n+1); {
			n++
		}
	case State:
		for n = most; n > 0 && (n*size%c.align != 0 || !c.cached(r, spec, n)); {
			n--
		}
		from = max(0, n-1)
	case Window:
		need, row := ceil(g.Window-1, size), 0
		for from = most; from > 0 && row < need; from-- {
			if !c.cached(r, spec, from) {
				row = 0
			} else if row > 0 || from*size%c.align == 0 {
				row++
			}
		}
		n = from + row
		n -= n * size % c.align / size
	}
	for _, group := range spec {
		if rows == nil {
			break
		}
		rows[group] = make([]int32, n)
		for i := from; i < n; i++ {
			h, _ := c.end(r, size, i+1)
			rows[group][i] = c.held[Key[H]{group, h}].Blocks[0]
		}
	}
	return n * size
}

// TellAgain tells of all blocks of a hit as if they were stored now (vLLM's kv_cache_report_mode "full").
func (c *Cache[H, C]) TellAgain(r *Request[H], hit *Hit) {
	for group, row := range hit.rows {
		size, kept := c.o.Groups[group].BlockSize, make([]int, len(row))
		for i := range kept {
			kept[i] = i
		}
		if len(row) > 0 {
			c.Tell(Event[H]{Stored: true, Group: group, Request: r, To: len(row) * size, Size: size, Kept: kept})
		}
	}
}
