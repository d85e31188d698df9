package indexer

import "testing"

// TestReadyWithinTheLimit checks that memory touched ahead stays within the limit, even when stores take chunks faster than they
// are touched.
func TestReadyWithinTheLimit(t *testing.T) {
	const limit = 6
	m := &memory{limit: limit, preparing: true}
	m.prepare(firstChunks)
	if len(m.ready) != firstChunks || m.preparing {
		t.Fatalf("%d chunks ready, want %d", len(m.ready), firstChunks)
	}
	m.preparing = true // keeps the goroutine from touching more
	for n := 1; n <= limit; n++ {
		m.mu.Lock()
		ok := m.grow()
		m.mu.Unlock()
		if resident, _ := m.usage(); !ok || resident != max(int64(firstChunks), int64(n))*chunkBytes {
			t.Errorf("chunk %d: got %v, %d bytes resident, want true, %d", n, ok, resident, max(int64(firstChunks), int64(n))*chunkBytes)
		}
	}
	m.prepare(aheadChunks)
	if len(m.ready) > 0 || m.grow() {
		t.Errorf("got %d chunks ready beyond the limit, want none, and no more to be had", len(m.ready))
	}
	release(m.freshChunk()) // it is in no list
}
