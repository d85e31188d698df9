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
// before it waits.
const (
	largeBody   = 256 << 10 // bytes from which a body is large: tens of milliseconds, if all of it is text
	laneBytes   = 4 << 20   // a core, the large lane's half of them; a larger body is read when its lane is empty
	mostWaiting = 1024      // of a lane; beyond, requests go by load at once
	longestWait = time.Second
)

// lanes are the two.
type lanes struct{ small, large *lane }

func newLanes() *lanes {
	cores := runtime.GOMAXPROCS(0)
	return &lanes{small: newLane(laneBytes * cores), large: newLane(laneBytes * max(1, cores/2))}
}

// of is the lane of a body of n bytes, and the words for its being full.
func (l *lanes) of(n int) (one *lane, busy string) {
	if n >= largeBody {
		return l.large, "too many large requests are being read"
	}
	return l.small, "too many requests are being read"
}

// queued is how many bodies wait, in both lanes.
func (l *lanes) queued() int64 { return l.small.waiting.Load() + l.large.waiting.Load() }

// lane is room for so many bytes.
type lane struct {
	room    int
	bytes   *semaphore.Weighted
	waiting atomic.Int64
}

func newLane(room int) *lane { return &lane{room: room, bytes: semaphore.NewWeighted(int64(room))} }

// take waits for the turn of a body of n bytes, for half of the time that is left at most; false: it did not come. Who
// got true must give the bytes back.
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

// give ends the turn of a body of n bytes.
func (l *lane) give(n int) { l.bytes.Release(int64(min(n, l.room))) }
