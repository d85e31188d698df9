package mmhash

import (
	"sync/atomic"
	"testing"
)

// TestStoreIsBounded: beyond the bound one name is evicted for each new one, and counted.
func TestStoreIsBounded(t *testing.T) {
	var full atomic.Int64
	s, err := NewStore(100, func() { full.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		s.Put(ContentID{byte(i), byte(i >> 8)}, [32]byte{}, "name")
	}
	if n := s.names.Len(); n > 100 || full.Load() != int64(1000-n) {
		t.Errorf("%d names kept, %d went, want at most 100, %d", n, full.Load(), int64(1000-n))
	}
}
