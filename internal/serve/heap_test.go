package serve

import (
	"runtime"
	"testing"
	"time"
)

func TestGCPercent(t *testing.T) {
	const mb = 1 << 20
	for live, want := range map[uint64]int{0: 100, 40 * mb: 100, 300 * mb: 20, 2100 * mb: 5} {
		if got := gcPercent(live); got != want {
			t.Errorf("live %d MB: %d percent, want %d", live/mb, got, want)
		}
	}
}

func TestCollectionsAreTold(t *testing.T) {
	collected := make(chan struct{}, 1)
	tellCollections(t.Context(), collected)
	for range 3 {
		runtime.GC()
		select {
		case <-collected:
		case <-time.After(10 * time.Second):
			t.Fatal("a collection was not told of")
		}
	}
}
