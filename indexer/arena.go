package indexer

// Memory comes from the heap in arenas: one of 8 MiB that New makes, then 16 MiB at once, so that most of an arena can lie
// on huge pages. Where memory is fresh, its first touch is what costs most: the kernel must find and clear the page, in
// the middle of somebody's store (half the time of a small index's first fill). So an arena is made ready ahead, by a
// goroutine that touches every page and ends: at New, and whenever little is left. Price: up to 16 MiB more than is in use.
const (
	firstChunks = 4
	arenaChunks = 8
	fewSlabs    = chunkSlabs // time to make the next arena ready
)

// takeArena gives the next arena; m.mu is held.
func (m *memory) takeArena() []chunk {
	arena := m.ahead
	if m.ahead = nil; len(arena) == 0 {
		arena = newArena(min(max(1, min(m.count, arenaChunks)), m.limit-m.count))
	}
	return arena
}

// getReady has an arena of n chunks prepared, if there is none and the limit allows one; m.mu is held.
func (m *memory) getReady(n int) {
	if n = min(n, m.limit-m.count); n > 0 && len(m.ahead) == 0 && !m.preparing {
		m.preparing = true
		go m.prepare(n)
	}
}

func (m *memory) prepare(n int) {
	a := newArena(n)
	const page = 4096 / 8
	for i := range a {
		for at := 0; at < chunkWords; at += page {
			a[i][at] = 0
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.preparing = false; n <= m.limit-m.count { // else the stores could not wait for it
		m.ahead = a
	}
}

func newArena(n int) []chunk {
	a := make([]chunk, n)
	adviseHuge(a)
	return a
}
