package router

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// The bytes of bodies that are read at once are limited, in two lanes, so that a small request never waits for a large one. A
// request that finds its lane full waits a while, first come, first served, and is then routed by load. Bodies are cleaned before
// they wait; large ones only as many at once as there are cores, which takes no longer in all than sharing the cores.
const (
	largeBody   = 256 << 10 // bytes from which a body is large: tens of milliseconds if it is all text
	laneBytes   = 4 << 20   // for each core; the large lane has half of it; a larger body is read when its lane is empty
	readFactor  = 4         // weight of a byte outside of long strings: its values and parts take ten times its size
	mostWaiting = 1024      // in each lane; further requests are routed by load at once
	longestWait = time.Second

	largeSkeleton = 64 << 10 // bytes from which a skeleton is dropped while its body waits
)

// lanes are the lane of small bodies and that of large ones. scans limits how many large bodies are scanned and cleaned at once.
type lanes struct {
	small, large *lane
	scans        chan struct{}
}

func newLanes() *lanes {
	cores := runtime.GOMAXPROCS(0)
	return &lanes{small: newLane(laneBytes * cores), large: newLane(laneBytes * max(1, cores/2)), scans: make(chan struct{}, cores)}
}

// of returns the lane of a body of n bytes, skeleton of them outside of long strings, its weight there, and the Decision.Why if the
// lane is full.
func (l *lanes) of(n, skeleton int) (one *lane, weight int, busy string) {
	if n >= largeBody {
		return l.large, n + (readFactor-1)*skeleton, "too many large requests are being read"
	}
	return l.small, n, "too many requests are being read"
}

// scan waits until a body of n bytes may be scanned. The caller must call done after that.
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

// try takes room for a body of n bytes if it need not wait.
func (l *lane) try(n int) bool { return l.bytes.TryAcquire(int64(min(n, l.room))) }

// take waits for room for a body of n bytes, for half of the remaining time at most. It returns false if there was none; after
// true the caller must call give.
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
