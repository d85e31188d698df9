package stream

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/internal/retry"
)

// Lookup is a Source that asks the worker for its sockets until it answers, and then follows them. While they cannot be reached
// it asks again: a restarted worker may have others.
type Lookup struct {
	// Find asks the worker once. It must have a time limit.
	Find func(ctx context.Context) (ZMQ, error)

	every time.Duration // 0: the package's
	mu    sync.Mutex
	found ZMQ
}

// lookupEvery is the pause between queries.
const lookupEvery = 2 * time.Second

// Run implements Source.
func (a *Lookup) Run(ctx context.Context, f *Feed) error {
	a.every = cmp.Or(a.every, lookupEvery)
	pause := retry.Backoff{First: a.every}
	for {
		z, err := a.Find(ctx)
		if err == nil {
			a.mu.Lock()
			a.found = z
			a.found.Replayed = f.Received()
			a.mu.Unlock()
			err = a.follow(ctx, f, z)
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errMoved) {
			continue
		}
		f.Down(err)
		if !pause.Wait(ctx) {
			return nil
		}
	}
}

var errMoved = errors.New("the worker's sockets have changed")

// follow reads z's sockets until the worker has others.
func (a *Lookup) follow(ctx context.Context, f *Feed, z ZMQ) error {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- guard.Call(func() error { return z.Run(ctx, f) }) }()
	for {
		select {
		case err := <-ended:
			cancel()
			return err
		case <-time.After(retry.UntilBeat(time.Now(), a.every, 0)):
		}
		if f.Stats().Connected {
			continue
		}
		if now, err := a.Find(ctx); err == nil && now != z {
			cancel()
			<-ended
			return errMoved
		}
	}
}

// Replay implements Source.
func (a *Lookup) Replay(ctx context.Context, from uint64, each func(Message) error) error {
	a.mu.Lock()
	z := a.found
	a.mu.Unlock()
	if z.Endpoint == "" {
		return errors.ErrUnsupported
	}
	return z.Replay(ctx, from, each)
}
