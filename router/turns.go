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
// they wait.
const (
	largeBody   = 256 << 10 // bytes from which a body is large: tens of milliseconds if it is all text
	laneBytes   = 4 << 20   // for each core; the large lane has half of it; a larger body is read when its lane is empty
	mostWaiting = 1024      // in each lane; further requests are routed by load at once
	longestWait = time.Second
)

// lanes are the lane of small bodies and that of large ones.
type lanes struct{ small, large *lane }

func newLanes() *lanes {
	cores := runtime.GOMAXPROCS(0)
	return &lanes{small: newLane(laneBytes * cores), large: newLane(laneBytes * max(1, cores/2))}
}

// of returns the lane for a body of n bytes, and the Decision.Why if it is full.
func (l *lanes) of(n int) (one *lane, busy string) {
	if n >= largeBody {
		return l.large, "too many large requests are being read"
	}
	return l.small, "too many requests are being read"
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

// take waits for room for a body of n bytes, for half of the remaining time at most. It returns false if there was none; after
// true the caller must call give.
func (l *lane) take(ctx context.Context, n int) bool {
	n = min(n, l.room)
	if l.bytes.TryAcquire(int64(n)) {
		return true
	}
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
