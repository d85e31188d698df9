package indexer

// Memory is allocated from the heap in arenas of 16 MiB, so that most of it can be on huge pages, and used chunk by chunk. The
// first touch of fresh memory is expensive: the kernel must find and clear the page in the middle of a store, which was half the
// time of a small index's first fill, and is a tenth to a quarter of a large one's. So a goroutine touches the next chunks ahead
// and then ends: firstChunks at New, aheadChunks later. The price is that much more memory than is in use.
const (
	arenaChunks = 8
	firstChunks = 4
	aheadChunks = 2
)

// takeChunk returns the next chunk, touched or not, and starts touching further ones; m.mu is held.
func (m *memory) takeChunk() *chunk {
	c, ok := pop(&m.ready)
	if !ok {
		c = m.freshChunk()
	}
	m.count.Add(1)
	if m.wants(aheadChunks) && !m.preparing {
		m.preparing = true
		go m.prepare(aheadChunks)
	}
	return c
}

// wants reports whether fewer than n chunks are ready and the limit allows another.
func (m *memory) wants(n int) bool { return len(m.ready) < min(n, m.allowed()-int(m.count.Load())) }

func (m *memory) freshChunk() *chunk {
	if len(m.arena) == 0 {
		m.arena = make([]chunk, arenaChunks)
		adviseHuge(m.arena)
	}
	c := &m.arena[0]
	m.arena = m.arena[1:]
	return c
}

// prepare touches chunks until n are ready. The chunk that it works on is in no list, so that needs no lock.
func (m *memory) prepare(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.wants(n) {
		c := m.freshChunk()
		m.mu.Unlock()
		for at := 0; at < chunkWords; at += 4096 / 8 { // one write for each page
			c[at] = 0
		}
		m.mu.Lock()
		if m.wants(n) {
			m.ready = append(m.ready, c)
		} else { // stores took other chunks meanwhile, up to the limit
			release(c)
		}
	}
	m.preparing = false
}
