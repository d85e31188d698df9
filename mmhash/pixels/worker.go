package pixels

import (
	"fmt"
	"sync"
	"time"

	"github.com/sightline-router/sightline/internal/guard"
)

// Worker does the decoding that no request waits for: one goroutine, a bounded queue, and a share of one core that it
// does not exceed. After each job it rests for as long as the share demands. Jobs beyond the queue are turned away, which
// costs nothing but a name that is computed at the picture's next sight.
type Worker struct {
	share float64
	rest  func(time.Duration)

	panicked func(error) // told of a job that panicked; nil: nobody

	mu     sync.Mutex
	known  map[[32]byte]bool // queued or running
	closed bool
	jobs   chan job
	done   chan struct{}
	stop   chan struct{}
}

type job struct {
	key [32]byte
	do  func()
}

// NewWorker starts a worker with room for queue waiting jobs and a share of one core between 0 (not included) and 1. A
// waiting job holds its file's bytes: the queue bounds the memory.
// panicked, if not nil, is told of each job that panicked, which costs that job alone.
func NewWorker(queue int, share float64, panicked func(error)) (*Worker, error) {
	if queue < 1 || !(share > 0 && share <= 1) {
		return nil, fmt.Errorf("pixel worker with a queue of %d and a share of %v: want at least 1, and above 0 up to 1", queue, share)
	}
	w := &Worker{share: share, panicked: panicked, known: map[[32]byte]bool{}, jobs: make(chan job, queue), done: make(chan struct{}), stop: make(chan struct{})}
	w.rest = w.sleep
	go w.run()
	return w, nil
}

// Submit queues do unless the key is already waiting or running, the queue is full, or the worker is closed; it never
// blocks. The key is the picture's content id, or a digest of it and what is asked for.
func (w *Worker) Submit(key [32]byte, do func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.known[key] {
		return false
	}
	select {
	case w.jobs <- job{key, do}:
		w.known[key] = true
		return true
	default:
		return false
	}
}

// Takes reports whether Submit would take a job under the key now: for callers whose jobs cost something to make.
func (w *Worker) Takes(key [32]byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.closed && !w.known[key] && len(w.jobs) < cap(w.jobs)
}

// Close drops what waits and returns when the running job is over.
func (w *Worker) Close() {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.stop)
	}
	w.mu.Unlock()
	<-w.done
}

func (w *Worker) run() {
	defer close(w.done)
	for {
		select {
		case <-w.stop: // first of all, also where a job waits
			return
		default:
		}
		select {
		case <-w.stop:
			return
		case j := <-w.jobs:
			start := time.Now()
			if err := guard.Call(func() error { j.do(); return nil }); err != nil && w.panicked != nil {
				w.panicked(err)
			}
			took := time.Since(start)
			w.mu.Lock()
			delete(w.known, j.key)
			w.mu.Unlock()
			w.rest(time.Duration(float64(took) * (1/w.share - 1)))
		}
	}
}

func (w *Worker) sleep(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-w.stop:
	}
}
