package vllmcache

// What is found of a prompt (kv_cache_coordinator.py, find_longest_cache_hit): a candidate length is shortened by each kind of group
// in turn until none shortens it.

// Find returns how much of a request's prompt, at most so many tokens, can be taken from the cache.
func (c *Cache[H, C]) Find(r *Request[H], most int) *Hit {
	hit := &Hit{Tokens: most, rows: make([][]int32, len(c.o.Groups))}
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
		if hit.Tokens = length; len(c.specs) == 2 && c.o.Groups[c.specs[0][0]].Kind == Full {
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

// cached returns the oldest copies of the n-th block, which all groups of a spec must hold.
func (c *Cache[H, C]) cached(r *Request[H], spec []int, n int) []int32 {
	h, ok := c.end(r, c.o.Groups[spec[0]].BlockSize, n)
	if !ok {
		return nil
	}
	var ids []int32
	for _, g := range spec {
		held := c.held[Key[H]{g, h}]
		if held == nil {
			return nil
		}
		ids = append(ids, held.Blocks[0])
	}
	return ids
}

// findIn returns the longest prefix, up to most tokens, that the groups of a spec accept, and puts its blocks into their rows.
func (c *Cache[H, C]) findIn(r *Request[H], spec []int, most int, rows [][]int32) (tokens int) {
	g := c.o.Groups[spec[0]]
	size, n := g.BlockSize, 0
	found := make([][]int32, most/size) // by block, then by group of the spec; nil: the null block
	switch g.Kind {
	case Full:
		for n < len(found) {
			if found[n] = c.cached(r, spec, n+1); found[n] == nil {
				break
			}
			n++
		}
		for n*size%c.align != 0 {
			n--
		}
	case Chunk:
		for n = most / g.Window * g.Window / size; n < len(found); n++ {
			if found[n] = c.cached(r, spec, n+1); found[n] == nil {
				break
			}
		}
	case State:
		for n = len(found); n > 0; n-- {
			if n*size%c.align == 0 {
				if found[n-1] = c.cached(r, spec, n); found[n-1] != nil {
					break
				}
			}
		}
	case Window:
		need, row := ceil(g.Window-1, size), 0
		i := len(found) - 1
		for ; i >= 0; i-- {
			ids := c.cached(r, spec, i+1)
			if ids == nil {
				row = 0
				continue
			}
			if row == 0 && (i+1)*size%c.align != 0 {
				continue
			}
			found[i] = ids
			if row++; row >= need {
				break
			}
		}
		if n = row; i >= 0 {
			n = i + row
		}
		for n*size%c.align != 0 {
			n--
		}
	}
	for k, group := range spec {
		rows[group] = make([]int32, n)
		for i, ids := range found[:n] {
			if ids != nil {
				rows[group][i] = ids[k]
			}
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
