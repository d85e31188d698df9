package serve

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// mostGarbage is about how much garbage lies about at most, however much lives; beside more than 1.3 GB a twentieth of that.
const mostGarbage = 64 << 20

// paceHeap bounds the garbage. The collector waits until the heap has grown by GOGC percent of what lives in it: 2 GiB of index,
// or of bodies that are large on purpose, would be followed by 2 GiB of garbage. So the percentage falls as that grows, after each
// collection. The index is no work for the collector, as its pages hold no pointers. An operator who sets GOGC is obeyed.
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
		if want := gcPercent(live[0].Value.Uint64()); want != now { // setting it stops the world for a moment
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

// tellCollections sends after each collection, until ctx ends: the runtime tells of none, but it finalizes what nobody holds.
func tellCollections(ctx context.Context, collected chan<- struct{}) {
	type sentinel struct{ _ *sentinel } // with a pointer, so that it gets a place of its own
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

// gcPercent is how far, in steps of five percent of what lives, the heap may grow.
func gcPercent(live uint64) int {
	return int(min(100, max(5, mostGarbage*100/max(live, 1)/5*5)))
}
