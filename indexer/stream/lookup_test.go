package stream

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sightline-router/sightline/engine/vllm"
)

// TestAsked follows a worker that does not answer at first, then reports its sockets, and has others after a restart.
func TestAsked(t *testing.T) {
	first, second := publish(t), publish(t)
	var at atomic.Pointer[publisher]
	a := &Lookup{every: 5 * time.Millisecond, Find: func(context.Context) (ZMQ, error) {
		p := at.Load()
		if p == nil {
			return ZMQ{}, errors.New("nobody answers")
		}
		return ZMQ{Endpoint: "tcp://" + p.pub.Addr().String()}, nil
	}}
	if err := a.Replay(t.Context(), 0, nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a replay before there is an answer: got %v, want %v", err, errors.ErrUnsupported)
	}
	f := Start(Options{Source: a, Decoder: &vllm.Decoder{}, Sink: newRecorder()})
	t.Cleanup(f.Close)
	applied(t, f, "the first refusal", func(s Stats) bool { return s.LastError == "nobody answers" })
	w := newWorker(5, false)
	hears := func(p *publisher) {
		t.Helper()
		before := f.Stats().Batches
		applied(t, f, "a message", func(s Stats) bool {
			p.send(w.step().Payload) // until the subscription has arrived
			return s.Batches > before
		})
	}
	at.Store(first)
	hears(first)
	at.Store(second)
	first.pub.Close()
	hears(second)
}
