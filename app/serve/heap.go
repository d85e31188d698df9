package serve

import (
	"context"
	"io/fs"
	"math"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
)

const (
	// maxGarbage is the approximate limit of garbage in the heap; with more than 1.3 GB of live data it is a twentieth of that.
	maxGarbage = 64 << 20
	// leastGarbage is the limit while much more is live than usual, such as what large bodies become while they are read. It is
	// higher with more than 128 MiB of live data with pointers: a collection would cost too much for what it frees.
	leastGarbage = 16 << 20
	// usualTime is for how long data must be live to be usual.
	usualTime = 10 * time.Minute
)

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
	notifyCollections(ctx, collected)
	heap := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/heap:bytes"}}
	var p pace
	for {
		metrics.Read(heap)
		if want := p.percent(heap[0].Value.Uint64(), heap[1].Value.Uint64(), time.Now()); want != now { // setting it stops the world briefly
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

// notifyCollections sends after each collection, until ctx ends. The runtime does not report collections, but runs the finalizers
// of unreachable objects.
func notifyCollections(ctx context.Context, collected chan<- struct{}) {
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

// pace decides how much garbage there may be.
type pace struct {
	least, before uint64 // the least live bytes since began, and in the usualTime before
	began         time.Time
}

// percent returns how far the heap may grow after a collection, in percent of the live data, a multiple of five. scanned is how
// much of the live data a collection reads, in bytes: what has pointers.
func (p *pace) percent(live, scanned uint64, now time.Time) int {
	live = max(live, 1)
	if now.Sub(p.began) >= usualTime {
		p.before = p.least
		if p.began.IsZero() {
			p.before = live
		}
		p.least, p.began = live, now
	}
	p.least = min(p.least, live)
	unusual := min((live-min(p.least, p.before, live))/2, maxGarbage-leastGarbage)
	garbage := max(maxGarbage-unusual, min(scanned/8, maxGarbage))
	return int(min(100, max(5, garbage*100/live/5*5)))
}

// capMemory makes the collector keep the process below the memory limit of its control group, if any: at four fifths of it, since
// buffers outside of the heap and stacks need the rest. If the operator sets GOMEMLIMIT, that is kept.
func capMemory(log *zap.Logger) {
	limit := cgroupLimit(os.DirFS("/"))
	if limit == 0 || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetMemoryLimit(limit / 5 * 4)
	log.Info("the garbage collector keeps the process below its control group's memory limit", zap.Int64("bytes", limit/5*4))
}

// cgroupLimit returns the lowest memory limit of the process's control group and its ancestors, version 2 or 1, in bytes; 0:
// none.
func cgroupLimit(root fs.FS) int64 {
	const unlimited = 1 << 50 // version 1 reports that as a number near 1 << 63
	least := int64(math.MaxInt64)
	groups, _ := fs.ReadFile(root, "proc/self/cgroup") // lines such as 0::/a/b or 4:memory:/a/b
	for line := range strings.Lines(string(groups)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) < 3 {
			continue
		}
		top, file := "sys/fs/cgroup", "memory.max"
		if parts[1] != "" {
			top, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
			if !slices.Contains(strings.Split(parts[1], ","), "memory") {
				continue
			}
		}
		for at := path.Join(top, path.Clean("/"+parts[2])); len(at) >= len(top); at = path.Dir(at) { // in a container the lower ones do not exist
			text, _ := fs.ReadFile(root, path.Join(at, file))
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 && n < unlimited {
				least = min(least, n)
			}
		}
	}
	if least == math.MaxInt64 {
		return 0
	}
	return least
}
