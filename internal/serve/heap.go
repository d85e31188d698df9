package serve

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// mostGarbage is the approximate limit of garbage in the heap; with more than 1.3 GB of live data it is a twentieth of that.
const mostGarbage = 64 << 20

// paceHeap limits the garbage. The collector waits until the heap has grown by GOGC percent of the live data: 2 GiB of index, or
// of large bodies, would be followed by 2 GiB of garbage. So the percentage is lowered as the live data grows, after each
// collection. The index is no work for the collector, since its pages hold no pointers. If the operator sets GOGC, that is kept.
func paceHeap(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	const usual = 100
	now := usual
	defer debug.SetGCPercent(usual)
	collected := make(chan struct{}, 1)
	tellCollections(ctx, collected)
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	for {
		metrics.Read(live)
		if want := gcPercent(live[0].Value.Uint64()); want != now { // setting it stops the world briefly
			debug.SetGCPercent(want)
			now = want
		}
		select {
		case <-ctx.Done():
			return
		case <-collected:
		}
	}
}

// tellCollections sends after each collection, until ctx ends. The runtime does not report collections, but runs the finalizers
// of unreachable objects.
func tellCollections(ctx context.Context, collected chan<- struct{}) {
	type sentinel struct{ _ *sentinel } // with a pointer, so that it gets an allocation of its own
	var again func(*sentinel)
	again = func(s *sentinel) {
		if ctx.Err() != nil {
			return
		}
		select {
		case collected <- struct{}{}:
		default:
		}
		runtime.SetFinalizer(s, again)
	}
	runtime.SetFinalizer(&sentinel{}, again)
}

// gcPercent returns how far the heap may grow, in percent of the live data, a multiple of five.
func gcPercent(live uint64) int {
	return int(min(100, max(5, mostGarbage*100/max(live, 1)/5*5)))
}
