package router

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// How many bodies are read at once is bounded by their bytes, in two lanes, so that a small request never waits behind a
// large one. Who finds its lane full waits a while, first come, first served; then it goes by load. A body is cleaned
// before it waits: a large one when a core is there for it, which takes no longer than sharing the cores would.
const (
	largeBody   = 256 << 10 // bytes from which a body is large: tens of milliseconds, if all of it is text
	laneBytes   = 4 << 20   // a core, the large lane's half of them; a larger body is read when its lane is empty
	readFactor  = 4         // a byte outside of long strings counts so often: it becomes values and parts of ten times its size
	mostWaiting = 1024      // of a lane; beyond, requests go by load at once
	longestWait = time.Second

	largeSkeleton = 64 << 10 // bytes of a skeleton that is not kept while its body waits
)

// lanes are the two, and the places of large bodies that are scanned and cleaned.
type lanes struct {
	small, large *lane
	scans        chan struct{}
}

func newLanes() *lanes {
	cores := runtime.GOMAXPROCS(0)
	return &lanes{small: newLane(laneBytes * cores), large: newLane(laneBytes * max(1, cores/2)), scans: make(chan struct{}, cores)}
}

// of is the lane of a body of n bytes, so many of them in its skeleton, what it weighs there, and the words for its being full.
func (l *lanes) of(n, skeleton int) (one *lane, weight int, busy string) {
	if n >= largeBody {
		return l.large, n + (readFactor-1)*skeleton, "too many large requests are being read"
	}
	return l.small, n, "too many requests are being read"
}

// scan waits until a body of n bytes may be scanned; done ends that.
func (l *lanes) scan(n int) (done func()) {
	if n < largeBody {
		return func() {}
	}
	l.scans <- struct{}{}
	return func() { <-l.scans }
}

// queued returns how many bodies wait in both lanes.
func (l *lanes) queued() int64 { return l.small.waiting.Load() + l.large.waiting.Load() }

// lane limits the bytes that are read at once.
type lane struct {
	room    int
	bytes   *semaphore.Weighted
	waiting atomic.Int64
}

func newLane(room int) *lane { return &lane{room: room, bytes: semaphore.NewWeighted(int64(room))} }

// try takes the turn of a body of n bytes if it need not wait.
func (l *lane) try(n int) bool { return l.bytes.TryAcquire(int64(min(n, l.room))) }

// take waits for the turn of a body of n bytes, for half of the time that is left at most; false: it did not come. Who
// got true must give the bytes back.
func (l *lane) take(ctx context.Context, n int) bool {
	if l.try(n) {
		return true
	}
	n = min(n, l.room)
	defer l.waiting.Add(-1)
	if l.waiting.Add(1) > mostWaiting {
		return false
	}
	patience := longestWait
	if end, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(end)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return l.bytes.Acquire(ctx, int64(n)) == nil
}

// give returns the room of a body of n bytes.
func (l *lane) give(n int) { l.bytes.Release(int64(min(n, l.room))) }
