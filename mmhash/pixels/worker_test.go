package pixels

import (
	"runtime"
	"testing"
	"time"
)

func TestWorker(t *testing.T) {
	for _, c := range []struct {
		queue int
		share float64
	}{{0, 1}, {1, 0}, {1, -1}, {1, 1.1}} {
		if _, err := NewWorker(c.queue, c.share, nil); err == nil {
			t.Errorf("queue %d, share %v taken", c.queue, c.share)
		}
	}

	w, err := NewWorker(1, 0.25, nil)
	if err != nil {
		t.Fatal(err)
	}
	running, free, over := make(chan bool), make(chan bool), make(chan bool)
	a, b, c := [32]byte{1}, [32]byte{2}, [32]byte{3}
	if !w.Submit(a, func() { running <- true; <-free }) {
		t.Fatal("first job turned away")
	}
	<-running
	if w.Submit(a, func() {}) {
		t.Error("a running job taken twice")
	}
	if !w.Submit(b, func() { close(over) }) {
		t.Error("second job turned away")
	}
	if w.Submit(b, func() {}) || w.Submit(c, func() {}) {
		t.Error("more taken than the queue holds")
	}
	free <- true
	<-over
	w.Close()
	w.Close()
	if w.Submit(c, func() {}) {
		t.Error("a closed worker takes jobs")
	}
}

// TestWorkerShare: with a quarter of a core the worker rests three times as long as it worked, and closing ends the rest.
func TestWorkerShare(t *testing.T) {
	w := &Worker{share: 0.25, known: map[[32]byte]bool{}, jobs: make(chan job, 1), done: make(chan struct{}), stop: make(chan struct{})}
	rests := make(chan time.Duration, 1)
	w.rest = func(d time.Duration) { rests <- d }
	go w.run()
	var worked time.Duration
	w.Submit([32]byte{}, func() {
		start := time.Now()
		for worked < time.Millisecond {
			worked = time.Since(start)
		}
	})
	if d := <-rests; d < 3*worked {
		t.Errorf("rested %v after %v of work", d, worked)
	}
	w.Close()

	if w, err := NewWorker(1, 1e-9, nil); err != nil {
		t.Fatal(err)
	} else {
		ran := make(chan bool)
		w.Submit([32]byte{}, func() { close(ran) })
		<-ran
		w.Close() // would wait for minutes otherwise
	}
}

// A job that panics is told of, and costs itself alone.
func TestWorkerPanic(t *testing.T) {
	told := make(chan error, 1)
	w, err := NewWorker(2, 1, func(err error) { told <- err })
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var file []byte
	w.Submit([32]byte{1}, func() { file[3]++ })
	if err := <-told; err == nil {
		t.Error("a panic without an error")
	}
	over := make(chan bool)
	for !w.Submit([32]byte{1}, func() { close(over) }) { // it is forgotten a moment later
		runtime.Gosched()
	}
	<-over
}
