package serve

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/sightline-router/sightline/indexer"
)

const (
	heapEvery = 5 * time.Second
	// leastGarbage is how much garbage may lie about in any case: below, the collector would run for little.
	leastGarbage = 64 << 20
)

// paceHeap keeps the garbage small beside a large index. The collector waits until the heap has grown by GOGC percent of
// what lives in it, and the index lives there, though it makes no garbage: 2 GiB of it would be followed by 2 GiB of
// garbage. So the percentage falls as the index grows. Measured beside an index of 714 MB: the heap's peak is 775 to 920 MB,
// and was 1,470 to 1,490. An operator who sets GOGC is obeyed.
func paceHeap(ctx context.Context, ix *indexer.Index) {
	if os.Getenv("GOGC") != "" {
		return
	}
	const usual = 100
	now := usual
	defer debug.SetGCPercent(usual)
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	tick := time.NewTicker(heapEvery)
	defer tick.Stop()
	for {
		metrics.Read(live)
		if want := gcPercent(int64(live[0].Value.Uint64()), ix.Stats().Resident); want != now { // setting it stops the world for a moment
			debug.SetGCPercent(want)
			now = want
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// gcPercent is how far, in steps of five percent of what lives, the heap may grow: by what of it is not the index.
func gcPercent(live, index int64) int {
	live = max(live, index, 1)
	room := max(live-index, leastGarbage)
	return int(min(100, max(5, room*100/live/5*5)))
}
