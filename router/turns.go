package router

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"time"
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

// turns are the two lanes.
type turns struct{ small, large lane }

func newTurns() *turns {
	cores := runtime.GOMAXPROCS(0)
	return &turns{small: lane{room: laneBytes * cores}, large: lane{room: laneBytes * max(1, cores/2)}}
}

// of is the lane of a body of n bytes, and the words for its being full.
func (t *turns) of(n int) (l *lane, busy string) {
	if n >= largeBody {
		return &t.large, "too many large requests are being read"
	}
	return &t.small, "too many requests are being read"
}

// lane is a semaphore over bytes.
type lane struct {
	room    int
	mu      sync.Mutex
	used    int
	waiting []*waiter
}

type waiter struct {
	bytes int
	turn  chan struct{}
}

// take waits for the turn of a body of n bytes, for half of the time that is left at most; false: it did not come. Who
// got true must give the bytes back.
func (l *lane) take(ctx context.Context, n int) bool {
	l.mu.Lock()
	if len(l.waiting) == 0 && l.fits(n) {
		l.used += n
		l.mu.Unlock()
		return true
	}
	if len(l.waiting) >= mostWaiting {
		l.mu.Unlock()
		return false
	}
	w := &waiter{n, make(chan struct{})}
	l.waiting = append(l.waiting, w)
	l.mu.Unlock()

	patience := longestWait
	if end, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(end)/2)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-w.turn:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	at := slices.Index(l.waiting, w)
	if at < 0 { // its turn came at this moment
		return true
	}
	l.waiting = slices.Delete(l.waiting, at, at+1)
	l.next() // it may have stood in the way
	return false
}

// give ends the turn of a body of n bytes.
func (l *lane) give(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used -= n
	l.next()
}

func (l *lane) fits(n int) bool { return l.used == 0 || l.used+n <= l.room }

func (l *lane) next() {
	for len(l.waiting) > 0 && l.fits(l.waiting[0].bytes) {
		w := l.waiting[0]
		l.used += w.bytes
		l.waiting = slices.Delete(l.waiting, 0, 1)
		close(w.turn)
	}
}

// queued is how many bodies wait, in both lanes.
func (t *turns) queued() (n int) {
	for _, l := range []*lane{&t.small, &t.large} {
		l.mu.Lock()
		n += len(l.waiting)
		l.mu.Unlock()
	}
	return n
}
