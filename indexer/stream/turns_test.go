package stream

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sightline-router/sightline/engine/vllm"
)

// busy is a source that counts how many of its replays run at once.
type busy struct {
	now, most *atomic.Int32
	goOn      chan struct{}
}

func (b busy) Run(ctx context.Context, f *Feed) error {
	f.Up()
	<-ctx.Done()
	return ctx.Err()
}

func (b busy) Replay(ctx context.Context, _ uint64, _ func(Message) error) error {
	n := b.now.Add(1)
	defer b.now.Add(-1)
	for most := b.most.Load(); n > most && !b.most.CompareAndSwap(most, n); most = b.most.Load() {
	}
	select {
	case <-ctx.Done():
	case b.goOn <- struct{}{}:
	}
	return ctx.Err()
}

// TestTurns checks that, of many feeds that join at once, no more are answered at once than there are turns, that all are
// answered in the end, and that a waiting feed can be closed.
func TestTurns(t *testing.T) {
	turns, b := make(chan struct{}, 2), busy{new(atomic.Int32), new(atomic.Int32), make(chan struct{})}
	var feeds []*Feed
	for range 8 {
		f := Start(Options{Source: b, Decoder: &vllm.Decoder{}, Sink: newRecorder(), ReplaySlots: turns})
		t.Cleanup(f.Close)
		feeds = append(feeds, f)
	}
	for end := time.Now().Add(200 * time.Millisecond); b.most.Load() < 3 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	} // none is answered yet: a third would be seen
	for range 6 {
		<-b.goOn
	}
	waits := Start(Options{Source: b, Decoder: &vllm.Decoder{}, Sink: newRecorder(), ReplaySlots: turns})
	waits.Close()
	for range 2 {
		<-b.goOn
	}
	for _, f := range feeds {
		applied(t, f, "the replay", func(s Stats) bool { return s.CaughtUp })
	}
	if n := b.most.Load(); n > 2 {
		t.Errorf("%d replays at once, want 2 at most", n)
	}
}
