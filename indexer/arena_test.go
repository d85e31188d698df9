package indexer

import "testing"

// TestReadyWithinTheLimit: memory touched ahead stays within the limit, also when stores take theirs faster than it is touched.
func TestReadyWithinTheLimit(t *testing.T) {
	const limit = 6
	m := &memory{limit: limit, preparing: true}
	if m.prepare(firstChunks); len(m.ready) != firstChunks || m.preparing {
		t.Fatalf("%d chunks ready, want %d", len(m.ready), firstChunks)
	}
	m.preparing = true // no goroutine touches more meanwhile
	for n := 1; n <= limit; n++ {
		m.mu.Lock()
		ok := m.grow()
		m.mu.Unlock()
		if resident, _ := m.usage(); !ok || resident != max(int64(firstChunks), int64(n))*chunkBytes {
			t.Errorf("chunk %d: %v, %d bytes resident", n, ok, resident)
		}
	}
	if m.prepare(aheadChunks); len(m.ready) > 0 || m.grow() {
		t.Errorf("%d chunks ready beyond the limit", len(m.ready))
	}
	release(m.freshChunk()) // it is in no list
}
