package serve

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
)

// TestRanksAskOnce: all ranks of a worker take one answer, one query runs at a time, and a rank that the server does not have is told so.
func TestRanksAskOnce(t *testing.T) {
	var asked, running atomic.Int32
	a := &askedEvents{turn: make(chan struct{}, 1), find: func(context.Context) ([]rules.EventSource, error) {
		if running.Add(1) > 1 {
			t.Error("got two queries of one worker at a time, want one")
		}
		defer running.Add(-1)
		asked.Add(1)
		return make([]rules.EventSource, 256), nil
	}}
	began := time.Now()
	var all sync.WaitGroup
	for rank := range 300 {
		all.Go(func() {
			_, err := a.ask(t.Context(), rank)
			if there := rank < 256; (err == nil) != there || !there && !strings.Contains(err.Error(), "the server has 256 ranks") {
				t.Errorf("rank %d: got %v", rank, err)
			}
		})
	}
	all.Wait()
	if n, most := asked.Load(), int32(1+time.Since(began)/askedFor); n > most {
		t.Errorf("the worker was asked %d times, want %d at most", n, most)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	a.turn <- struct{}{} // another rank asks
	if _, err := a.ask(ended, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("a rank that stops: got %v, want %v", err, context.Canceled)
	}
}
