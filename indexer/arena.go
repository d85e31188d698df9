package indexer

// Memory comes from the heap in arenas: single chunks while the index is small (8 MiB), then 16 MiB at once, so that
// most of an arena can lie on huge pages. Where memory is fresh, its first touch is what costs most: the kernel must find
// and clear the page, in the middle of somebody's store. So one arena is always made ready ahead, by a goroutine that
// touches every page and ends. Price: up to 16 MiB more than is in use.
const (
	smallIndex  = 4 // chunks
	arenaChunks = 8
)

func newArena(n int) []chunk {
	a := make([]chunk, n)
	if n > 1 {
		adviseHuge(a)
	}
	return a
}

// takeArena gives the next arena; m.mu is held.
func (m *memory) takeArena() []chunk {
	n := 1
	if m.count >= smallIndex {
		n = arenaChunks
	}
	n = min(n, m.limit-m.count)
	arena := m.ahead
	m.ahead = nil
	if len(arena) != n {
		arena = newArena(n)
	}
	if left := m.limit - m.count - n; n == arenaChunks && left >= n && !m.preparing {
		m.preparing = true
		go m.prepare()
	}
	return arena
}

// prepare makes an arena ready to be used.
func (m *memory) prepare() {
	a := newArena(arenaChunks)
	const page = 4096 / 8
	for i := range a {
		for at := 0; at < chunkWords; at += page {
			a[i][at] = 0
		}
	}
	m.mu.Lock()
	m.ahead, m.preparing = a, false
	m.mu.Unlock()
}
